"""Named ranges of time that a program marks in itself. Tools listen; each thread's open ranges are known at any time.

NVTX is the common tool: where its package is installed (the extra `nvtx`) and a profiler listens to it, it hears of
everything. `recorded` is one of ours. Where nobody listens, a range has no number and no depth, as in NVTX. A history
that records annotations (`forebay.memory.record_history`) has the nested ranges among them.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from typing import NamedTuple, Protocol

from forebay.runtime.history import annotations as history_annotations

__all__ = [
    "UNTRACKED",
    "Range",
    "Tool",
    "attach",
    "attached",
    "detach",
    "end",
    "forget_in_child",
    "mark",
    "open_here",
    "pop",
    "push",
    "recorded",
    "start",
]

UNTRACKED = -2  # NVTX's number for the depth of a range that nobody keeps


class Range(NamedTuple):
    """A range that has ended, or a mark, whose two times are one. Times are `time.perf_counter_ns()`."""

    name: str
    begin: int
    end: int
    thread: int  # which began it
    depth: int  # of nested ranges; -1 for others


class Tool(Protocol):
    """Who hears of ranges, in the thread that makes them. What it raises, the program sees."""

    def push(self, name: str) -> None: ...  # nested ranges
    def pop(self, ended: Range) -> None: ...
    def start(self, number: int, name: str) -> None: ...  # those that may end anywhere, in any thread
    def end(self, number: int, ended: Range) -> None: ...
    def mark(self, at: Range) -> None: ...


class _Here(threading.local):
    def __init__(self) -> None:
        self.open: list[tuple[str, int]] = []


_here = _Here()
_tools: tuple[Tool, ...] = ()
_changing = threading.Lock()
_numbers = count(1)
_started: dict[int, tuple[str, int, int]] = {}
_looked_for_nvtx = False


def push(name: str) -> int:
    """Begin a range inside of this thread's innermost one; its depth from 0 on, or UNTRACKED where nobody listens."""
    listening = _listeners()
    now = time.perf_counter_ns()
    depth = len(_here.open)
    _here.open.append((name, now))
    history_annotations.mark(name, "START")
    for tool in listening:
        tool.push(name)
    return depth if listening else UNTRACKED


def pop() -> int:
    """End this thread's innermost range; its depth, or UNTRACKED where nobody listens or none is open."""
    if not _here.open:
        return UNTRACKED
    listening = _listeners()
    name, begin = _here.open.pop()
    ended = Range(name, begin, time.perf_counter_ns(), threading.get_ident(), len(_here.open))
    history_annotations.mark(name, "END")
    for tool in listening:
        tool.pop(ended)
    return ended.depth if listening else UNTRACKED


def start(name: str) -> int:
    """Begin a range that any thread may end; its number, 0 where nobody listens."""
    listening = _listeners()
    if not listening:
        return 0
    number = next(_numbers)
    _started[number] = name, time.perf_counter_ns(), threading.get_ident()
    for tool in listening:
        tool.start(number, name)
    return number


def end(number: int) -> None:
    """End the range that `start` gave the number to. A number that is none, or was ended, means nothing."""
    known = _started.pop(number, None)
    if known is not None:
        name, begin, thread = known
        ended = Range(name, begin, time.perf_counter_ns(), thread, -1)
        for tool in _listeners():
            tool.end(number, ended)


def mark(name: str) -> None:
    """A moment."""
    now = time.perf_counter_ns()
    for tool in _listeners():
        tool.mark(Range(name, now, now, threading.get_ident(), -1))


def open_here() -> tuple[str, ...]:
    """The names of this thread's open ranges, the outermost first."""
    return tuple(name for name, _ in _here.open)


@contextmanager
def attached(tool: Tool) -> Iterator[None]:
    """Let the tool hear of the ranges of all threads, meanwhile; also of ends whose beginning it has not heard of."""
    attach(tool)
    try:
        yield
    finally:
        detach(tool)


def attach(tool: Tool) -> None:
    """As `attached`, until `detach`."""
    global _tools  # noqa: PLW0603 -- read without a lock: a tuple is whole at any time
    with _changing:
        _tools = (*_tools, tool)


def detach(tool: Tool) -> None:
    global _tools  # noqa: PLW0603 -- as above
    with _changing:
        _tools = tuple(each for each in _tools if each is not tool)


def forget_in_child(tool: Tool) -> None:
    """For a fork handler: `detach`, where another thread of the parent may have been at it."""
    global _changing  # noqa: PLW0603 -- as above
    _changing = threading.Lock()
    detach(tool)


class _Recorder:
    def __init__(self, most: int) -> None:
        self.found: deque[Range] = deque(maxlen=most)

    def push(self, name: str) -> None:
        """Nothing to keep before it ends."""

    def start(self, number: int, name: str) -> None:
        """As `push`."""

    def pop(self, ended: Range) -> None:
        self.found.append(ended)

    def end(self, number: int, ended: Range) -> None:  # noqa: ARG002 -- who started it is in the range
        self.found.append(ended)

    def mark(self, at: Range) -> None:
        self.found.append(at)


@contextmanager
def recorded(most: int = 1_000_000) -> Iterator[deque[Range]]:
    """All ranges that end meanwhile, and marks, in the order of their ends; of more than `most`, the last ones.

    >>> with recorded() as found:
    ...     _ = push("outer"), push("inner"), pop(), pop()
    >>> [(each.name, each.depth) for each in found]
    [('inner', 1), ('outer', 0)]
    """
    recorder = _Recorder(most)
    with attached(recorder):
        yield recorder.found


def _listeners() -> tuple[Tool, ...]:
    global _looked_for_nvtx  # noqa: PLW0603 -- once for the process, when the first range is made
    if not _looked_for_nvtx:
        _looked_for_nvtx = True
        if (library := _nvtx()) is not None:
            attach(library)
    return _tools


def _nvtx() -> Tool | None:
    """NVTX, where its package is installed and a profiler listens to it."""
    try:
        from forebay.observe.ranges.nvtx import NvtxLibrary
    except ImportError:
        return None
    library = NvtxLibrary()
    return library if library.heard else None
