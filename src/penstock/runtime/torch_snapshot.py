"""A snapshot in PyTorch's schema: `torch.cuda.memory._snapshot()`'s dicts and lists (torch-semantics 3.12)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from penstock.runtime import history
from penstock.runtime.settings import DEFAULT
from penstock.snapshot.model import Action, Snapshot, State

if TYPE_CHECKING:
    from penstock.runtime.allocator import Allocator
    from penstock.runtime.pinned_allocator import PinnedAllocator
    from penstock.runtime.private_pools import PoolId

__all__ = ["ACTIONS", "of_allocators", "segments", "trace"]

ACTIONS = {
    Action.TAKE: "alloc",
    Action.GIVE: "free_requested",
    Action.GIVEN: "free_completed",
    Action.RESERVE: "segment_alloc",
    Action.RELEASE: "segment_free",
    Action.OOM: "oom",
    Action.MAP: "segment_map",
    Action.UNMAP: "segment_unmap",
    Action.LOOK: "snapshot",
    Action.ANNOTATE: "annotate",
}
_STATES = {State.FREE: "inactive", State.LIVE: "active_allocated", State.AWAITING: "active_pending_free"}

_Frames = Callable[[int], list[dict[str, Any]]]


def of_allocators(allocators: Sequence[Allocator], pinned: PinnedAllocator | None = None) -> dict[str, Any]:
    """The whole snapshot of some devices of a kind; each history notes that somebody looked, after it was read."""
    rows: list[dict[str, Any]] = []
    traces: list[list[dict[str, Any]]] = []
    annotations: list[dict[str, Any]] = []
    for allocator in allocators:
        props = allocator.port.props
        taken = history.snapshot(allocator, allocator.name, props.total_bytes, labels=allocator.labels.table)
        allocator.note_look()
        pool_of = allocator.private.id_of
        rows += segments(taken, props.index, pool_of)
        traces += [[] for _ in range(props.index + 1 - len(traces))]
        traces[props.index] = trace(taken, pool_of)
        annotations += allocator.labels.annotations or ()
    settings = allocators[0].settings if allocators else DEFAULT
    return {
        "segments": rows,
        "device_traces": traces,
        "allocator_settings": settings.as_snapshot(),
        "external_annotations": annotations,
        "host_segments": [] if pinned is None else pinned.segments(),
        "host_traces": [] if pinned is None else pinned.history.traces(),
    }


def _frames_of(snapshot: Snapshot) -> _Frames:
    """Stacks by number as PyTorch's lists of frames; each list is made once and shared."""
    known: dict[int, list[dict[str, Any]]] = {0: []}

    def frames(stack: int) -> list[dict[str, Any]]:
        if stack not in known:
            known[stack] = [{"filename": f.file, "line": f.line, "name": f.name} for f in snapshot.stack(stack)]
        return known[stack]

    return frames


def segments(snapshot: Snapshot, device: int, pool_of: Callable[[int], PoolId]) -> list[dict[str, Any]]:
    """Every segment with its blocks, by address."""
    frames = _frames_of(snapshot)
    shown = [
        {
            "device": device,
            "address": address,
            "total_size": nbytes,
            "allocated_size": 0,
            "active_size": 0,
            "requested_size": 0,
            "stream": queue,
            "segment_type": "small" if small else "large",
            "segment_pool_id": pool_of(home),
            "is_expandable": bool(growing),
            "frames": frames(stack),
            "blocks": [],
        }
        for address, nbytes, queue, stack, small, home, growing in snapshot.segments.tolist()
    ]
    for address, nbytes, requested, stack, segment, state in snapshot.blocks.tolist():
        home = shown[segment]
        if state != State.FREE:
            home["active_size"] += nbytes
            home["requested_size"] += requested
            home["allocated_size"] += nbytes if state == State.LIVE else 0
        home["blocks"].append(
            {
                "address": address,
                "size": nbytes,
                "requested_size": requested,
                "state": _STATES[State(state)],
                "frames": frames(stack),
            }
        )
    return shown


def trace(snapshot: Snapshot, pool_of: Callable[[int], PoolId]) -> list[dict[str, Any]]:
    """The history, oldest first."""
    frames = _frames_of(snapshot)
    names: Mapping[int, str] = {int(action): name for action, name in ACTIONS.items()}
    entries = []
    for time_ns, address, nbytes, queue, stack, action, home, note in snapshot.trace.tolist():
        entry = {
            "action": names[action],
            "device_free" if action == Action.OOM else "addr": address,
            "size": nbytes,
            "stream": queue,
            "time_us": time_ns // 1000,
            "pool_id": pool_of(home),
        }
        context, metadata = snapshot.labels[note - 1] if note else ("", "")
        entry |= {"compile_context": context or "N/A", "user_metadata": metadata}
        if stack:
            entry["frames"] = frames(stack)
        entries.append(entry)
    return entries
