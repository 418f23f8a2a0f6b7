"""Snapshots in PyTorch's schema: the dicts and lists of `torch.cuda.memory._snapshot()`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from forebay._core import make_dicts
from forebay.records.model import HEAP_NOTES, Action, Snapshot, State
from forebay.runtime.history import memory_snapshot

if TYPE_CHECKING:
    from forebay.runtime.base.pool_ids import PoolId
    from forebay.runtime.history.recorded_pool import RecordedPool
    from forebay.runtime.settings.allocator_settings import AllocatorSettings

__all__ = ["ACTIONS", "allocation_frames", "segments", "snapshot_allocators", "snapshot_pool", "trace"]

ACTIONS = {
    Action.ALLOC: "alloc",
    Action.FREE_REQUESTED: "free_requested",
    Action.FREE_COMPLETED: "free_completed",
    Action.RESERVE: "segment_alloc",
    Action.RELEASE: "segment_free",
    Action.OOM: "oom",
    Action.MAP: "segment_map",
    Action.UNMAP: "segment_unmap",
    Action.SNAPSHOT: "snapshot",
    Action.ANNOTATE: "annotate",
}
_STATES = {State.FREE: "inactive", State.LIVE: "active_allocated", State.PENDING_FREE: "active_pending_free"}


def _name_array(names: Mapping[Any, str]) -> NDArray[np.object_]:
    return np.array([names.get(number) for number in range(max(names) + 1)], object)


_ACTION_NAMES, _STATE_NAMES = _name_array(ACTIONS), _name_array(_STATES)


def snapshot_allocators(
    allocators: Sequence[RecordedPool], settings: AllocatorSettings, host: Mapping[str, Any] = MappingProxyType({})
) -> dict[str, Any]:
    """Return the snapshot of devices of one kind; each history gets a "snapshot" entry after it was read.

    `host` has the parts of pinned host memory (`PinnedAllocator.snapshot`).
    """
    rows: list[dict[str, Any]] = []
    traces: list[list[dict[str, Any]]] = []
    annotations: list[dict[str, Any]] = []
    for allocator in allocators:
        props = allocator.port.props
        taken = _seen(
            allocator,
            memory_snapshot.snapshot(allocator, allocator.name, props.total_bytes, labels=allocator.labels.table),
        )
        if allocator.program_records:
            allocator.record_snapshot_event()
        pool_of = allocator.id_of
        rows += segments(taken, props.index, pool_of)
        traces += [[] for _ in range(props.index + 1 - len(traces))]
        traces[props.index] = trace(taken, pool_of)
        annotations += allocator.labels.annotations or ()
    rules = allocators[0].snapshot_notes() if allocators else {}
    return {
        "segments": rows,
        "device_traces": traces,
        "allocator_settings": settings.as_snapshot() | {key: rules[key] for key in HEAP_NOTES if key in rules},
        "external_annotations": annotations,
        "host_segments": [],
        "host_traces": [],
        **host,
    }


def snapshot_pool(allocator: RecordedPool, pool: PoolId | None = None) -> list[dict[str, Any]]:
    """Return the segments of one pool, or of all, without adding a history entry."""
    props = allocator.port.props
    taken = _taken(allocator)
    rows = segments(taken, props.index, allocator.id_of)
    return rows if pool is None else [row for row in rows if row["segment_pool_id"] == pool]


def allocation_frames(allocator: RecordedPool, address: int) -> list[dict[str, Any]] | None:
    """Return the stack that allocated the live block at exactly `address`; None if unknown."""
    taken = _taken(allocator)
    blocks = taken.blocks
    matches = blocks[(blocks["address"] == address) & (blocks["state"] == State.LIVE) & (blocks["stack"] != 0)]
    return _Frames(taken)[int(matches["stack"][0])] if len(matches) else None


def _taken(allocator: RecordedPool) -> Snapshot:
    """Return the segments and blocks, with the stacks that the program has recorded."""
    total, is_part = allocator.port.props.total_bytes, allocator.program is not None
    return _seen(allocator, memory_snapshot.snapshot(allocator, allocator.name, total, trace=is_part))


def _seen(allocator: RecordedPool, taken: Snapshot) -> Snapshot:
    """Return what the program has recorded: Note [Two recordings]."""
    return taken if allocator.program is None else allocator.program.view(taken)


class _Frames(dict[int, list[dict[str, Any]]]):
    """Lists of frames by stack number, in PyTorch's schema, which has unqualified names of functions.

    Each list and each frame is made once and shared.
    """

    def __init__(self, snapshot: Snapshot) -> None:
        self[0] = []
        self._stacks: list[tuple[int, int]] = snapshot.stacks.tolist()
        self._frames = [
            {"filename": snapshot.strings[file], "line": line, "name": snapshot.strings[name].rpartition(".")[2]}
            for file, name, line in snapshot.frames.tolist()
        ]

    def __missing__(self, stack: int) -> list[dict[str, Any]]:
        frames = self[stack] = []
        while stack:
            stack, frame = self._stacks[stack]
            frames.append(self._frames[frame])
        return frames

    def lists(self, stacks: NDArray[Any]) -> list[list[dict[str, Any]]]:
        return list(map(self.__getitem__, stacks.tolist()))


class _DictBuilder:
    """Builder of similar dicts, column by column. A column of zeros keeps the value of the template."""

    def __init__(self, **template: Any) -> None:
        self._template, self._keys, self._columns = template, list[str](), list[list[Any]]()

    def add(self, key: str, column: NDArray[Any], convert: Callable[[NDArray[Any]], list[Any]] | None = None) -> None:
        if column.any() or not self._columns:
            self._keys.append(key)
            self._columns.append(column.tolist() if convert is None else convert(column))

    def dicts(self, *, leaves: bool) -> list[dict[str, Any]]:
        """Return the dicts; `leaves` promises that their values do not refer back to them (no reference cycles)."""
        return make_dicts(self._template, self._keys, self._columns, leaves)


def segments(snapshot: Snapshot, device: int, pool_of: Callable[[int], PoolId]) -> list[dict[str, Any]]:
    """Return every segment with its blocks, ordered by address."""
    frames = _Frames(snapshot)
    rows, blocks = snapshot.segments, snapshot.blocks
    if not len(rows):
        return []
    block_dicts = _DictBuilder(address=0, size=0, requested_size=0, state="inactive", frames=frames[0])
    block_dicts.add("address", blocks["address"])
    block_dicts.add("size", blocks["nbytes"])
    block_dicts.add("requested_size", blocks["requested"])
    block_dicts.add("state", blocks["state"], lambda states: _STATE_NAMES[states.astype(np.intp)].tolist())
    block_dicts.add("frames", blocks["stack"], frames.lists)
    block_rows = block_dicts.dicts(leaves=True)

    first = np.searchsorted(blocks["segment"], np.arange(len(rows)))
    segment_dicts = _DictBuilder(
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
    segment_dicts.add("address", rows["address"])
    segment_dicts.add("total_size", rows["nbytes"])
    used = blocks["state"] != State.FREE
    segment_dicts.add("allocated_size", np.add.reduceat(blocks["nbytes"] * (blocks["state"] == State.LIVE), first))
    segment_dicts.add("active_size", np.add.reduceat(blocks["nbytes"] * used, first))
    segment_dicts.add("requested_size", np.add.reduceat(blocks["requested"] * used, first))
    segment_dicts.add("stream", rows["queue"])
    segment_dicts.add(
        "segment_type", rows["small"], lambda column: ["small" if small else "large" for small in column.tolist()]
    )
    segment_dicts.add("segment_pool_id", rows["pool"], lambda pool_numbers: list(map(pool_of, pool_numbers.tolist())))
    segment_dicts.add("is_expandable", rows["growing"] != 0)
    segment_dicts.add("frames", rows["stack"], frames.lists)
    segment_rows = segment_dicts.dicts(leaves=False)
    ends = [*first.tolist()[1:], len(block_rows)]
    for segment, begin, end in zip(segment_rows, first.tolist(), ends, strict=True):
        segment["blocks"] = block_rows[begin:end]
    return segment_rows


def trace(snapshot: Snapshot, pool_of: Callable[[int], PoolId]) -> list[dict[str, Any]]:
    """Return the history, oldest entry first."""
    entries = snapshot.trace
    if not len(entries):
        return []
    frames = _Frames(snapshot)
    entry_dicts = _DictBuilder(
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
    entry_dicts.add("action", entries["action"], lambda actions: _ACTION_NAMES[actions].tolist())
    entry_dicts.add("addr", entries["address"])
    entry_dicts.add("size", entries["nbytes"])
    entry_dicts.add("stream", entries["queue"])
    entry_dicts.add("time_us", entries["time_ns"] // 1000)
    entry_dicts.add("pool_id", entries["pool"], lambda pool_numbers: list(map(pool_of, pool_numbers.tolist())))
    labels = [("", ""), *snapshot.labels]
    entry_dicts.add(
        "compile_context", entries["note"], lambda notes: [labels[note][0] or "N/A" for note in notes.tolist()]
    )
    entry_dicts.add("user_metadata", entries["note"], lambda notes: [labels[note][1] for note in notes.tolist()])
    entry_dicts.add("frames", entries["stack"], frames.lists)
    rows = entry_dicts.dicts(leaves=True)
    for at in np.flatnonzero(entries["stack"] == 0).tolist():
        del rows[at]["frames"]
    for at in np.flatnonzero(entries["action"] == Action.OOM).tolist():
        rows[at]["device_free"] = rows[at].pop("addr")
    return rows
