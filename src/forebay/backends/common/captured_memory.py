"""Device memory used by a captured graph, checked before each launch: access to unmapped memory ends the process."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from typing import Final, Protocol

from forebay.backends.common.draw_encoding import written_range
from forebay.backends.common.strided_copy_encoding import touched_spans
from forebay.spi import CapturedNode

__all__ = ["RELEASED", "CapturedMemory", "MemorySource"]

RELEASED: Final = (  # of an address and a size in bytes
    "The graph uses {1} bytes at {0:#x}, but the device has released that memory since the capture: "
    "keep the tensors that a graph reads and writes alive for as long as it is replayed."
)

_Span = tuple[int, int]  # address and size in bytes


class MemorySource(Protocol):
    """A port as the owner of memory."""

    @property
    def release_count(self) -> int: ...  # number of times that memory was released
    def memory(self) -> Iterable[_Span]: ...  # all memory of the device


class CapturedMemory:
    """The ranges of the ports' memory that nodes access. Host functions are excluded: they keep their memory alive."""

    def __init__(self, ports: Iterable[MemorySource], work: Iterable[CapturedNode]) -> None:
        self._ports = tuple(ports)
        self._checked_at = -1  # sum of the release counts at the last check
        mapped = _MappedMemory(self._ports)
        self._spans = [span for span in _merged(_spans_of(work)) if mapped.contains(span)]

    def lost(self) -> _Span | None:
        """Return a range that is no longer mapped, if any. Cheap if the ports have not released memory since."""
        count = 0
        for port in self._ports:  # a plain loop, as every replay runs it
            count += port.release_count
        if count == self._checked_at:
            return None
        mapped = _MappedMemory(self._ports)
        lost = next((span for span in self._spans if not mapped.contains(span)), None)
        if lost is None:
            self._checked_at = count
        return lost


class _MappedMemory:
    """All memory of the ports, sorted by address."""

    def __init__(self, ports: Iterable[MemorySource]) -> None:
        self._spans = sorted(span for port in ports for span in port.memory())
        self._starts = [start for start, _ in self._spans]

    def contains(self, span: _Span) -> bool:
        before = bisect_right(self._starts, span[0]) - 1
        if before < 0:
            return False
        start, nbytes = self._spans[before]
        return sum(span) <= start + nbytes


def _spans_of(work: Iterable[CapturedNode]) -> Iterator[_Span]:
    for what, _, details, _ in work:
        match what:
            case "copy":
                yield details["to"], details["nbytes"]
                yield details["source"], details["nbytes"]
            case "fill":
                yield details["to"], details["nbytes"]
            case "draw":
                draw = details["draw"]
                yield written_range(draw)
                if draw.probabilities:
                    yield draw.probabilities, 4 * draw.elements  # half of it for doubles, which lie in the same segment
            case "strided":
                yield from touched_spans(details["copy"])
            case "set" | "if" | "while":
                yield details["address"], 1


def _merged(spans: Iterable[_Span]) -> list[_Span]:
    """Merge overlapping ranges, so that work on one tensor counts once."""
    found: list[_Span] = []
    for start, nbytes in sorted(spans):
        if found and start < (end := sum(found[-1])):
            found[-1] = found[-1][0], max(end, start + nbytes) - found[-1][0]
        else:
            found.append((start, nbytes))
    return found
