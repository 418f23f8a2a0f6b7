"""Conversions of arguments, each compared with what pybind11 does in PyTorch 2.13."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from forebay.names.pybind_arguments import BOOL, INT64, SIZE, STR, STR_OR_NONE, STRINGS, Signature


class WithMethod:
    """An object whose only method returns or raises the result."""

    def __init__(self, result):
        self.result = result

    def call(self):
        if isinstance(self.result, Exception):
            raise self.result
        return self.result


class AsBool(WithMethod):
    __bool__ = WithMethod.call


class AsIndex(WithMethod):
    __index__ = WithMethod.call


class AsInt(WithMethod):
    __int__ = WithMethod.call


def converted(kind, value):
    [result] = Signature("f", kind).convert(value)
    return result


@pytest.mark.parametrize(
    ("kind", "value", "expected"),
    [
        (STR, "", ""),
        (STR, b"a:1", "a:1"),
        (STR, bytearray("ä", "utf-8"), "ä"),
        (STR_OR_NONE, None, None),
        (STR_OR_NONE, "all", "all"),
        (BOOL, None, False),
        (BOOL, 1, True),
        (BOOL, 0.0, False),
        (BOOL, AsBool(result=True), True),
        (BOOL, np.zeros(1), False),
        (SIZE, True, 1),
        (SIZE, (1 << 64) - 1, (1 << 64) - 1),
        (SIZE, np.float32(2), 2),
        (SIZE, np.array(5), 5),
        (SIZE, Fraction(7, 2), 3),
        (SIZE, AsIndex(4), 4),
        (SIZE, AsInt(7), 7),
        (INT64, -(1 << 63), -(1 << 63)),
        (STRINGS, (), []),
        (STRINGS, ["a", b"b"], ["a", "b"]),
        (STRINGS, {"a"}, ["a"]),
        (STRINGS, {"a": 1}.keys(), ["a"]),
        (STRINGS, (each for each in "ab"), ["a", "b"]),
        (STRINGS, range(0), []),
    ],
)
def test_accepted_values_are_converted(kind, value, expected):
    result = converted(kind, value)
    assert (result, type(result)) == (expected, type(expected))


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (STR, None),
        (STR, 5),
        (STR, memoryview(b"")),
        (STR, "\ud800"),
        (STR_OR_NONE, 5),
        (BOOL, []),
        (BOOL, "x"),
        (BOOL, object()),
        (BOOL, AsBool(ValueError("no"))),
        (BOOL, np.zeros(2)),
        (SIZE, None),
        (SIZE, "1"),
        (SIZE, 1.0),
        (SIZE, np.float64(1)),
        (SIZE, 1j),
        (SIZE, -1),
        (SIZE, 1 << 64),
        (SIZE, AsIndex(ValueError("no"))),
        (SIZE, AsIndex("4")),
        (SIZE, np.array([5, 6])),
        (INT64, 1 << 63),
        (INT64, -(1 << 63) - 1),
        (STRINGS, None),
        (STRINGS, "ab"),
        (STRINGS, b"ab"),
        (STRINGS, {"a": 1}),
        (STRINGS, iter(["a"])),
        (STRINGS, ["a", 5]),
        (STRINGS, ["\ud800"]),
    ],
)
def test_other_values_are_refused(kind, value):
    with pytest.raises(TypeError, match=r"^f\(\): incompatible function arguments") as caught:
        converted(kind, value)
    assert caught.value.__cause__ is None
    assert caught.value.__context__ is None


def test_error_names_all_types_and_values():
    with pytest.raises(TypeError) as caught:
        Signature("f", STR, SIZE).convert("a", "b")
    assert str(caught.value) == (
        "f(): incompatible function arguments. The following argument types are supported:\n"
        "    1. (arg0: str, arg1: typing.SupportsInt | typing.SupportsIndex) -> None\n\nInvoked with: 'a', 'b'"
    )
