"""Rewritten functions of kernels."""

from __future__ import annotations

import inspect
import textwrap
from types import SimpleNamespace

import pytest

pytest.importorskip("torch")  # which the package imports

from forebay.interop.torch.triton.kernel_code import Language, executable, is_rewritten

found: list[object] = []


def _find(called):
    found.append(called)
    return called


def _method(owner, name):
    found.append(name)
    return getattr(owner, name)


LANGUAGE = Language(_find, _method, lambda value: ("tensor", value) if isinstance(value, float) else value)


def decorated(function):
    lines, first = inspect.getsourcelines(function)
    return SimpleNamespace(
        fn=function, src=textwrap.dedent("".join(lines)), raw_src=lines, starting_line_number=first
    )  # fmt: skip


def test_calls_are_found_by_the_language():
    def kernel(text: str, size: undefined = 2) -> undefined:  # noqa: F821 -- annotations are not evaluated
        return len(text.upper()) + max(size, 1)

    found.clear()
    assert executable(decorated(kernel), LANGUAGE)("abc") == 5
    assert found == [len, "upper", max]


def test_numbers_that_are_assigned_again_become_tensors():
    def kernel():
        once, whole, again = 1.0, 2, 0.0
        constant = 3.0
        total = 0.5
        for _ in range(1):
            total = again
        return constant, total, once, whole, again

    assert executable(decorated(kernel), LANGUAGE)() == (3.0, ("tensor", 0.0), 1.0, 2, 0.0)


def test_closures_defaults_and_lines_are_those_of_the_source():
    variable = 1

    def kernel(x=7):
        return int(x) + variable

    made = executable(decorated(kernel), LANGUAGE)
    assert made() == 8
    variable = 2
    assert made() == 9
    assert executable(decorated(kernel), LANGUAGE) is made
    assert made.__code__.co_filename == __file__
    assert made.__code__.co_firstlineno == kernel.__code__.co_firstlineno
    assert is_rewritten(made.__code__)
    assert made.__globals__ is globals()
