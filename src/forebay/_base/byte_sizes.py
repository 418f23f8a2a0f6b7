"""Conversion between byte counts and texts such as "16 MiB": `format_bytes` and `parse_bytes`."""

from __future__ import annotations

import re

__all__ = ["LIMIT", "MIB", "format_bytes", "parse_bytes"]

LIMIT = 1 << 63  # of addresses and sizes, exclusive: drivers and PyTorch use signed integers
MIB = 1 << 20

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")
_POWERS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}
_SPELLING = re.compile(r"(\d{1,20}(?:\.\d{1,20})?)\s*(?:([kmgt])(?:i?b)?|b)?", re.ASCII | re.IGNORECASE)


def format_bytes(n: int) -> str:
    """Return a size as text such as "1.50 KiB", in the largest fitting unit with two decimals; plain bytes have none.

    Parameters
    ----------
    n : int
        Bytes; may be negative.

    Examples
    --------
    >>> format_bytes(512), format_bytes(1536), format_bytes(20 << 20), format_bytes(-(3 << 30))
    ('512 B', '1.50 KiB', '20.00 MiB', '-3.00 GiB')
    >>> format_bytes((1 << 20) - 1)  # never "1024.00 KiB"
    '1.00 MiB'
    """
    if abs(n) < 1024:
        return f"{n} B"
    power = min((abs(n).bit_length() - 1) // 10, len(_UNITS) - 1)
    if power + 1 < len(_UNITS) and round(abs(n) / (1 << 10 * power), 2) >= 1024:
        power += 1
    return f"{n / (1 << 10 * power):.2f} {_UNITS[power]}"


def parse_bytes(text: str) -> int:
    """Parse a size such as "16MiB" and return its bytes, rounded down.

    Parameters
    ----------
    text : str
        A number above 0, optionally with a unit. K, KB and KiB all mean 1024 bytes; M, G and T likewise.

    Raises
    ------
    ValueError
        If the text is not a size, or the size does not fit a signed 64-bit integer.

    Examples
    --------
    >>> parse_bytes("16MiB") == parse_bytes("16 mb") == parse_bytes("16m") == parse_bytes("16777216")
    True
    >>> parse_bytes("1.5G")
    1610612736
    >>> parse_bytes("12 bananas")
    Traceback (most recent call last):
    ValueError: '12 bananas' is not a size; write a number above 0 and a unit, as in 4096, 512k, 16MiB, 1.5G or 2 GiB
    """
    if match := _SPELLING.fullmatch(text.strip()):
        number, unit = match[1], (match[2] or "").lower()
        # Integer arithmetic: a float would lose bytes above 2^53.
        whole, _, fraction = number.partition(".")
        scale = 1024 ** _POWERS[unit]
        nbytes: int = int(whole) * scale + int(fraction or "0") * scale // 10 ** len(fraction)
        if 0 < nbytes < LIMIT:
            return nbytes
    raise ValueError(
        f"{text!r} is not a size; write a number above 0 and a unit, as in 4096, 512k, 16MiB, 1.5G or 2 GiB"
    )
