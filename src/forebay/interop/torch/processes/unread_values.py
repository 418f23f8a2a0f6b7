"""The lines that needed a value which is not computed, also where the program caught the error."""

from __future__ import annotations

from collections.abc import Callable

__all__ = ["clear", "lines", "listen", "note", "withdraw"]

_counts: dict[str, int] = {}
_listener: Callable[[], None] | None = None


def note(line: str) -> None:
    """Note that a line needed a value."""
    is_new = line not in _counts
    _counts[line] = _counts.get(line, 0) + 1
    if is_new and _listener is not None:
        _listener()


def withdraw(line: str) -> None:
    """Withdraw the last note of a line: the value was found in another way."""
    left = _counts.get(line, 0) - 1
    if left > 0:
        _counts[line] = left
    elif _counts.pop(line, None) is not None and _listener is not None:
        _listener()


def lines() -> tuple[str, ...]:
    """Return the lines, in order."""
    return tuple(_counts)


def clear() -> None:
    """Forget the lines: those of the test before, or those of the parent in a forked child."""
    _counts.clear()


def listen(function: Callable[[], None] | None) -> None:
    """Call a function when a line is noted that was not there before, or one is withdrawn."""
    global _listener  # noqa: PLW0603 -- the recorder of the process
    _listener = function
