"""A snapshot in PyTorch's schema: `torch.cuda.memory._snapshot()`'s dicts and lists (torch-semantics 3.12)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from forebay._core import dicts
from forebay.runtime.history import memory_snapshot
from forebay.runtime.settings.allocator_settings import DEFAULT
from forebay.snapshot.model import HEAP_NOTES, Action, Snapshot, State

if TYPE_CHECKING:
    from forebay.runtime.allocator.caching_allocator import Allocator
    from forebay.runtime.allocator.private_pools import PoolId
    from forebay.runtime.pinned.pinned_allocator import PinnedAllocator

__all__ = ["ACTIONS", "frames_of", "of_allocators", "of_pool", "segments", "trace"]

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


def _by_number(words: Mapping[Any, str]) -> NDArray[np.object_]:
    return np.array([words.get(number) for number in range(max(words) + 1)], object)


_ACTION_WORDS, _STATE_WORDS = _by_number(ACTIONS), _by_number(_STATES)


def of_allocators(allocators: Sequence[Allocator], pinned: PinnedAllocator | None = None) -> dict[str, Any]:
    """The whole snapshot of some devices of a kind; each history notes that somebody looked, after it was read."""
    rows: list[dict[str, Any]] = []
    traces: list[list[dict[str, Any]]] = []
    annotations: list[dict[str, Any]] = []
    for allocator in allocators:
        props = allocator.port.props
        taken = memory_snapshot.snapshot(allocator, allocator.name, props.total_bytes, labels=allocator.labels.table)
        allocator.note_look()
        pool_of = allocator.private.id_of
        rows += segments(taken, props.index, pool_of)
        traces += [[] for _ in range(props.index + 1 - len(traces))]
        traces[props.index] = trace(taken, pool_of)
        annotations += allocator.labels.annotations or ()
    settings, rules = (allocators[0].settings, allocators[0].rules()) if allocators else (DEFAULT, {})
    return {
        "segments": rows,
        "device_traces": traces,
        "allocator_settings": settings.as_snapshot() | {key: rules[key] for key in HEAP_NOTES if key in rules},
        "external_annotations": annotations,
        "host_segments": [] if pinned is None else pinned.segments(),
        "host_traces": [] if pinned is None else pinned.history.traces(),
    }


def of_pool(allocator: Allocator, pool: PoolId | None = None) -> list[dict[str, Any]]:
    """The segments of one pool, or of all; the history does not note it."""
    props = allocator.port.props
    taken = memory_snapshot.snapshot(allocator, allocator.name, props.total_bytes, trace=False)
    rows = segments(taken, props.index, allocator.private.id_of)
    return rows if pool is None else [row for row in rows if row["segment_pool_id"] == pool]


def frames_of(allocator: Allocator, address: int) -> list[dict[str, Any]] | None:
    """Where the block at that very address was allocated; None where none is, or nobody recorded it."""
    taken = memory_snapshot.snapshot(allocator, allocator.name, allocator.port.props.total_bytes, trace=False)
    blocks = taken.blocks
    found = blocks[(blocks["address"] == address) & (blocks["state"] == State.LIVE) & (blocks["stack"] != 0)]
    return _Frames(taken)[int(found["stack"][0])] if len(found) else None


class _Frames(dict[int, list[dict[str, Any]]]):
    """Stacks by number as PyTorch's lists of frames; each list is made once and shared, and so is each frame."""

    def __init__(self, snapshot: Snapshot) -> None:
        self[0] = []
        self._stacks: list[tuple[int, int]] = snapshot.stacks.tolist()
        self._frames = [
            {"filename": snapshot.strings[file], "line": line, "name": snapshot.strings[name]}
            for file, name, line in snapshot.frames.tolist()
        ]

    def __missing__(self, stack: int) -> list[dict[str, Any]]:
        found = self[stack] = []
        while stack:
            stack, frame = self._stacks[stack]
            found.append(self._frames[frame])
        return found

    def of(self, stacks: NDArray[Any]) -> list[list[dict[str, Any]]]:
        return list(map(self.__getitem__, stacks.tolist()))


class _Rows:
    """Dicts of one kind, column by column. A column whose rows are all 0 stays as the template has it."""

    def __init__(self, **template: Any) -> None:
        self._template, self._keys, self._columns = template, list[str](), list[list[Any]]()

    def add(self, key: str, column: NDArray[Any], words: Callable[[NDArray[Any]], list[Any]] | None = None) -> None:
        if column.any() or not self._columns:
            self._keys.append(key)
            self._columns.append(column.tolist() if words is None else words(column))

    def dicts(self, *, leaves: bool) -> list[dict[str, Any]]:
        """With `leaves` nothing they hold leads back to them."""
        return dicts(self._template, self._keys, self._columns, leaves)


def segments(snapshot: Snapshot, device: int, pool_of: Callable[[int], PoolId]) -> list[dict[str, Any]]:
    """Every segment with its blocks, by address."""
    frames = _Frames(snapshot)
    rows, blocks = snapshot.segments, snapshot.blocks
    if not len(rows):
        return []
    each = _Rows(address=0, size=0, requested_size=0, state="inactive", frames=frames[0])
    each.add("address", blocks["address"])
    each.add("size", blocks["nbytes"])
    each.add("requested_size", blocks["requested"])
    each.add("state", blocks["state"], lambda states: _STATE_WORDS[states.astype(np.intp)].tolist())
    each.add("frames", blocks["stack"], frames.of)
    made = each.dicts(leaves=True)

    first = np.searchsorted(blocks["segment"], np.arange(len(rows)))
    total = _Rows(
        device=device,
        address=0,
        total_size=0,
        allocated_size=0,
        active_size=0,
        requested_size=0,
        stream=0,
        segment_type="large",
        segment_pool_id=pool_of(0),
        is_expandable=False,
        frames=frames[0],
        blocks=None,
    )
    total.add("address", rows["address"])
    total.add("total_size", rows["nbytes"])
    used = blocks["state"] != State.FREE
    total.add("allocated_size", np.add.reduceat(blocks["nbytes"] * (blocks["state"] == State.LIVE), first))
    total.add("active_size", np.add.reduceat(blocks["nbytes"] * used, first))
    total.add("requested_size", np.add.reduceat(blocks["requested"] * used, first))
    total.add("stream", rows["queue"])
    total.add("segment_type", rows["small"], lambda small: ["small" if yes else "large" for yes in small.tolist()])
    total.add("segment_pool_id", rows["home"], lambda homes: list(map(pool_of, homes.tolist())))
    total.add("is_expandable", rows["growing"] != 0)
    total.add("frames", rows["stack"], frames.of)
    shown = total.dicts(leaves=False)
    ends = [*first.tolist()[1:], len(made)]
    for segment, begin, end in zip(shown, first.tolist(), ends, strict=True):
        segment["blocks"] = made[begin:end]
    return shown


def trace(snapshot: Snapshot, pool_of: Callable[[int], PoolId]) -> list[dict[str, Any]]:
    """The history, oldest first."""
    entries = snapshot.trace
    if not len(entries):
        return []
    frames = _Frames(snapshot)
    each = _Rows(
        action="",
        addr=0,
        size=0,
        stream=0,
        time_us=0,
        pool_id=pool_of(0),
        compile_context="N/A",
        user_metadata="",
        frames=frames[0],
    )
    each.add("action", entries["action"], lambda actions: _ACTION_WORDS[actions].tolist())
    each.add("addr", entries["address"])
    each.add("size", entries["nbytes"])
    each.add("stream", entries["queue"])
    each.add("time_us", entries["time_ns"] // 1000)
    each.add("pool_id", entries["home"], lambda homes: list(map(pool_of, homes.tolist())))
    labels = [("", ""), *snapshot.labels]
    each.add("compile_context", entries["note"], lambda notes: [labels[note][0] or "N/A" for note in notes.tolist()])
    each.add("user_metadata", entries["note"], lambda notes: [labels[note][1] for note in notes.tolist()])
    each.add("frames", entries["stack"], frames.of)
    shown = each.dicts(leaves=True)
    for at in np.flatnonzero(entries["stack"] == 0).tolist():
        del shown[at]["frames"]
    for at in np.flatnonzero(entries["action"] == Action.OOM).tolist():
        shown[at]["device_free"] = shown[at].pop("addr")
    return shown
