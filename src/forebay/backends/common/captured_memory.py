"""Memory used by a captured graph, checked before each launch: access to unmapped memory ends the process.

Note [Decommit protocol] (runtime/allocator/expandable_segments.py) states when the check is made.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from typing import Generic, Protocol, TypeVar

from forebay.backends.common._releases import ReleaseLog
from forebay.backends.common.cuda_errors import ILLEGAL_ADDRESS
from forebay.backends.common.draw_encoding import written_range
from forebay.backends.common.strided_copy_encoding import touched_spans
from forebay.errors import DeviceError
from forebay.spi import CapturedNode

__all__ = ["CapturedMemory", "MemorySource"]

_RELEASED = (  # of an address and a size in bytes
    "The graph uses {1} bytes at {0:#x}, but the device has released that memory since the capture: "
    "keep the tensors that a graph reads and writes alive for as long as it is replayed."
)

_Span = tuple[int, int]  # address and size in bytes


class MemorySource(Protocol):
    """A port as the owner of memory.

    It notes a release in `releases` after `memory` lacks the range, and before the range is unmapped.
    """

    @property
    def releases(self) -> ReleaseLog:
        """The releases of the port's memory."""

    def memory(self) -> Iterable[_Span]:
        """Return address and size in bytes of each range of memory that graphs may use."""


class _LaunchQueue(Protocol):
    """A queue of a launch."""

    def driver_error(self, code: int, call: str) -> DeviceError: ...  # the error for CUDA's error code


_P = TypeVar("_P", bound=MemorySource)


class CapturedMemory(Generic[_P]):
    """The ranges of the ports' memory that a captured graph accesses, to be checked before each launch.

    Access to unmapped memory would end the process. Memory that host functions use is not included: they keep it alive.

    Parameters
    ----------
    ports : iterable of MemorySource
        The ports of the captured queues.
    work : iterable of CapturedNode
        The nodes.
    releases : iterable of tuple of int, optional
        Releases during the capture: number of nodes before it, address and size in bytes.
    inner : iterable of CapturedMemory, optional
        Memory of the graphs that became parts of this one.
    """

    def __init__(
        self,
        ports: Iterable[_P],
        work: Iterable[CapturedNode],
        releases: Iterable[tuple[int, int, int]] = (),
        inner: Iterable[CapturedMemory[_P]] = (),
    ) -> None:
        self.checked_at: int = -1  # sum of the logs' counts when nothing was lost
        mapped = _MappedMemory(every := tuple(ports))
        used = [(number, span) for number, node in enumerate(work) for span in _spans_of(node)]
        spans = _merged(span for _, span in used)
        gone = _released(used, spans, releases)
        self.spans: list[_Span] = [
            span for span in spans if mapped.contains(span) or any(_overlap(span, each) for each in gone)
        ]
        for graph in inner:  # what was released before it became a part
            self.spans += [span for span in graph.spans if not mapped.contains(span)]
        own = [port for port in every if any(map(_MappedMemory((port,)).contains, self.spans))]
        # A lost range may be mapped again by any port.
        self.ports: tuple[_P, ...] = tuple(own) if all(map(mapped.contains, self.spans)) else every
        self.logs: tuple[ReleaseLog, ...] = tuple(port.releases for port in self.ports)

    def check(self, queue: _LaunchQueue) -> None:
        """Check that the graph can be launched. Cheap if the ports have not released memory since the last check.

        Parameters
        ----------
        queue : Queue
            The queue of the launch.

        Raises
        ------
        DeviceError
            If a port has released memory that the graph uses: code 700.
        """
        if (lost := self.lost()) is not None:
            error = queue.driver_error(ILLEGAL_ADDRESS, "launch")
            error.add_note(_RELEASED.format(*lost))
            raise error

    def lost(self) -> _Span | None:
        """Return address and size in bytes of a range that the graph uses and that is not mapped any more, or None."""
        count = 0
        for log in self.logs:  # a plain loop, as every replay runs it
            count += log.count
        if count == self.checked_at:
            return None
        mapped = _MappedMemory(self.ports)
        lost = next((span for span in self.spans if not mapped.contains(span)), None)
        if lost is None:
            self.checked_at = count
        return lost


class _MappedMemory:
    """All memory of the ports, sorted by address."""

    def __init__(self, ports: Iterable[MemorySource]) -> None:
        self.spans = sorted(span for port in ports for span in port.memory())
        self._starts = [start for start, _ in self.spans]

    def contains(self, span: _Span) -> bool:
        before = bisect_right(self._starts, span[0]) - 1
        if before < 0:
            return False
        start, nbytes = self.spans[before]
        return sum(span) <= start + nbytes


def _spans_of(node: CapturedNode) -> Iterator[_Span]:
    what, _, details, _ = node
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


def _released(
    used: list[tuple[int, _Span]], spans: list[_Span], releases: Iterable[tuple[int, int, int]]
) -> list[_Span]:
    """Return the ranges that nodes access and that were released after the node was captured."""
    starts = [start for start, _ in spans]
    found = []
    for before, start, nbytes in releases:
        last = bisect_right(starts, start + nbytes - 1) - 1
        if last >= 0 and _overlap(spans[last], (start, nbytes)):  # few are: the others need no walk over the nodes
            found += [span for number, span in used if number < before and _overlap(span, (start, nbytes))]
    return found


def _overlap(one: _Span, other: _Span) -> bool:
    return one[0] < sum(other) and other[0] < sum(one)


def _merged(spans: Iterable[_Span]) -> list[_Span]:
    """Merge overlapping ranges, so that work on one tensor counts once."""
    found: list[_Span] = []
    for start, nbytes in sorted(spans):
        if found and start < (end := sum(found[-1])):
            found[-1] = found[-1][0], max(end, start + nbytes) - found[-1][0]
        else:
            found.append((start, nbytes))
    return found
