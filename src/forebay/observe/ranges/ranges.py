"""Functions that begin and end ranges, and the registry of tools."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count

from forebay.observe.ranges.range import Range, Tool
from forebay.runtime.history import annotations as history_annotations

__all__ = [
    "UNTRACKED",
    "Range",
    "Tool",
    "attach",
    "attached",
    "detach",
    "detach_in_child",
    "end",
    "mark",
    "open_ranges",
    "pop",
    "push",
    "recorded",
    "start",
]

UNTRACKED = -2  # NVTX's depth of a range that no tool tracks


class _ThreadState(threading.local):
    def __init__(self) -> None:
        self.open: list[tuple[str, int]] = []  # names and begins of nested ranges, the outermost first


_state = _ThreadState()
_tools: tuple[Tool, ...] = ()
_changing = threading.Lock()
_numbers = count(1)
_started: dict[int, tuple[str, int, int]] = {}  # by number: name, begin, thread
_looked_for_nvtx = False


def push(name: str) -> int:
    """Begin a nested range in this thread.

    Parameters
    ----------
    name : str
        The range's name.

    Returns
    -------
    int
        The range's depth, from 0; UNTRACKED (-2) without tools.
    """
    tools = _attached_tools()
    now = time.perf_counter_ns()
    depth = len(_state.open)
    _state.open.append((name, now))
    history_annotations.add_annotation(name, "START")
    for tool in tools:
        tool.push(name)
    return depth if tools else UNTRACKED


def pop() -> int:
    """End this thread's innermost nested range.

    Returns
    -------
    int
        The range's depth; UNTRACKED (-2) without tools and if no range is open.
    """
    if not _state.open:
        return UNTRACKED
    tools = _attached_tools()
    name, begin = _state.open.pop()
    ended = Range(name, begin, time.perf_counter_ns(), threading.get_ident(), len(_state.open))
    history_annotations.add_annotation(name, "END")
    for tool in tools:
        tool.pop(ended)
    return ended.depth if tools else UNTRACKED


def start(name: str) -> int:
    """Begin a range that any thread may end.

    Parameters
    ----------
    name : str
        The range's name.

    Returns
    -------
    int
        The range's number, for `end`; 0 without tools.
    """
    tools = _attached_tools()
    if not tools:
        return 0
    number = next(_numbers)
    _started[number] = name, time.perf_counter_ns(), threading.get_ident()
    for tool in tools:
        tool.start(number, name)
    return number


def end(number: int) -> None:
    """End a range begun by `start`.

    Parameters
    ----------
    number : int
        The number that `start` returned. Numbers that are unknown or already ended are ignored.
    """
    known = _started.pop(number, None)
    if known is not None:
        name, begin, thread = known
        ended = Range(name, begin, time.perf_counter_ns(), thread, -1)
        for tool in _attached_tools():
            tool.end(number, ended)


def mark(name: str) -> None:
    """Mark a moment.

    Parameters
    ----------
    name : str
        The mark's name.
    """
    now = time.perf_counter_ns()
    for tool in _attached_tools():
        tool.mark(Range(name, now, now, threading.get_ident(), -1))


def open_ranges() -> tuple[str, ...]:
    """Return the names of this thread's nested ranges, the outermost first."""
    return tuple(name for name, _ in _state.open)


@contextmanager
def attached(tool: Tool) -> Iterator[None]:
    """Context manager that attaches a tool on entry and detaches it on exit.

    Parameters
    ----------
    tool : Tool
        The tool. It observes the ranges of all threads, including the ends of ranges that began before.
    """
    attach(tool)
    try:
        yield
    finally:
        detach(tool)


def attach(tool: Tool) -> None:
    """Attach a tool until `detach`.

    Parameters
    ----------
    tool : Tool
        The tool. It observes the ranges of all threads, including the ends of ranges that began before.
    """
    global _tools  # noqa: PLW0603 -- a tuple replaced as a whole, so readers need no lock
    with _changing:
        _tools = (*_tools, tool)


def detach(tool: Tool) -> None:
    """Detach a tool.

    Parameters
    ----------
    tool : Tool
        The tool. Ignored if it is not attached.
    """
    global _tools  # noqa: PLW0603 -- as above
    with _changing:
        _tools = tuple(each for each in _tools if each is not tool)


def detach_in_child(tool: Tool) -> None:
    """Detach a tool in a forked child, where a thread of the parent may have held the lock."""
    global _changing  # noqa: PLW0603 -- as above
    _changing = threading.Lock()
    detach(tool)


class _Recorder:
    def __init__(self, most: int) -> None:
        self.found: deque[Range] = deque(maxlen=most)

    def push(self, name: str) -> None:
        """Do nothing: ranges are recorded when they end."""

    def start(self, number: int, name: str) -> None:
        """Do nothing: ranges are recorded when they end."""

    def pop(self, ended: Range) -> None:
        self.found.append(ended)

    def end(self, number: int, ended: Range) -> None:  # noqa: ARG002 -- the range has the thread
        self.found.append(ended)

    def mark(self, at: Range) -> None:
        self.found.append(at)


@contextmanager
def recorded(most: int = 1_000_000) -> Iterator[deque[Range]]:
    """Context manager that records the ranges of all threads.

    Parameters
    ----------
    most : int, default 1_000_000
        Maximum number of ranges; the newest are kept.

    Yields
    ------
    deque of Range
        The ranges and marks, in the order in which they ended.

    Examples
    --------
    >>> with recorded() as found:
    ...     _ = push("outer"), push("inner"), pop(), pop()
    >>> [(each.name, each.depth) for each in found]
    [('inner', 1), ('outer', 0)]
    """
    recorder = _Recorder(most)
    with attached(recorder):
        yield recorder.found


def _attached_tools() -> tuple[Tool, ...]:
    global _looked_for_nvtx  # noqa: PLW0603 -- once per process, when the first range is made
    if not _looked_for_nvtx:
        _looked_for_nvtx = True
        if (library := _nvtx()) is not None:
            attach(library)
    return _tools


def _nvtx() -> Tool | None:
    """Return NVTX, or None if its package is missing or no profiler is attached to it."""
    try:
        from forebay.observe.ranges.nvtx import NvtxLibrary
    except ImportError:
        return None
    library = NvtxLibrary()
    return library if library.profiler_attached else None
