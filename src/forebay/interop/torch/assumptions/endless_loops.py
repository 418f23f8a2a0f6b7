"""The turns of loops that read assumed values: when a read must end its loop, and loops that nothing ends."""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any, NamedTuple

import torch

from forebay.interop.torch.assumptions.program_loops import Loop, check_at, loops_around
from forebay.interop.torch.devices import values
from forebay.interop.torch.devices.emulated_memory import memory_of
from forebay.interop.torch.processes import assumed_values
from forebay.runtime.allocator.metrics import ALLOCATED_BYTES

__all__ = ["ENDLESS_READS", "LOOP_READS", "Turn", "clear", "turn_of"]

LOOP_READS = 100  # of a line before its values change so that its loop ends
ENDLESS_READS = 10_000  # of a line in a loop that only assumed values end: it has no end
_FIRST_LOOK = LOOP_READS // 2  # at the callers of a line, which takes time
_Key = tuple[str, int]  # the file and the first line of a loop


_read_lines: dict[_Key, set[int]] = {}  # lines of a loop that have read assumed values
_watches: dict[_Key, _Watch] = {}


class Turn(NamedTuple):
    """One read of a line."""

    reads: int  # of its place until now
    is_condition: bool  # the line is the condition of a `while`
    decides_loop: bool  # only assumed values end a loop around it, and one of its exits depends on this line
    is_opposite: bool
    passes: bool | None = None  # what an undecided condition is, so that the check on the line passes

    @property
    def phase(self) -> int:
        """The number of times that LOOP_READS reads have not ended the loop."""
        return (self.reads - 1) // LOOP_READS

    @property
    def ends_loop(self) -> bool:
        """True if a condition must change now, once in a while: the loop may be entered again."""
        return self.reads % (LOOP_READS + 1) == 0


def turn_of(line: str, place: _Key | None, tensor: torch.Tensor) -> Turn:
    """Return the turn of a line that is about to read. Raises DataDependent if it is in a loop without an end.

    Parameters
    ----------
    line : str
        The line of the program.
    place : tuple of str and int, optional
        The file and number of the innermost line outside PyTorch.
    tensor : torch.Tensor
        What it reads, of the device whose memory may grow.
    """
    count = assumed_values.count_read(line, place)
    is_opposite = assumed_values.choices().is_opposite_at(line)
    is_condition = place is not None and any(place[1] in loop.condition for loop in loops_around(*place))
    check = None if place is None else check_at(*place)
    decides = False
    if count >= _FIRST_LOOK and place is not None and check is None:
        decides = _decides_loop(line, tensor)
    return Turn(count, is_condition, decides, is_opposite, next(iter(check)) if check and len(check) == 1 else None)


def _decides_loop(line: str, tensor: torch.Tensor) -> bool:
    """Return True if a line decides a loop that nothing else ends, and note it for all loops around it."""
    decides = False
    for frame in values.calling_frames():
        file, number = frame.f_code.co_filename, frame.f_lineno
        for loop in loops_around(file, number):
            lines = _read_lines.setdefault((file, loop.first), set())
            lines.add(number)
            if not loop.is_ended_by(lines):
                continue
            decides |= loop.depends_on(number)
            watch = _watches.setdefault((file, loop.first), _Watch())
            if watch.note_read(frame, loop, memory_of(tensor).opened.allocator.peak(ALLOCATED_BYTES)):
                count, watch.count = watch.count, 0
                text = f"a loop reads assumed values without an end: {count:,} times at {line}"
                raise values.not_computed(f"{text}. Limit the loop, or run with --compute (mode='compute')", line)
    return decides


class _Watch:
    """The reads of a loop, as far as it was not left in between. It keeps no frame, whose tensors would live longer."""

    def __init__(self) -> None:
        self.count, self.peak, self.is_tracing = 0, 0, False

    def note_read(self, frame: FrameType, loop: Loop, peak: int) -> bool:
        """Note a read. Returns True if the loop has no end."""
        if peak > self.peak:  # a loop that needs more and more memory ends when there is none
            self.count, self.peak = 0, peak
        self.count += 1
        # A loop that is entered many times has an end each time: the last half of the reads must be in one turn.
        if self.count >= ENDLESS_READS // 2 and not self.is_tracing and sys.gettrace() is None:  # else a debugger runs
            self._trace(frame, loop)
        return self.count >= ENDLESS_READS and self.is_tracing

    def _trace(self, traced: FrameType, loop: Loop) -> None:
        def trace(frame: FrameType, event: str, _: Any) -> Any:
            if event == "return" or (event == "line" and not loop.first <= frame.f_lineno <= loop.last):
                self.count = 0
                self._stop(frame)
                return None
            return trace

        self.is_tracing = True
        sys.settrace(_ignore)
        traced.f_trace = trace

    def _stop(self, frame: FrameType) -> None:
        self.is_tracing = False
        if sys.gettrace() is _ignore:
            sys.settrace(None)
        frame.f_trace = None


def _ignore(_frame: FrameType, _event: str, _argument: Any) -> None:
    """Trace no new frames."""


def clear() -> None:
    """Forget the reads of the program before."""
    _read_lines.clear()
    _watches.clear()
