"""Conversion of arguments as pybind11 does it for PyTorch's C++ functions, with its TypeErrors."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence, ValuesView
from collections.abc import Set as AbstractSet
from typing import Any

__all__ = ["BOOL", "INT64", "SIZE", "STR", "STRINGS", "STR_OR_NONE", "Signature"]

_ITERABLES = (Sequence, AbstractSet, ValuesView, Generator, map, zip)


class _Mismatch(Exception):
    """The argument has no conversion."""


class Signature:
    """A C++ function's name, and the types of its arguments.

    >>> Signature("_cuda_setMemoryMetadata", STR).convert(5)
    Traceback (most recent call last):
    TypeError: _cuda_setMemoryMetadata(): incompatible function arguments. The following argument types are supported:
        1. (arg0: str) -> None
    <BLANKLINE>
    Invoked with: 5
    """

    def __init__(self, name: str, *types: tuple[str, Callable[[Any], Any]]) -> None:
        self._name = name
        self._types = types

    def convert(self, *arguments: Any) -> list[Any]:
        """Return the converted arguments. Raise TypeError if one of them has no conversion."""
        try:
            return [convert(value) for (_, convert), value in zip(self._types, arguments, strict=True)]
        except _Mismatch:
            pass
        types = ", ".join(f"arg{at}: {name}" for at, (name, _) in enumerate(self._types))
        raise TypeError(
            f"{self._name}(): incompatible function arguments. The following argument types are supported:\n"
            f"    1. ({types}) -> None\n\nInvoked with: {', '.join(map(repr, arguments))}"
        )


def _str(value: Any) -> str:
    try:
        if isinstance(value, (bytes, bytearray)):
            return value.decode()
        if isinstance(value, str):
            value.encode()  # C++ strings are UTF-8
            return value
    except UnicodeError:
        raise _Mismatch from None
    raise _Mismatch


def _str_or_none(value: Any) -> str | None:
    return None if value is None else _str(value)


def _bool(value: Any) -> bool:
    if value is None:
        return False
    if not hasattr(type(value), "__bool__"):  # a length is no truth value here
        raise _Mismatch
    try:
        return bool(value)
    except Exception:  # noqa: BLE001 -- pybind11 ignores it as well
        raise _Mismatch from None


def _int_in(lowest: int, highest: int) -> Callable[[Any], int]:
    def convert(value: Any) -> int:
        if isinstance(value, float) or not (hasattr(value, "__int__") or hasattr(value, "__index__")):
            raise _Mismatch
        try:
            number = int(value)
        except Exception:  # noqa: BLE001 -- as above
            raise _Mismatch from None
        if not lowest <= number <= highest:
            raise _Mismatch
        return number

    return convert


def _strings(value: Any) -> list[str]:
    if not isinstance(value, _ITERABLES) or isinstance(value, (str, bytes)):
        raise _Mismatch
    return [_str(each) for each in value]


_INT = "typing.SupportsInt | typing.SupportsIndex"
STR = ("str", _str)
STR_OR_NONE = ("str | None", _str_or_none)
BOOL = ("bool", _bool)
SIZE = (_INT, _int_in(0, (1 << 64) - 1))
INT64 = (_INT, _int_in(-(1 << 63), (1 << 63) - 1))
STRINGS = ("collections.abc.Sequence[str]", _strings)
