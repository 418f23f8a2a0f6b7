"""The choices among assumed values, the lines that received some, what was assumed, and how often."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from forebay._base.assumption_choices import AssumptionChoices
from forebay._base.verdicts import Assumption

__all__ = ["choices", "choose", "clear", "count", "count_read", "found", "listen", "note"]

_MOST = 1000  # lines that are kept


_texts: dict[str, str] = {}  # by line
_counts: dict[str, int] = {}
# How often each place has read below a line of the program: a library has many under the one line that calls it, each
# with loops and numbers of its own.
_reads: Counter[tuple[str, tuple[str, int] | None]] = Counter()
_listener: Callable[[], None] | None = None
_choices = AssumptionChoices()


def choices() -> AssumptionChoices:
    """Return the choices of this process."""
    return _choices


def choose(chosen: AssumptionChoices) -> None:
    """Set the choices of this process and of the children that it forks."""
    global _choices  # noqa: PLW0603 -- of the process
    _choices = chosen


def note(line: str, text: str) -> None:
    """Note that a line has received an assumed value."""
    is_new = line not in _counts
    if is_new and len(_counts) >= _MOST:
        return
    _counts[line] = times = _counts.get(line, 0) + 1
    _texts.setdefault(line, text)
    if _listener is not None and (is_new or times & (times - 1) == 0):  # else each read would write a file
        _listener()


def count(line: str) -> int:
    """Return how often a line has received an assumed value."""
    return _counts.get(line, 0)


def count_read(line: str, place: tuple[str, int] | None) -> int:
    """Return how often a place, a file and a number, has read below a line of the program, with this time."""
    _reads[line, place] += 1
    return _reads[line, place]


def found() -> tuple[Assumption, ...]:
    """Return the assumptions, in order."""
    return tuple(Assumption(line, _texts.get(line, ""), count) for line, count in tuple(_counts.items()))


def clear() -> None:
    """Forget them: those of the test before, or those of the parent in a forked child."""
    _counts.clear()
    _reads.clear()
    _texts.clear()


def listen(function: Callable[[], None] | None) -> None:
    """Call a function when a line is noted that was not there before, and when its count has doubled."""
    global _listener  # noqa: PLW0603 -- the recorder of the process
    _listener = function
