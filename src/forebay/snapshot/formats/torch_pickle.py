"""PyTorch snapshots: conversion of the pickled dicts and lists of `torch.cuda.memory._snapshot()` into columns.

Versions 1.13 to 2.15 are supported (semantics 3.12): values missing in older versions are empty, reconstructed, or
defaults. The type and range of every value are checked before use, also before hashing: the hash of a nested tuple may
take exponential time, and numbers with equal hashes can be chosen. Unknown keys are ignored.
"""

from __future__ import annotations

import io
from array import array
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from forebay.records.model import BLOCK, ENTRY, FRAME, HEAP_NOTES, SEGMENT, STACK, Action, Snapshot, State
from forebay.snapshot.formats import safe_pickle
from forebay.snapshot.formats.budget import BadSnapshot, Budget
from forebay.snapshot.formats.known_notes import known_settings
from forebay.snapshot.formats.native import check
from forebay.snapshot.formats.torch_addresses import pools_by_address, rebase
from forebay.snapshot.formats.torch_values import (
    Rows,
    as_dicts,
    as_items,
    as_text,
    codes_of,
    column_of,
    flags_of,
    require,
    values_of,
)

if TYPE_CHECKING:
    from forebay.snapshot.formats.byte_source import ByteSource
    from forebay.snapshot.formats.torch_columns import Columns

__all__ = ["PINNED", "parse", "read", "snapshots"]

PINNED = "pinned"  # the device that stands for pinned memory

_ACTIONS = {
    "alloc": Action.ALLOC,
    "free_requested": Action.FREE_REQUESTED,
    "free_completed": Action.FREE_COMPLETED,
    "segment_alloc": Action.RESERVE,
    "segment_free": Action.RELEASE,
    "oom": Action.OOM,
    "segment_map": Action.MAP,
    "segment_unmap": Action.UNMAP,
    "snapshot": Action.SNAPSHOT,
    "annotate": Action.ANNOTATE,
    "user_defined": Action.ANNOTATE,  # 2.3 to 2.6: a span of the program
}
_STATES = {
    "inactive": State.FREE,
    "active_allocated": State.LIVE,
    "active_pending_free": State.PENDING_FREE,
    "active_awaiting_free": State.PENDING_FREE,  # older versions
}
_SEGMENT_TYPES = {"small": 1, "large": 0}
_MAX_DEVICES = 1024
_MAX_LINE = (1 << 32) - 1
_SEGMENT_COST, _ROW_COST, _NODE_COST = 400, 200, 250  # bytes of memory while a row of a table is made


def parse(data: bytes) -> tuple[Snapshot, ...]:
    """Parse the snapshots in an untrusted pickle. Raises BadSnapshot."""
    from forebay.snapshot.formats.byte_source import ByteSource

    return read(ByteSource(io.BytesIO(data)))


def read(source: ByteSource) -> tuple[Snapshot, ...]:
    """Read the snapshots in an untrusted file with a pickle. Raises BadSnapshot.

    What PyTorch writes becomes columns while it is read; any other pickle of plain values is unpickled as a whole. If
    the file is truncated, the note "truncated" states it.
    """
    from forebay.snapshot.formats.torch_columns import Columns, Odd

    try:
        columns = Columns(source, _ACTIONS)
        found = snapshots(columns.value, columns.budget, columns)
    except Odd:
        source.rewind()
        data = source.read_all()
        budget = source.budget()
        return snapshots(safe_pickle.load(data, budget), budget)
    if columns.truncated:
        note = f"the file ends after {source.position:,} bytes, inside the pickle: entries and settings may be missing"
        found = tuple(replace(each, notes=MappingProxyType({**each.notes, "truncated": note})) for each in found)
    return found


def snapshots(value: Any, budget: Budget | None = None, columns: Columns | None = None) -> tuple[Snapshot, ...]:
    """Convert an unpickled value to one snapshot for each device, by index. Raises BadSnapshot for another schema.

    `capacity` is 0, as PyTorch does not record it. The notes hold the settings and the ids of the private pools. Pinned
    memory follows as the device "pinned". Addresses from 2^62 are relative to the note "address_base". `budget` limits
    the memory; by default it is unlimited. `columns` has the histories and the stacks if the value was read by it.
    """
    budget = budget or Budget()
    if isinstance(value, list):  # before 2.0: segments without history
        value = {"segments": value}
    require(isinstance(value, dict) and "segments" in value, "not a PyTorch snapshot: it has no segments")
    segments = as_dicts(value["segments"], "segments")
    traces = [_history(trace, columns) for trace in as_items(value.get("device_traces", []), "device_traces")]
    history = _history(value.get("host_traces", []), columns)
    recorded = [trace for trace in (*traces, history) if len(trace)]
    require(len({*map(id, recorded)}) == len(recorded), "two devices share their history")
    owner = column_of(segments, "device", "a segment's", "i8", 0).tolist()
    require(all(0 <= device < _MAX_DEVICES for device in owner) and len(traces) <= _MAX_DEVICES, "too many devices")
    by_device = defaultdict[int, list[Mapping[str, Any]]](list)
    for segment, device in zip(segments, owner, strict=True):
        by_device[device].append(segment)
    devices = sorted({*by_device, *(device for device, trace in enumerate(traces) if len(trace))}) or [0]
    settings = known_settings(value.get("allocator_settings"))
    result = []
    for device in devices:
        trace = traces[device] if device < len(traces) else []
        result.append(_snapshot(f"cuda:{device}", by_device[device], trace, settings, budget, columns))
    pinned = as_dicts(value.get("host_segments", []), "host_segments")
    if len(pinned) or len(history):
        result.append(_snapshot(PINNED, pinned, history, {}, budget, columns))
    return tuple(result)


def _history(value: Any, columns: Columns | None) -> Any:
    return value if columns is not None and columns.has(value) else as_dicts(value, "a trace")


def _snapshot(
    name: str,
    segments: Rows,
    trace: Any,
    settings: Mapping[str, Any],
    budget: Budget,
    columns: Columns | None,
) -> Snapshot:
    in_columns = columns if columns is not None and columns.has(trace) else None
    budget.charge(_SEGMENT_COST * len(segments) + (0 if in_columns else _ROW_COST * len(trace)))
    pools, labels = _Pools(), _Interner(1, ("", ""))
    stacks = columns or _StackTable(budget)
    segment_rows, block_rows = _segments(segments, stacks, pools, budget)
    if in_columns is not None:
        entries, has_pools = in_columns.entries(trace, pools.number, labels.number)
    else:
        entries, has_pools = _trace(trace, stacks, pools, labels), any("pool_id" in entry for entry in trace[:1])
    if not has_pools and pools.ids:  # older versions record the pool only for segments
        entries["home"] = pools_by_address(entries, segment_rows)
    base = rebase(segment_rows, block_rows, entries)
    stack_rows, frames, strings = stacks.compact(segment_rows, block_rows, entries)
    notes: dict[str, Any] = {"from": "PyTorch"} | ({"address_base": hex(base)} if base else {})
    if settings:
        notes["allocator_settings"] = {key: value for key, value in settings.items() if key not in HEAP_NOTES}
        notes |= {key: settings[key] for key in HEAP_NOTES if key in settings}
    if pools.ids:
        notes["pools"] = {str(number): list(pool) for number, pool in enumerate(pools.ids, 1)}
    if has_pools:
        notes["order"] = "arrival"  # PyTorch 2.10+: the oldest segment wins among equal free blocks
    snapshot = Snapshot(
        device=name,
        capacity=0,
        taken_at_ns=int(entries["time_ns"].max(initial=0)),
        segments=segment_rows,
        blocks=block_rows,
        trace=entries,
        stacks=stack_rows,
        frames=frames,
        strings=strings,
        notes=MappingProxyType(notes),
        labels=tuple(labels.numbers)[1:],
    )
    check(snapshot)
    return snapshot


def _segments(
    segments: Rows, stacks: Columns | _StackTable, pools: _Pools, budget: Budget
) -> tuple[NDArray[np.void], NDArray[np.void]]:
    """Return the segment table and the block table, by address."""
    rows = np.zeros(len(segments), SEGMENT)
    rows["address"] = column_of(segments, "address", "a segment's")
    rows["nbytes"] = column_of(segments, "total_size", "a segment's")
    rows["queue"] = column_of(segments, "stream", "a segment's", default=0)
    rows["stack"] = [stacks.number(segment.get("frames", ())) for segment in segments]
    rows["small"] = codes_of(segments, "segment_type", _SEGMENT_TYPES, "large", "a segment's")
    rows["home"] = pools.column([segment.get("segment_pool_id", (0, 0)) for segment in segments])
    rows["growing"] = flags_of(segments, "is_expandable")
    order = np.argsort(rows["address"], kind="stable")

    by_segment = [as_dicts(segment.get("blocks"), "a segment's blocks") for segment in segments]
    lengths = np.array([len(group) for group in by_segment], np.int64)
    distinct = {id(group) for group in by_segment}
    require(len(distinct) == len(by_segment) or not lengths.sum(), "two segments share their blocks")
    budget.charge(_ROW_COST * int(lengths.sum()))
    flat = [_with_latest(block) if "history" in block else block for group in by_segment for block in group]
    blocks = np.zeros(len(flat), BLOCK)
    blocks["nbytes"] = column_of(flat, "size", "a block's")
    segment_of = np.repeat(np.arange(len(segments)), lengths)
    blocks["address"] = _addresses(flat, blocks["nbytes"], rows["address"][segment_of], segment_of)
    blocks["requested"] = column_of(flat, "requested_size", "a block's", default=blocks["nbytes"])
    blocks["stack"] = [stacks.number(block.get("frames", ())) for block in flat]
    blocks["state"] = codes_of(flat, "state", _STATES, None, "a block's")
    sorted_row = np.empty(len(order), np.int64)
    sorted_row[order] = np.arange(len(order))
    blocks["segment"] = sorted_row[segment_of]
    return rows[order], blocks[np.argsort(blocks["address"], kind="stable")]


def _with_latest(block: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a block of PyTorch 2.0 or older with the frames and the size of its latest allocation.

    The history of a block has the allocations that overlapped it, the latest first.
    """
    latest = as_dicts(block["history"], "a block's history")[:1]
    if not latest or block.get("state") == "inactive":
        return block
    own = {"frames": latest[0].get("frames", ()), "requested_size": latest[0].get("real_size", block.get("size"))}
    return {**own, **block}


def _addresses(
    blocks: Rows, sizes: NDArray[Any], start: NDArray[Any], segment_of: NDArray[np.int64]
) -> NDArray[np.uint64]:
    """Return the blocks' addresses; before 2.1 they are not recorded, and each block follows the previous one."""
    if blocks and "address" in blocks[0]:
        return column_of(blocks, "address", "a block's")
    ends = np.cumsum(sizes, dtype=np.uint64)
    first = np.searchsorted(segment_of, segment_of)  # the first block of the same segment
    addresses: NDArray[np.uint64] = start + (ends - sizes) - (ends - sizes)[first]
    return addresses


def _trace(trace: Rows, stacks: Columns | _StackTable, pools: _Pools, labels: _Interner) -> NDArray[np.void]:
    words = values_of(trace, "action", "an entry's", None)
    require(set(map(type, words)) <= {str}, "an entry's action is not a string")
    if not set(words) <= _ACTIONS.keys():  # annotations and actions of later versions do not change the memory
        trace = [entry for entry, word in zip(trace, words, strict=True) if word in _ACTIONS]
        words = [word for word in words if word in _ACTIONS]
    rows = np.zeros(len(trace), ENTRY)
    rows["action"] = [_ACTIONS[word] for word in words]
    oom_rows = np.flatnonzero(rows["action"] == Action.OOM)
    rows["address"] = column_of(trace, "addr", "an entry's", default=0)
    rows["address"][oom_rows] = column_of(
        [trace[at] for at in oom_rows.tolist()], "device_free", "an entry's", default=0
    )
    rows["nbytes"] = column_of(trace, "size", "an entry's")
    rows["queue"] = column_of(trace, "stream", "an entry's", default=0)
    times = column_of(trace, "time_us", "an entry's", default=0)
    require(bool((times < 1 << 52).all()), "an entry's time is out of range")
    rows["time_ns"] = times * np.uint64(1000)
    number = stacks.number
    rows["stack"] = [number(entry.get("frames", ())) for entry in trace]
    if trace and "pool_id" in trace[0]:
        rows["home"] = pools.column([entry.get("pool_id", (0, 0)) for entry in trace])
    annotations = [values_of(trace, key, "an entry's", "") for key in ("compile_context", "user_metadata")]
    if any(map(any, annotations)):
        require(all(set(map(type, texts)) <= {str} for texts in annotations), "a text is not a string")
        rows["note"] = [labels.number(label) for label in zip(*annotations, strict=True)]
    return rows


class _Interner:
    """Consecutive numbers for distinct values; `first` has the number `start` - 1."""

    def __init__(self, start: int, first: Any) -> None:
        self.numbers: dict[Any, int] = {first: start - 1}

    def number(self, value: Any) -> int:
        return self.numbers.setdefault(value, len(self.numbers))


class _Pools:
    """Consecutive numbers for the ids of private pools, from 1; the id (0, 0) has the number 0."""

    def __init__(self) -> None:
        self.ids: list[tuple[int, int]] = []
        self._numbers: dict[bytes, int] = {bytes(16): 0}  # by bytes, as numbers with equal hashes could be chosen

    def column(self, values: Sequence[Any]) -> NDArray[np.uint32]:
        """Return the number of each id."""
        wrong = "a pool's id is not a pair of numbers"
        require(set(map(type, values)) <= {tuple, list} and set(map(len, values)) <= {2}, wrong)
        ids = np.zeros((len(values), 2), "<u8")
        for side in range(2):
            column = [value[side] for value in values]
            require(set(map(type, column)) <= {int}, wrong)
            try:
                ids[:, side] = column
            except OverflowError:
                raise BadSnapshot("a pool's id is out of range") from None
        numbers = np.zeros(len(values), np.uint32)
        private = np.flatnonzero(ids.any(axis=1))
        numbers[private] = [self.number((first, second)) for first, second in ids[private].tolist()]
        return numbers

    def number(self, pool: tuple[int, int]) -> int:
        """Return the number of one id, whose parts have at most 64 bits."""
        key = pool[0].to_bytes(8, "little") + pool[1].to_bytes(8, "little")
        if (number := self._numbers.setdefault(key, len(self._numbers))) > len(self.ids):
            self.ids.append(pool)
        return number


class _StackTable:
    """The stack tree built from lists of frames, innermost first. A list that was seen before costs one lookup."""

    def __init__(self, budget: Budget) -> None:
        self.budget = budget
        self._nodes: dict[tuple[int, int], int] = {}
        self._frames: dict[tuple[str, str, int], int] = {}
        self._row_by_list: dict[int, int] = {}
        self._row_by_frames: dict[bytes, int] = {b"": 0}  # by the ids of the frames
        self._number_by_frame: dict[int, int] = {}

    def number(self, frames: Any) -> int:
        # Every object whose id is a key here is part of the value being parsed, so ids are not reused.
        if (known := self._row_by_list.get(id(frames))) is not None:
            return known
        require(isinstance(frames, list | tuple), "frames are not a list")
        key = array("Q", map(id, frames)).tobytes()
        if (row := self._row_by_frames.get(key)) is None:
            row, before = 0, len(self._nodes) + len(self._frames)
            for frame in reversed(frames):
                row = self._nodes.setdefault((row, self._frame(frame)), len(self._nodes) + 1)
            self._row_by_frames[key] = row
            self.budget.charge(_ROW_COST + len(key) + _NODE_COST * (len(self._nodes) + len(self._frames) - before))
        self._row_by_list[id(frames)] = row
        return row

    def _frame(self, frame: Any) -> int:
        if (known := self._number_by_frame.get(id(frame))) is None:
            require(isinstance(frame, dict), "a frame is not a dict")
            line = frame.get("line", 0)
            require(type(line) is int, "a frame's line is not a number")
            key = (as_text(frame.get("filename", "")), as_text(frame.get("name", "")), min(max(line, 0), _MAX_LINE))
            known = self._number_by_frame[id(frame)] = self._frames.setdefault(key, len(self._frames))
        return known

    def compact(self, *_: NDArray[np.void]) -> tuple[NDArray[np.void], NDArray[np.void], tuple[str, ...]]:
        """Return the stacks, frames and strings. The tables that refer to the stacks use all of them."""
        strings = _Interner(0, None)
        strings.numbers.clear()
        rows = [(strings.number(file), strings.number(name), line) for file, name, line in self._frames]
        return np.array([(0, 0), *self._nodes], STACK), np.array(rows, FRAME), tuple(strings.numbers)
