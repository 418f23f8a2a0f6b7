"""Record of a range, and the protocol of tools."""

from __future__ import annotations

from typing import NamedTuple, Protocol

__all__ = ["Range", "Tool"]


class Range(NamedTuple):
    """A range that has ended, or a mark, whose two times are equal. Times are `time.perf_counter_ns()`."""

    name: str
    begin: int
    end: int
    thread: int  # identifier of the thread that began it
    depth: int  # nesting depth from 0; -1 if not nested


class Tool(Protocol):
    """An observer of ranges, called in the thread that makes them. Its exceptions propagate to the program."""

    def __init__(self) -> None: ...  # not part of the protocol; typing's default has a signature of (*args, **kwargs)

    def push(self, name: str) -> None:
        """Handle the beginning of a nested range.

        Parameters
        ----------
        name : str
            The range's name.
        """

    def pop(self, ended: Range) -> None:
        """Handle the end of a nested range.

        Parameters
        ----------
        ended : Range
            The range.
        """

    def start(self, number: int, name: str) -> None:
        """Handle the beginning of a range that any thread may end.

        Parameters
        ----------
        number : int
            The range's number, unique in the process.
        name : str
            The range's name.
        """

    def end(self, number: int, ended: Range) -> None:
        """Handle the end of a range that any thread may end.

        Parameters
        ----------
        number : int
            The range's number, as passed to `start`.
        ended : Range
            The range.
        """

    def mark(self, at: Range) -> None:
        """Handle a mark.

        Parameters
        ----------
        at : Range
            The mark.
        """
