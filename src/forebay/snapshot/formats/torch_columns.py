"""Third pass over a PyTorch snapshot: the checked values of a device become the tables of a `Snapshot`.

Values that versions before 2.10 do not record are reconstructed here. See Note [Snapshots are read in three passes].
"""

from __future__ import annotations

from array import array
from collections.abc import Hashable, Iterable, Mapping
from types import MappingProxyType
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from forebay.records.model import BLOCK, ENTRY, FRAME, HEAP_NOTES, SEGMENT, STACK, Snapshot
from forebay.snapshot.formats.budget import Budget
from forebay.snapshot.formats.external_annotations import ANNOTATIONS
from forebay.snapshot.formats.forward_frames import Forward, Forwards, forward_path
from forebay.snapshot.formats.generated_frames import place_originals
from forebay.snapshot.formats.known_notes import FORWARD_FRAMES, FRAME_DETAILS, INTERNAL_METADATA
from forebay.snapshot.formats.native import check
from forebay.snapshot.formats.torch_addresses import pools_by_address, rebase
from forebay.snapshot.formats.torch_checked import (
    NODE_COST,
    Blocks,
    Device,
    Entries,
    Segments,
    StackLists,
    StreamEntries,
)
from forebay.snapshot.formats.torch_decode import HAS_POOL, Tables

__all__ = ["snapshot_of"]

_Table = NDArray[np.void]
_Label = tuple[str, str, str]  # compile_context, user_metadata, internal_metadata


class _Stacks(NamedTuple):
    stacks: _Table
    frames: _Table
    strings: tuple[str, ...]
    forwards: Forwards
    details: dict[int, dict[str, str]]  # of generated code, by row of `frames`


def snapshot_of(device: Device) -> Snapshot:
    """Return the snapshot of a device.

    `capacity` is 0, as PyTorch does not record it. The notes hold the settings and the ids of the private pools.
    Addresses from 2^62 are relative to the note "address_base". Raises BadSnapshot if the snapshot is inconsistent, and
    Odd if a text is not UTF-8.
    """
    pools, labels = _Pools(), _Numbers[_Label]([("", "", "")])
    segments, blocks = _segments(device.segments, pools), _blocks(device.blocks, device.segments)
    order = np.argsort(segments["address"], kind="stable")
    sorted_row = np.empty(len(order), np.int64)
    sorted_row[order] = np.arange(len(order))
    blocks["segment"] = sorted_row[device.blocks.segments]
    segments, blocks = segments[order], blocks[np.argsort(blocks["address"], kind="stable")]
    if isinstance(device.entries, Entries):
        entries, has_pools = _entries(device.entries, pools, labels), device.entries.state_pools
    else:
        entries, has_pools = _stream_entries(device.entries, pools, labels)
    if not has_pools and pools.ids:  # older versions record the pool only for segments
        entries["pool"] = pools_by_address(entries, segments)
    base = rebase(segments, blocks, entries)
    if isinstance(device.stacks, StackLists):
        tree = _built_stacks(device.stacks, device.budget, segments, blocks, entries)
    else:
        tree = _used_stacks(device.stacks, segments, blocks, entries)
    frames, strings, details = place_originals(tree.frames, tree.strings, tree.details)
    snapshot = Snapshot(
        device=device.name,
        capacity=0,
        taken_at_ns=int(entries["time_ns"].max(initial=0)),
        segments=segments,
        blocks=blocks,
        trace=entries,
        stacks=tree.stacks,
        frames=frames,
        strings=strings,
        notes=MappingProxyType(
            _notes(device, base, pools.ids, has_pools=has_pools) | _row_notes(tree.forwards, details, labels)
        ),
        labels=tuple((context, own) for context, own, _ in labels.numbers)[1:],
    )
    check(snapshot)
    return snapshot


def _notes(device: Device, base: int, pools: list[tuple[int, int]], *, has_pools: bool) -> dict[str, Any]:
    notes: dict[str, Any] = {"from": "PyTorch"} | ({"address_base": hex(base)} if base else {})
    if settings := device.settings:
        notes["allocator_settings"] = {key: value for key, value in settings.items() if key not in HEAP_NOTES}
        notes |= {key: settings[key] for key in HEAP_NOTES if key in settings}
    if pools:
        notes["pools"] = {str(number): list(pool) for number, pool in enumerate(pools, 1)}
    if has_pools:
        notes["order"] = "arrival"  # PyTorch 2.10+: the oldest segment wins among equal free blocks
    if device.annotations:
        notes[ANNOTATIONS] = [dict(each) for each in device.annotations]
    return notes | ({"truncated": device.truncated} if device.truncated else {})


def _row_notes(forwards: Forwards, details: Mapping[int, dict[str, Any]], labels: _Numbers[_Label]) -> dict[str, Any]:
    """Return the notes about single rows, by number as text, as JSON needs."""
    found = {
        FORWARD_FRAMES: {str(row): {"own": each.own, "texts": list(each.texts)} for row, each in forwards.items()},
        FRAME_DETAILS: {str(row): each for row, each in details.items()},
        INTERNAL_METADATA: {str(row): internal for row, (*_, internal) in enumerate(labels.numbers) if internal},
    }
    return {key: rows for key, rows in found.items() if rows}


def _segments(values: Segments, pools: _Pools) -> _Table:
    rows = np.zeros(len(values.addresses), SEGMENT)
    rows["address"], rows["nbytes"], rows["queue"] = values.addresses, values.sizes, values.streams
    rows["stack"], rows["small"], rows["growing"] = values.stacks, values.small, values.expandable
    rows["pool"] = pools.column(values.pools)
    return rows


def _blocks(values: Blocks, segments: Segments) -> _Table:
    rows = np.zeros(len(values.sizes), BLOCK)
    rows["nbytes"], rows["requested"] = values.sizes, values.requested
    rows["stack"], rows["state"] = values.stacks, values.states
    rows["address"] = _following(values, segments.addresses) if values.addresses is None else values.addresses
    return rows


def _following(values: Blocks, starts: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return addresses by which each block follows the previous one of its segment."""
    ends = np.cumsum(values.sizes, dtype=np.uint64)
    first = np.searchsorted(values.segments, values.segments)  # the first block of the same segment
    begins = ends - values.sizes
    addresses: NDArray[np.uint64] = starts[values.segments] + begins - begins[first]
    return addresses


def _entries(values: Entries, pools: _Pools, labels: _Numbers[_Label]) -> _Table:
    rows = np.zeros(len(values.actions), ENTRY)
    rows["action"], rows["stack"] = values.actions, values.stacks
    rows["address"], rows["nbytes"], rows["queue"] = values.addresses, values.sizes, values.streams
    rows["time_ns"] = values.times * np.uint64(1000)
    if values.pools is not None:
        rows["pool"] = pools.column(values.pools)
    if values.labels is not None:
        rows["note"] = [labels.number(label) for label in zip(*values.labels, strict=True)]
    return rows


def _stream_entries(values: StreamEntries, pools: _Pools, labels: _Numbers[_Label]) -> tuple[_Table, bool]:
    """Return the entries, renumbered for one device, and whether they state their pools. Drops unknown actions."""
    found, tables = values.rows, values.tables
    has_pools = bool(len(found)) and bool(found["action"][0] & HAS_POOL)
    found["action"] &= HAS_POOL - 1
    if not found["action"].all():
        found = found[found["action"] != 0]
    numbers = {row: pools.number((first, second)) for row, (first, second) in _used(found["pool"], tables.pools)}
    found["pool"] = _renumbered(found["pool"], numbers, len(tables.pools))
    notes = {row: labels.number(_label(tables, *pair)) for row, pair in _used(found["note"], tables.notes)}
    found["note"] = _renumbered(found["note"], notes, len(tables.notes))
    return found, has_pools


def _label(tables: Tables, context: int, metadata: int) -> _Label:
    context_, own, internal = (
        tables.text(number - 1) if number else "" for number in (context, metadata & 0xFFFFFFFF, metadata >> 32)
    )
    return context_, own, internal


def _used(column: NDArray[Any], pairs: NDArray[np.uint64]) -> list[tuple[int, tuple[int, int]]]:
    """Return the rows of pairs that a column refers to from 1, with the pairs."""
    numbers = np.unique(column) if len(column) < len(pairs) else np.flatnonzero(np.bincount(column, minlength=1))
    rows = numbers[numbers > 0] - 1
    return [(row, (first, second)) for row, (first, second) in zip(rows.tolist(), pairs[rows].tolist(), strict=True)]


def _renumbered(column: NDArray[Any], numbers: Mapping[int, int], count: int) -> NDArray[np.uint32]:
    table = np.zeros(count + 1, np.uint32)
    table[[row + 1 for row in numbers]] = list(numbers.values())
    found: NDArray[np.uint32] = table[column]
    return found


def _built_stacks(lists: StackLists, budget: Budget, *tables: _Table) -> _Stacks:
    """Build the stack tree of lists of frames; makes the stacks of the tables, which are lists, rows of the tree."""
    nodes: dict[tuple[int, int, int], int] = {}  # parent, frame, and number of a list with forward frames
    row_of_list = array("I")
    known_frames, forwards = dict(lists.frames), Forwards()

    def node(row: int, frame: int, forward: int = 0) -> int:
        if (found := nodes.get((row, frame, forward))) is None:
            budget.charge(NODE_COST)
            found = nodes[row, frame, forward] = len(nodes) + 1
        return found

    for number, own in enumerate(lists):
        texts = lists.forward.get(number, ())
        callers = [known_frames.setdefault((*frame, ()), len(known_frames)) for frame in forward_path(texts)]
        row, path = 0, [*callers, *own]
        for frame in path[:-1]:
            row = node(row, frame)
        row_of_list.append(node(row, path[-1], number if texts else 0) if path else 0)
        if texts:
            forwards[row_of_list[-1]] = Forward(len(own), texts)
    rows = np.frombuffer(row_of_list, np.uint32)
    for table in tables:
        table["stack"] = rows[table["stack"]]
    strings = _Numbers[str]()
    places = [(strings.number(file), strings.number(name), line) for file, name, line, _ in known_frames]
    details = {row: dict(each) for row, (*_, each) in enumerate(known_frames) if each}
    stacks = np.array([(0, 0), *((parent, frame) for parent, frame, _ in nodes)], STACK)
    return _Stacks(stacks, np.array(places, FRAME), tuple(strings.numbers), forwards, details)


def _used_stacks(tree: Tables, *tables: _Table) -> _Stacks:
    """Return the stacks, frames and strings that the tables of one device use; renumbers their stacks."""
    is_used = np.zeros(len(tree.parents), bool)
    is_used[0] = True
    for table in tables:
        is_used[table["stack"]] = True
    rows = np.flatnonzero(is_used)
    while len(rows):
        rows = np.unique(tree.parents[rows])
        rows = rows[~is_used[rows]]
        is_used[rows] = True
    used = np.flatnonzero(is_used)
    number = np.empty(len(is_used), np.uint32)  # not zeroed, as there may be 1,000 devices that use few of the rows
    number[used] = np.arange(len(used), dtype=np.uint32)
    for table in tables:
        table["stack"] = number[table["stack"]]
    stacks = np.zeros(len(used), STACK)
    stacks["parent"] = number[tree.parents[used]]
    kept, stacks["frame"][1:] = _by_appearance(tree.frame_of[used][1:])
    places = tree.frames[kept] if len(kept) else np.zeros((0, 2), np.uint64)
    words = np.stack([places[:, 0] >> np.uint64(32), places[:, 0] & np.uint64(0xFFFFFFFF)], 1).reshape(-1)
    texts, numbers = _by_appearance(words.astype(np.intp))
    frames = np.zeros(len(kept), FRAME)
    frames["file"], frames["name"], frames["line"] = numbers[::2], numbers[1::2], places[:, 1] & np.uint64(0xFFFFFFFF)
    chains = places[:, 1] >> np.uint64(32)
    details = {row: dict(tree.details(int(chains[row]))) for row in np.flatnonzero(chains).tolist()}
    forwards = {int(number[row]): forward for row, forward in tree.forwards.items() if is_used[row]}
    return _Stacks(stacks, frames, tuple(map(tree.text, texts.tolist())), forwards, details)


def _by_appearance(values: NDArray[np.intp]) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Return the distinct values in the order of their first appearance, and the number of each value among them."""
    distinct, first, inverse = np.unique(values, return_index=True, return_inverse=True)
    order = np.argsort(first)
    rank = np.empty(len(order), np.intp)
    rank[order] = np.arange(len(order))
    return distinct[order], rank[inverse]


_Value = TypeVar("_Value", bound=Hashable)


class _Numbers(Generic[_Value]):
    """Consecutive numbers for distinct values, from 0."""

    def __init__(self, first: Iterable[_Value] = ()) -> None:
        self.numbers: dict[_Value, int] = {value: number for number, value in enumerate(first)}

    def number(self, value: _Value) -> int:
        return self.numbers.setdefault(value, len(self.numbers))


class _Pools:
    """Consecutive numbers for the ids of private pools, from 1; the id (0, 0) has the number 0."""

    def __init__(self) -> None:
        self.ids: list[tuple[int, int]] = []
        self._numbers: dict[bytes, int] = {bytes(16): 0}  # by bytes, as numbers with equal hashes could be chosen

    def column(self, ids: NDArray[np.uint64]) -> NDArray[np.uint32]:
        """Return the number of each id."""
        numbers = np.zeros(len(ids), np.uint32)
        private = np.flatnonzero(ids.any(axis=1))
        numbers[private] = [self.number((first, second)) for first, second in ids[private].tolist()]
        return numbers

    def number(self, pool: tuple[int, int]) -> int:
        """Return the number of one id, whose parts have at most 64 bits."""
        key = pool[0].to_bytes(8, "little") + pool[1].to_bytes(8, "little")
        if (number := self._numbers.setdefault(key, len(self._numbers))) > len(self.ids):
            self.ids.append(pool)
        return number
