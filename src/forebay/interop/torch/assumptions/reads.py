"""Reads of values that are not computed: the assumed ones, and the list of the lines that received them."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch

from forebay.interop.torch.assumptions.elements import Elements, Reading, assumed, is_integral, reading_of
from forebay.interop.torch.assumptions.endless_loops import LOOP_READS, Turn, turn_of
from forebay.interop.torch.assumptions.ranks import ranks_of
from forebay.interop.torch.assumptions.routing import shares_of
from forebay.interop.torch.devices import host_values, values
from forebay.interop.torch.processes import assumed_values

__all__ = ["copy_assumed", "fill_with_assumed", "is_assumed_equal", "read_number", "refused"]

_MOST_HALVINGS = 60
_LARGE = 1000.0
_DISTRIBUTIONS = os.path.join("torch", "distributions", "distribution.py")  # noqa: PTH118 -- a text
_MOST_FRAMES = 12  # between a read and the function that reads: PyTorch's and forebay's
_LOOP_NUMBERS = (0.0, 32768.0, -32768.0)  # that end loops: one of them is beyond most limits, and none is below itself
_refused: ContextVar[bool] = ContextVar("_refused", default=False)
_TRUE = {"lt", "le", "less", "less_equal", "all"}  # where nothing else decides


@contextmanager
def refused() -> Iterator[None]:
    """Raise DataDependent at reads in this block: an existing file of the user is not replaced by assumed values."""
    token = _refused.set(True)
    try:
        yield
    finally:
        _refused.reset(token)


def read_number(tensor: torch.Tensor, what: str) -> Any:
    """Return what is read in place of the one element of a tensor. Raises DataDependent in the mode "strict"."""
    found = assumed(tensor)
    if tensor.dtype == torch.bool and _checks_a_distribution():
        _note(Elements("the checks of a distribution", True), tensor, what)
        return True
    turn = _note(found, tensor, what)
    if (chosen := _by_place(tensor, found, turn)) is not None:
        return chosen.item()
    return _number(tensor.dtype, found, turn, _reading_of(tensor, found))


def _checks_a_distribution() -> bool:
    """Return True if torch.distributions asks whether arguments are valid: no choice of values may refuse them."""
    frame = sys._getframe(1)  # the documented way to walk the stack
    for _ in range(_MOST_FRAMES):
        if frame.f_code.co_filename.endswith(_DISTRIBUTIONS):
            return True
        if frame.f_back is None:
            break
        frame = frame.f_back
    return False


def fill_with_assumed(target: torch.Tensor, source: torch.Tensor) -> None:
    """Write assumed values to a tensor of the CPU. Raises DataDependent in the mode "strict"."""
    found = assumed(source)
    turn = _note(found, source, "a copy to the CPU")
    if (chosen := _by_place(source, found, turn)) is not None:
        target.copy_(chosen)
    else:
        target.fill_(_number(source.dtype, found, turn, _reading_of(source, found)))


def copy_assumed(target: torch.Tensor, source: torch.Tensor) -> None:
    """Write assumed values to a tensor of the CPU: a large one of numbers receives them when the host reads it.

    Raises DataDependent in the mode "strict".
    """
    is_recorded = source.is_floating_point() and host_values.is_large(target) and host_values.covers(target)
    if not is_recorded or values.is_strict() or _refused.get():
        fill_with_assumed(target, source)
        return
    found, dtype = assumed(source), source.dtype
    reading = _reading_of(source, found)

    def read(elements: torch.Tensor) -> None:
        line, _ = values.calling_line()
        is_opposite = assumed_values.choices().is_opposite_at(line)
        turn = Turn(assumed_values.count(line) + 1, False, False, is_opposite)
        assumed_values.note(line, _in_words(found, dtype, turn))
        elements.fill_(_number(dtype, found, turn, reading))

    host_values.defer(target, None, discards=True, read=read)


def is_assumed_equal(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Return what `torch.equal` is assumed to return for two tensors of one shape: True, if nothing says otherwise."""
    found = [assumed(one), assumed(other)]
    if one.dtype == torch.bool and one.numel() == 1:
        found = [each if each.value is not None else each._replace(value=_by_operator(each)) for each in found]
    is_equal = None in (found[0].value, found[1].value) or found[0].value == found[1].value
    decided = Elements("equal", is_equal)
    turn = _note(decided, one, "torch.equal", torch.bool)
    return bool(_number(torch.bool, decided, turn))


def _note(found: Elements, tensor: torch.Tensor, what: str, dtype: torch.dtype | None = None) -> Turn:
    """Note the line of the program, and return its turn."""
    if values.is_strict() or _refused.get():
        raise values.needs_values(what)
    line, place = values.calling_line()
    turn = turn_of(line, place, tensor)
    assumed_values.note(line, _in_words(found, dtype or tensor.dtype, turn))
    return turn


def _reading_of(tensor: torch.Tensor, found: Elements) -> Reading | None:
    """Return the number that stands for the elements, if they are unknown floating-point numbers."""
    return reading_of(tensor, found) if found.value is None and tensor.is_floating_point() else None


def _by_place(tensor: torch.Tensor, found: Elements, turn: Turn) -> torch.Tensor | None:
    """Return elements that depend on their place in memory, on the CPU; None if all read as the same."""
    shares = shares_of(tensor, found, turn.is_opposite)
    if shares is not None or (turn.decides_loop and turn.phase):
        return shares
    return ranks_of(tensor, found, turn.is_opposite)


def _number(dtype: torch.dtype, found: Elements, turn: Turn, reading: Reading | None = None) -> Any:
    """Return an assumed value: Note [Opposite choices], Note [Loops that only assumed values end].

    The number in `reading` is returned again, or set: Note [Unchanged numbers].
    """
    if dtype == torch.bool:
        value = _decided(found, turn) if found.value is None else bool(found.value)
        if found.value is None and turn.is_condition:
            value = True
        ends = turn.ends_loop if turn.decides_loop or (turn.is_condition and found.value is None) else False
        return value is (turn.is_opposite is ends)
    if is_integral(dtype):
        return _integer(dtype, found, turn)
    if turn.decides_loop and turn.phase:
        return _LOOP_NUMBERS[(turn.phase - 1) % len(_LOOP_NUMBERS)]
    if found.value is not None:
        return _complement(found.value) if turn.is_opposite else found.value
    if reading is None:
        return _next_number(turn)
    if reading.number is None:
        reading.number = _next_number(turn)
    return reading.number


def _next_number(turn: Turn) -> float:
    """Return an unknown number that is read for the first time."""
    halved = 0.5 ** min(turn.reads, _MOST_HALVINGS)
    if turn.is_opposite:
        return 0.0 if turn.is_condition else _LARGE * (1 - halved)
    return halved if turn.is_condition else 1.0 + halved


def _integer(dtype: torch.dtype, found: Elements, turn: Turn) -> int:
    value = int(found.value) if isinstance(found.value, (bool, int, float)) else found.low or 0
    low = value if found.low is None else found.low
    high = low + 1 if found.high is None else found.high
    if turn.decides_loop and turn.phase:  # the largest, then each: one of them may end it
        after = turn.reads - LOOP_READS - 1
        span = high - low + 1 if found.high is not None else torch.iinfo(dtype).max
        return low + (after - 1) % span if after else high
    return (low if value == high else high) if turn.is_opposite else value


def _complement(value: complex) -> complex:
    if isinstance(value, bool):
        return not value
    return 1 - value if isinstance(value, (int, float)) and 0 <= value <= 1 else 0.0


def _decided(found: Elements, turn: Turn) -> bool:
    """Return what a condition reads as: so that a check passes, as that of a number near 1, or by its operator."""
    return _by_operator(found) if turn.passes is None else turn.passes


def _by_operator(found: Elements) -> bool:
    return bool(found.share) if found.share is not None else found.origin in _TRUE


def _in_words(found: Elements, dtype: torch.dtype, turn: Turn) -> str:
    """Return what is assumed, for the list of assumptions."""
    of = f" of {found.origin}" if found.origin else ""
    if dtype == torch.bool:
        if found.value is not None:
            return f"{bool(found.value)}{of}"
        return f"True {LOOP_READS} times{of}" if turn.is_condition else f"{_decided(found, turn)}{of}"
    if found.total is not None:
        routing = assumed_values.choices().routing
        return f"parts of {found.total:,}{of}, " + ("all in the first" if routing == "worst" else "equal ones")
    if is_integral(dtype):
        value = _integer(dtype, found, turn)
        if found.row is not None and found.value is None:
            return f"different integers{of}, between {found.low:,} and {found.high:,}"
        is_bounded = found.low is not None and found.high is not None
        return f"{value:,}{of}" + (f", between {found.low:,} and {found.high:,}" if is_bounded else "")
    if found.value is not None:
        return f"{found.value:.4g}{of}" if isinstance(found.value, (int, float)) else f"{found.value}{of}"
    return (
        "a number that is halved with each read"
        if turn.is_condition
        else "a number slightly above 1 that falls with each read"
    )
