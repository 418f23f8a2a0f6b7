"""The memory that a recording uses, and whether its devices have it still: to touch what is gone ends a process."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from typing import Protocol

from forebay.backends.common.draw_encoding import written_by
from forebay.spi import Recorded

__all__ = ["Footprint", "Ground"]

_Span = tuple[int, int]  # an address, and how many bytes


class Ground(Protocol):
    """A port, as one who stands on its memory sees it."""

    @property
    def losses(self) -> int: ...  # how often it gave back memory
    def memory(self) -> Iterable[_Span]: ...  # all that it has


class Footprint:
    """What the work uses of these ports' memory; what functions use nobody knows, and they keep it themselves."""

    def __init__(self, ports: Iterable[Ground], work: Iterable[Recorded]) -> None:
        self._ports = tuple(ports)
        self._losses = -1  # of memory, when it was looked last
        mine = _Pieces(self._ports)
        self._spans = [span for span in _merged(_spans_of(work)) if mine.hold(span)]

    def lost(self) -> _Span | None:
        """Some of it that is gone. Nearly free, as long as the ports gave nothing back."""
        losses = 0
        for port in self._ports:  # each replay comes by here
            losses += port.losses
        if losses == self._losses:
            return None
        now = _Pieces(self._ports)
        gone = next((span for span in self._spans if not now.hold(span)), None)
        if gone is None:
            self._losses = losses
        return gone


class _Pieces:
    """All memory of the ports, in order."""

    def __init__(self, ports: Iterable[Ground]) -> None:
        self._pieces = sorted(piece for port in ports for piece in port.memory())
        self._starts = [start for start, _ in self._pieces]

    def hold(self, span: _Span) -> bool:
        before = bisect_right(self._starts, span[0]) - 1
        if before < 0:
            return False
        start, nbytes = self._pieces[before]
        return sum(span) <= start + nbytes


def _spans_of(work: Iterable[Recorded]) -> Iterator[_Span]:
    for what, _, details, _ in work:
        match what:
            case "copy":
                yield details["to"], details["nbytes"]
                yield details["source"], details["nbytes"]
            case "fill":
                yield details["to"], details["nbytes"]
            case "draw":
                draw = details["draw"]
                yield written_by(draw)
                if draw.chances:
                    yield draw.chances, 4 * draw.elements  # of doubles the half, in the same piece
            case "set" | "if" | "while":
                yield details["address"], 1


def _merged(spans: Iterable[_Span]) -> list[_Span]:
    """Those that overlap as one, so that work on one tensor counts once."""
    found: list[_Span] = []
    for start, nbytes in sorted(spans):
        if found and start < (end := sum(found[-1])):
            found[-1] = found[-1][0], max(end, start + nbytes) - found[-1][0]
        else:
            found.append((start, nbytes))
    return found
