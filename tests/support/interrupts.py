"""Interrupts at chosen points of Python code, as a signal handler that raises causes them."""

from __future__ import annotations

import dis
import sys
from collections.abc import Callable
from functools import cache
from types import CodeType, FrameType
from typing import Any

__all__ = ["call_interrupted", "catch_interrupts", "count_points", "reaches_caller"]

# An interrupt before the first step of this function leaves the stream of the block current, also in PyTorch, where it
# is Python code, too. The functions that it calls are interrupted.
_AS_IN_PYTORCH = {"StreamContext.__exit__"}
_CHECKING = {"CALL", "CALL_FUNCTION_EX", "JUMP_BACKWARD", "RESUME"}  # instructions after which signal handlers run


@cache
def _points(code: CodeType) -> frozenset[int]:
    """Return the offsets of the instructions before which a handler may raise, with the same `except` as the last."""
    found, last = set(), None
    handlers = [(each.start, each.end, each.target) for each in dis.Bytecode(code).exception_entries]  # type: ignore[attr-defined]

    def handler(offset: int) -> int | None:
        return next((target for start, end, target in handlers if start <= offset < end), None)

    for each in dis.get_instructions(code):
        if last is not None and last.opname in _CHECKING and handler(last.offset) == handler(each.offset):
            found.add(each.offset)
        last = each
    return frozenset(found)


def _trace(function: Callable[[], Any], folder: str, number: int) -> int:
    """Call a function, and raise KeyboardInterrupt at a point of the files of a folder. Return how many were passed."""
    passed = 0
    caller: FrameType | None = None  # of the function that has just returned: the interpreter runs no handlers then

    def on_instruction(frame: FrameType, event: str, _: object) -> Any:
        nonlocal passed, caller
        last, caller = caller, frame.f_back if event == "return" else None
        if event == "opcode" and frame is not last and frame.f_lasti in _points(frame.f_code):
            passed += 1
            if passed == number:
                sys.settrace(None)
                raise KeyboardInterrupt
        return on_instruction

    def on_call(frame: FrameType, _event: str, _: object) -> Any:
        if folder not in frame.f_code.co_filename or frame.f_code.co_qualname in _AS_IN_PYTORCH:
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return on_instruction

    sys.settrace(on_call)
    try:
        function()
    finally:
        sys.settrace(None)
    return passed


def count_points(function: Callable[[], Any], folder: str) -> int:
    """Return at how many points of the files of a folder a call of a function may be interrupted."""
    return _trace(function, folder, 0)


def call_interrupted(function: Callable[[], Any], folder: str, number: int) -> None:
    """Call a function, and interrupt it at a point, from 1 to what `count_points` returns."""
    error: BaseException | None = None
    try:
        _trace(function, folder, number)
    except BaseException as raised:  # noqa: BLE001 - a `with` block may raise another error at its end
        error = raised
    while error is not None:
        last, error.__traceback__, error = error, None, error.__context__
        assert error is not None or isinstance(last, KeyboardInterrupt), repr(last)


def reaches_caller(function: Callable[[], Any], folder: str, number: int) -> bool:
    """Call a function, and interrupt it at a point. Return False if the interrupt was swallowed.

    A call that does not come to the point, as another call reserved more memory, is not interrupted: True.
    """
    found = False
    try:
        found = _trace(function, folder, number) < number
    except BaseException as raised:  # noqa: BLE001 -- as above
        error: BaseException | None = raised
        while error is not None:
            found = found or isinstance(error, KeyboardInterrupt)
            error.__traceback__, error = None, error.__context__
    return found


def catch_interrupts(function: Callable[[], Any], *errors: type[BaseException], levels: int = 8) -> list[BaseException]:
    """Call a function. Return the errors that it ends with, those included that arrive late, each at a level."""
    found: list[BaseException] = []
    try:
        if levels:
            found = catch_interrupts(function, *errors, levels=levels - 1)
        else:
            function()
            for _ in range(9):  # late exceptions arrive at the end of an iteration
                pass
    except errors as error:
        found.append(error)
    return found
