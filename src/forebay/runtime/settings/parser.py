"""Tokenizer of allocator configuration strings, and C's number parsing, as in PyTorch 2.15.

Accepts what PyTorch accepts: `20abc` is 20, -1 is the largest 64-bit number, and any token may stand in place of a
colon or a comma. Errors have PyTorch's texts.
"""

from __future__ import annotations

import math
import re
import sys

from forebay.runtime.settings.allocator_settings import UNLIMITED, AllocatorSettings

__all__ = ["SettingsError", "SettingsIndexError", "SettingsRuntimeError", "Tokens", "positive"]

_SPACES = dict.fromkeys(map(ord, " \t\n\v\f\r"))
_TOKEN = re.compile(r"[,:\[\]]|[^,:\[\]]+")
_UNSIGNED = re.compile(r"([+-]?)0*([0-9]*)")
_HEX = re.compile(r"[+-]?0x(?=\.?[0-9a-f])([0-9a-f]*)(?:\.([0-9a-f]*))?(?:p([+-]?[0-9]+))?", re.ASCII | re.IGNORECASE)
_DECIMAL = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)(?:e[+-]?[0-9]+)?", re.ASCII | re.IGNORECASE)
_SPECIAL = re.compile(r"[+-]?(?:inf|nan)", re.ASCII | re.IGNORECASE)


class SettingsError(ValueError):
    """Error for a configuration string that PyTorch rejects too, with PyTorch's text.

    `applied` has the settings after all keys before the bad one, which PyTorch keeps. If PyTorch raises something other
    than ValueError, the error has that type as well.
    """

    applied: AllocatorSettings

    def __init__(self, message: str) -> None:
        super().__init__(message.partition("\0")[0])  # PyTorch's messages are C strings


class SettingsIndexError(SettingsError, IndexError):
    """Error for a number that is out of range."""


class SettingsRuntimeError(SettingsError, RuntimeError):
    """Error that PyTorch raises as an internal one: the string ends too early, or the backend would change."""


class Tokens:
    """Separators (, : [ ]) and the text between them, without whitespace. Every method takes a token's index."""

    def __init__(self, text: str) -> None:
        if not isinstance(text, str):
            raise TypeError(f"settings must be a str, not {type(text).__name__}")
        self._tokens: list[str] = _TOKEN.findall(text.translate(_SPACES))

    def __len__(self) -> int:
        return len(self._tokens)

    def __getitem__(self, at: int) -> str:
        if at >= len(self._tokens):
            raise SettingsRuntimeError("Index out of bounds in ConfigTokenizer")
        return self._tokens[at]

    def value_index(self, key: int) -> int:
        """Return the index of a key's value; any token in between is taken for the colon."""
        _ = self[key + 1]
        return key + 2

    def end_index(self, key: int) -> int:
        """Return the index of the last token of a key's value."""
        at = self.value_index(key)
        return self.closing_bracket(at) if self[at] == "[" else at

    def closing_bracket(self, at: int) -> int:
        try:
            return self._tokens.index("]", at)
        except ValueError:
            message = "Expected closing bracket ']' in ConfigTokenizer but reached end of config"
            raise SettingsRuntimeError(message) from None

    def unsigned(self, at: int) -> int:
        """Return an unsigned 64-bit number (C's stoull); a negative one wraps around at 2^64."""
        match = _UNSIGNED.match(token := self[at])
        if match is None or not match[0][len(match[1]) :]:
            raise self._not_a_number("stoull", token)
        if len(match[2]) > 20 or (number := int(match[2] or "0")) > UNLIMITED:
            raise self._out_of_range("stoull", token)
        return -number & UNLIMITED if match[1] == "-" else number

    def double(self, at: int) -> float:
        """Return a double (C's stod). A number other than 0 that underflows is out of range."""
        token = self[at]
        if _SPECIAL.match(token):
            return math.nan  # infinity and nan: every caller rejects them as out of range
        match = _HEX.match(token) or _DECIMAL.match(token)
        if match is None:
            raise self._not_a_number("stod", token)
        number = _hex(match) if match.re is _HEX else _decimal(match)
        if number is None:
            raise self._out_of_range("stod", token)
        return number

    def boolean(self, at: int) -> bool:
        if (token := self[at]) not in ("True", "False"):
            raise SettingsError(f"Expected 'True' or 'False' at index {at} in ConfigTokenizer but got '{token}'")
        return token == "True"  # noqa: S105 -- no password

    @staticmethod
    def _not_a_number(message: str, token: str) -> SettingsError:
        error = SettingsError(message)
        error.add_note(f"{token[:100]!r} is not a number")
        return error

    @staticmethod
    def _out_of_range(message: str, token: str) -> SettingsError:
        error = SettingsIndexError(message)
        error.add_note(f"{token[:100]!r} is out of range")
        return error


def _decimal(match: re.Match[str]) -> float | None:
    number = float(match[0])
    if math.isinf(number) or (number == 0 and match[1].strip("0.")):
        return None
    if not 0 < abs(number) <= sys.float_info.min:
        return number
    from decimal import Decimal  # late: rarely needed

    # C reports underflow below the smallest normal double minus half a unit in the last place, unless exact.
    exact, limit = Decimal(match[0]).copy_abs(), Decimal(f"{((1 << 54) - 1) * 5**1076}e-1076")
    return None if exact < limit and exact != Decimal(number).copy_abs() else number


def _hex(match: re.Match[str]) -> float | None:
    digits = match[1] + (match[2] or "")
    try:
        number = float.fromhex(match[0])
    except OverflowError:
        return None
    if number == 0 and digits.strip("0"):
        return None
    if not 0 < abs(number) < sys.float_info.min:
        return number
    from fractions import Fraction  # late, as above

    exact = Fraction(int(digits, 16)) * Fraction(2) ** (int(match[3] or "0") - 4 * len(match[2] or ""))
    return number if exact == abs(Fraction(number)) else None


def positive(text: str) -> float | None:
    """Return the value of a plain, finite, positive number with nothing after it, else None."""
    if not _DECIMAL.fullmatch(text):
        return None
    number = float(text)
    return number if 0 < number < math.inf else None
