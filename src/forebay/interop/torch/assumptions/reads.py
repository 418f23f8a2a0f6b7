"""Reads of values that are not computed: the assumed ones, and the list of the lines that received them."""

from __future__ import annotations

import ast
import linecache
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache
from typing import Any

import torch

from forebay.interop.torch.assumptions.elements import Elements, assumed, is_integral
from forebay.interop.torch.devices import values
from forebay.interop.torch.devices.emulated_memory import memory_of
from forebay.interop.torch.processes import assumed_values
from forebay.runtime.allocator.metrics import ALLOCATED_BYTES

__all__ = ["ENDLESS_READS", "LOOP_READS", "fill_with_assumed", "is_assumed_equal", "read_number", "refused"]

LOOP_READS = 100  # a condition of `while` holds this often
ENDLESS_READS = 10_000  # of a line in a `while`, during which the peak does not change: the loop waits for a value
_MOST_HALVINGS = 60
_refused: ContextVar[bool] = ContextVar("_refused", default=False)
_peaks: dict[str, int] = {}  # in bytes, by line
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
    loops, count = _note(found, tensor, what)
    return _number(tensor.dtype, found, count, loops=loops)


def fill_with_assumed(target: torch.Tensor, source: torch.Tensor) -> None:
    """Write assumed values to a tensor of the CPU. Raises DataDependent in the mode "strict"."""
    found = assumed(source)
    loops, count = _note(found, source, "a copy to the CPU")
    target.fill_(_number(source.dtype, found, count, loops=loops))


def is_assumed_equal(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Return what `torch.equal` is assumed to return for two tensors of one shape: True, if nothing says otherwise."""
    found = [assumed(one), assumed(other)]
    if one.dtype == torch.bool and one.numel() == 1:
        found = [each if each.value is not None else each._replace(value=_decided(each)) for each in found]
    is_equal = None in (found[0].value, found[1].value) or found[0].value == found[1].value
    _note(Elements("equal", is_equal), one, "torch.equal")
    return is_equal


def _note(found: Elements, tensor: torch.Tensor, what: str) -> tuple[bool, int]:
    """Note the line of the program. Returns whether it is the condition of a loop, and how often it has read."""
    if values.is_strict() or _refused.get():
        raise values.needs_values(what)
    line, place = values.calling_line()
    loops = place is not None and _is_loop_condition(*place)
    count = assumed_values.note(line, _in_words(found, tensor.dtype, loops=loops))
    if count % ENDLESS_READS == 0:
        _check_loop(line, count, tensor)
    return loops, count


def _check_loop(line: str, count: int, tensor: torch.Tensor) -> None:
    """Raise DataDependent if a line is read in a `while` loop without a change of the peak."""
    peak = memory_of(tensor).opened.allocator.peak(ALLOCATED_BYTES)
    if _peaks.get(line) == peak and any(_is_in_loop(*each) for each in values.calling_places()):
        text = f"a loop reads assumed values without an end: {count:,} times at {line}"
        raise values.not_computed(f"{text}. Limit the loop, or run with --compute (mode='compute')", line)
    _peaks[line] = peak


def _number(dtype: torch.dtype, found: Elements, count: int, *, loops: bool) -> Any:
    if dtype == torch.bool:
        if found.value is not None:
            return bool(found.value)
        return count <= LOOP_READS if loops else _decided(found)
    if is_integral(dtype):
        return int(found.value) if isinstance(found.value, (bool, int, float)) else found.low or 0
    if found.value is not None:
        return found.value
    halved = 0.5 ** min(count, _MOST_HALVINGS)
    return halved if loops else 1.0 + halved


def _decided(found: Elements) -> bool:
    """Return what a comparison reads as: as that of a number near 1, or by its operator."""
    return bool(found.share) if found.share is not None else found.origin in _TRUE


def _in_words(found: Elements, dtype: torch.dtype, *, loops: bool) -> str:
    """Return what is assumed, for the list of assumptions."""
    of = f" of {found.origin}" if found.origin else ""
    if dtype == torch.bool:
        if found.value is not None:
            return f"{bool(found.value)}{of}"
        return f"True {LOOP_READS} times{of}" if loops else f"{_decided(found)}{of}"
    if is_integral(dtype):
        value = _number(dtype, found, 1, loops=loops)
        is_bounded = found.low is not None and found.high is not None
        return f"{value:,}{of}" + (f", between {found.low:,} and {found.high:,}" if is_bounded else "")
    if found.value is not None:
        return f"{found.value:.4g}{of}" if isinstance(found.value, (int, float)) else f"{found.value}{of}"
    return "a number that is halved with each read" if loops else "a number slightly above 1 that falls with each read"


@lru_cache(maxsize=1024)
def _is_loop_condition(file: str, number: int) -> bool:
    """Return True if a line belongs to the condition of a `while`."""
    return any(first <= number <= last for first, last, _ in _loops(file))


def _is_in_loop(file: str, number: int) -> bool:
    """Return True if a line is in a `while`."""
    return any(first <= number <= last for first, _, last in _loops(file))


@lru_cache(maxsize=64)
def _loops(file: str) -> tuple[tuple[int, int, int], ...]:
    """Return the first lines of each `while`, and the last ones of its condition and of the loop."""
    try:
        tree = ast.parse("".join(linecache.getlines(file)))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ()
    loops = [each for each in ast.walk(tree) if isinstance(each, ast.While)]
    return tuple((each.lineno, each.test.end_lineno or each.lineno, each.end_lineno or each.lineno) for each in loops)
