"""The text of the allocator's settings, read as PyTorch 2.15 reads it: tokens, and C's idea of a number.

What PyTorch forgives is forgiven here: `20abc` is 20, -1 is the largest number there is, and any token will do where a
colon or a comma should be. What it refuses is refused in its words.
"""

from __future__ import annotations

import math
import re
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from forebay.runtime.settings.allocator_settings import AllocatorSettings

__all__ = ["UNLIMITED", "SettingsError", "SettingsIndexError", "SettingsRuntimeError", "Tokens", "positive"]

UNLIMITED = (1 << 64) - 1  # the largest number of 64 bits

_SPACES = dict.fromkeys(map(ord, " \t\n\v\f\r"))
_TOKEN = re.compile(r"[,:\[\]]|[^,:\[\]]+")
_WHOLE = re.compile(r"([+-]?)0*([0-9]*)")
_HEX = re.compile(r"[+-]?0x(?=\.?[0-9a-f])([0-9a-f]*)(?:\.([0-9a-f]*))?(?:p([+-]?[0-9]+))?", re.ASCII | re.IGNORECASE)
_DECIMAL = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)(?:e[+-]?[0-9]+)?", re.ASCII | re.IGNORECASE)
_SPECIAL = re.compile(r"[+-]?(?:inf|nan)", re.ASCII | re.IGNORECASE)


class SettingsError(ValueError):
    """A text that PyTorch refuses too, in its words; `applied` is what holds now if one goes on, as PyTorch would.

    That is every key before the bad one: nothing is taken back. Where PyTorch raises something other than ValueError,
    the error is of that type as well.
    """

    applied: AllocatorSettings

    def __init__(self, message: str) -> None:
        super().__init__(message.partition("\0")[0])  # its messages are C's strings


class SettingsIndexError(SettingsError, IndexError):
    """A number that is out of range."""


class SettingsRuntimeError(SettingsError, RuntimeError):
    """What PyTorch takes for a defect of its own: a text that ends too early, another backend than the first one."""


class Tokens:
    """Separators (, : [ ]) and what stands between them, spaces dropped. Every reader takes the token's place."""

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

    def value_of(self, key: int) -> int:
        """The place of a key's value; whatever stands in between is taken for the colon."""
        _ = self[key + 1]
        return key + 2

    def end_of(self, key: int) -> int:
        """The place where a key's value ends, for whoever does not read it."""
        at = self.value_of(key)
        return self.closing(at) if self[at] == "[" else at

    def closing(self, at: int) -> int:
        try:
            return self._tokens.index("]", at)
        except ValueError:
            message = "Expected closing bracket ']' in ConfigTokenizer but reached end of config"
            raise SettingsRuntimeError(message) from None

    def whole(self, at: int) -> int:
        """An unsigned 64-bit number; a negative one counts down from 2^64."""
        found = _WHOLE.match(token := self[at])
        if found is None or not found[0][len(found[1]) :]:
            raise self._not_read("stoull", token)
        if len(found[2]) > 20 or (number := int(found[2] or "0")) > UNLIMITED:
            raise self._out_of_range("stoull", token)
        return -number & UNLIMITED if found[1] == "-" else number

    def real(self, at: int) -> float:
        """A double; one that is not 0 and too small to be kept well is out of range."""
        token = self[at]
        if _SPECIAL.match(token):
            return math.nan  # infinity and nan are in nobody's range
        found = _HEX.match(token) or _DECIMAL.match(token)
        if found is None:
            raise self._not_read("stod", token)
        number = _hex(found) if found.re is _HEX else _decimal(found)
        if number is None:
            raise self._out_of_range("stod", token)
        return number

    def flag(self, at: int) -> bool:
        if (token := self[at]) not in ("True", "False"):
            raise SettingsError(f"Expected 'True' or 'False' at index {at} in ConfigTokenizer but got '{token}'")
        return token == "True"  # noqa: S105 -- no password

    @staticmethod
    def _not_read(message: str, token: str) -> SettingsError:
        error = SettingsError(message)
        error.add_note(f"{token[:100]!r} is not a number")
        return error

    @staticmethod
    def _out_of_range(message: str, token: str) -> SettingsError:
        error = SettingsIndexError(message)
        error.add_note(f"{token[:100]!r} is out of range")
        return error


def _decimal(found: re.Match[str]) -> float | None:
    number = float(found[0])
    if math.isinf(number) or (number == 0 and found[1].strip("0.")):
        return None
    if not 0 < abs(number) <= sys.float_info.min:
        return number
    from decimal import Decimal  # late, as hardly anybody comes by

    # C takes a double for too small below the least normal one, less half a step of the last place; unless it is exact.
    exact, least = Decimal(found[0]).copy_abs(), Decimal(f"{((1 << 54) - 1) * 5**1076}e-1076")
    return None if exact < least and exact != Decimal(number).copy_abs() else number


def _hex(found: re.Match[str]) -> float | None:
    digits = found[1] + (found[2] or "")
    try:
        number = float.fromhex(found[0])
    except OverflowError:
        return None
    if number == 0 and digits.strip("0"):
        return None
    if not 0 < abs(number) < sys.float_info.min:
        return number
    from fractions import Fraction  # late, as above

    exact = Fraction(int(digits, 16)) * Fraction(2) ** (int(found[3] or "0") - 4 * len(found[2] or ""))
    return number if exact == abs(Fraction(number)) else None


def positive(text: str) -> float | None:
    """A plain finite number above 0 and nothing behind it, or None."""
    if not _DECIMAL.fullmatch(text):
        return None
    number = float(text)
    return number if 0 < number < math.inf else None
