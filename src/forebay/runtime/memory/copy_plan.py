"""Plans of copies: the route, the queue, temporary memory, and what is kept until the copy is done."""

from __future__ import annotations

from functools import cache
from typing import Literal, NamedTuple

__all__ = ["CopyPlan", "Side", "plan_copy"]

Side = Literal["target", "source"]  # a tensor of the copy, or the current stream of its device


class CopyPlan(NamedTuple):
    """A plan of a copy.

    Routes: "direct" is ordered with the current streams of both sides. "asynchronous" is ordered with one of them, and
    with the reuse of host memory. "captured" becomes part of a graph. "staged" is a read of the source, for which the
    host waits, and a copy from the host.

    Temporary memory: a "clone" of the source is needed if it overlaps the target and the queue can only copy bytes;
    "host" is memory of the host that is not pinned.

    Kept until the copy is done, as blocks of a device's allocator are anyway: "owners" that free without waiting for
    streams, and pinned blocks; "host" is these and the memory of the host, whose owner knows of no stream; for "graph",
    the graph keeps the memory of the host.
    """

    route: Literal["direct", "asynchronous", "captured", "staged"]
    queue: Side  # whose current stream gets the copy
    temporary: Literal["none", "clone", "host"]
    keeps: Literal["nothing", "owners", "host", "graph"]
    synchronizes: bool = False  # the host waits for the copy, in other runtimes, too


@cache
def plan_copy(
    *,
    same_kind: bool = False,
    non_blocking: bool = False,
    target_visible: bool = True,
    source_visible: bool = True,
    source_on_stream: bool = True,
    captured: Side | None = None,
    pinned: Side | None = None,
    registered: bool = False,
    contiguous: bool = True,
    converts: bool = False,
) -> CopyPlan:
    """Return the plan of a copy between devices of the same kind, or between two kinds.

    A side is visible if the host can access it; an array is a source on no stream. `captured` is the side whose stream
    is captured, and `contiguous` the other one. `pinned` is the side in pinned memory, on which only captured and
    `non_blocking` copies depend; it is `registered` if no pinned allocator owns it.
    """
    if same_kind:
        return CopyPlan("direct", "target", "none" if source_visible else "clone", "owners")
    if captured:  # PyTorch copies other layouts of the host, and converts, by way of memory that is not pinned
        unstaged = pinned not in (None, captured) and contiguous and (non_blocking or not converts)
        return CopyPlan("captured", captured, "none" if unstaged else "host", "graph")
    if pinned and non_blocking:
        queue: Side = "target" if pinned == "source" else "source"
        return CopyPlan("asynchronous", queue, "none", "host" if registered else "owners")
    if not source_on_stream:  # the program may change it at once, so the host waits, or copies it first, as CUDA does
        if non_blocking and not target_visible:
            return CopyPlan("asynchronous", "target", "host", "host")
        return CopyPlan("direct", "target", "none", "host", synchronizes=True)
    if source_visible:
        return CopyPlan("direct", "target", "none", "owners", synchronizes=not non_blocking)
    if target_visible:  # only the source's queue can read the source
        return CopyPlan("direct", "source", "clone", "owners", synchronizes=not non_blocking)
    return CopyPlan("staged", "target", "host", "nothing", synchronizes=not non_blocking)
