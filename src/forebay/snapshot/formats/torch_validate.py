"""Second pass over a PyTorch snapshot: plain values become checked values, or BadSnapshot.

Versions 1.13 to 2.15 are supported (semantics 3.12): values missing in older versions are empty or defaults. The type
and range of every value are checked before use, also before hashing: the hash of a nested tuple may take exponential
time, and numbers with equal hashes can be chosen. Unknown keys are ignored. See Note [Snapshots are read in three
passes].
"""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from forebay.records.model import Action
from forebay.snapshot.formats.budget import BadSnapshot, Budget
from forebay.snapshot.formats.external_annotations import kept_annotations
from forebay.snapshot.formats.known_notes import kept_settings
from forebay.snapshot.formats.torch_checked import (
    NODE_COST,
    Blocks,
    Device,
    Entries,
    Segments,
    StackLists,
    StreamEntries,
)
from forebay.snapshot.formats.torch_decode import Decoded, Odd, Rows, StackRow, Tables
from forebay.snapshot.formats.torch_schema import ACTIONS, PINNED, SEGMENT_TYPES, STATES

__all__ = ["checked_devices"]

_CODES = {word: int(action) for word, action in ACTIONS.items()}  # arrays are made faster of ints than of Actions
_MAX_DEVICES = 1024
_MAX_LINE = (1 << 32) - 1
_SEGMENT_COST, _ROW_COST = 400, 200  # bytes of memory while a row of a table is made

_Dicts = Sequence[Mapping[str, Any]]
_Number = Callable[[Any, Any], int]  # of a list of frames, with its forward frames


def checked_devices(decoded: Decoded) -> Iterator[Device]:
    """Yield the checked values of each device, by index; pinned memory follows. Raises BadSnapshot for another schema.

    Raises Odd if values are not as the streaming reader makes them of what PyTorch writes.
    """
    value = decoded.value
    if isinstance(value, list):  # before 2.0: segments without history
        value = {"segments": value}
    _require(isinstance(value, dict) and "segments" in value, "not a PyTorch snapshot: it has no segments")
    segments = _as_dicts(value["segments"], "segments")
    lists = [*_as_items(value.get("device_traces", []), "device_traces"), value.get("host_traces", [])]
    *traces, history = (_history(each, decoded.tables) for each in lists)
    recorded = [id(each) for each, trace in zip(lists, (*traces, history), strict=True) if len(trace)]
    _require(len({*recorded}) == len(recorded), "two devices share their history")
    owner = _column_of(segments, "device", "a segment's", "i8", 0).tolist()
    _require(all(0 <= device < _MAX_DEVICES for device in owner) and len(traces) <= _MAX_DEVICES, "too many devices")
    by_device = defaultdict[int, list[Mapping[str, Any]]](list)
    for segment, device in zip(segments, owner, strict=True):
        by_device[device].append(segment)
    devices = sorted({*by_device, *(device for device, trace in enumerate(traces) if len(trace))}) or [0]
    settings = kept_settings(value.get("allocator_settings"))
    annotations = kept_annotations(value.get("external_annotations"))
    common = settings, annotations
    for device in devices:
        trace = traces[device] if device < len(traces) else []
        yield _device(f"cuda:{device}", by_device[device], trace, common, decoded)
    pinned = _as_dicts(value.get("host_segments", []), "host_segments")
    if len(pinned) or len(history):
        yield _device(PINNED, pinned, history, ({}, annotations), decoded)


def _history(value: Any, tables: Tables | None) -> StreamEntries | _Dicts:
    if tables is not None and isinstance(value, Rows):
        return StreamEntries(tables.entries[value.start : value.stop], tables)
    return _as_dicts(value, "a trace")


def _device(
    name: str,
    segments: _Dicts,
    trace: StreamEntries | _Dicts,
    common: tuple[Mapping[str, Any], tuple[Mapping[str, Any], ...]],
    decoded: Decoded,
) -> Device:
    tables, budget = decoded.tables, decoded.budget
    rows = 0 if isinstance(trace, StreamEntries) else len(trace)
    budget.charge(_SEGMENT_COST * len(segments) + _ROW_COST * rows)
    stacks = _StackNumbers(budget)
    number = stacks.number if tables is None else partial(_tree_row, tables)
    return Device(
        name,
        *common,
        _segments(segments, number),
        _blocks(segments, number, budget),
        trace if isinstance(trace, StreamEntries) else _entries(trace, number),
        tables or stacks.lists,
        budget,
        decoded.truncated,
    )


def _segments(segments: _Dicts, number: _Number) -> Segments:
    return Segments(
        _column_of(segments, "address", "a segment's"),
        _column_of(segments, "total_size", "a segment's"),
        _column_of(segments, "stream", "a segment's", default=0),
        _stacks_of(segments, number),
        _codes_of(segments, "segment_type", SEGMENT_TYPES, "large", "a segment's"),
        _ids_of([segment.get("segment_pool_id", (0, 0)) for segment in segments]),
        _flags_of(segments, "is_expandable"),
    )


def _blocks(segments: _Dicts, number: _Number, budget: Budget) -> Blocks:
    by_segment = [_as_dicts(segment.get("blocks"), "a segment's blocks") for segment in segments]
    lengths = np.array([len(group) for group in by_segment], np.int64)
    distinct = {id(group) for group in by_segment}
    _require(len(distinct) == len(by_segment) or not lengths.sum(), "two segments share their blocks")
    budget.charge(_ROW_COST * int(lengths.sum()))
    blocks = [_with_latest(block) if "history" in block else block for group in by_segment for block in group]
    sizes = _column_of(blocks, "size", "a block's")
    return Blocks(
        sizes,
        np.repeat(np.arange(len(segments)), lengths),
        _column_of(blocks, "address", "a block's") if blocks and "address" in blocks[0] else None,
        _column_of(blocks, "requested_size", "a block's", default=sizes),
        _stacks_of(blocks, number),
        _codes_of(blocks, "state", STATES, None, "a block's"),
    )


def _with_latest(block: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a block of PyTorch 2.0 or older with the frames and the size of its latest allocation.

    The history of a block has the allocations that overlapped it, the latest first.
    """
    latest = _as_dicts(block["history"], "a block's history")[:1]
    if not latest or block.get("state") == "inactive":
        return block
    own = {"frames": latest[0].get("frames", ()), "requested_size": latest[0].get("real_size", block.get("size"))}
    return {**own, **block}


def _entries(trace: _Dicts, number: _Number) -> Entries:
    state_pools = any("pool_id" in entry for entry in trace[:1])
    words = _values_of(trace, "action", "an entry's", None)
    _require(set(map(type, words)) <= {str}, "an entry's action is not a string")
    if not set(words) <= ACTIONS.keys():  # annotations and actions of later versions do not change the memory
        trace = [entry for entry, word in zip(trace, words, strict=True) if word in ACTIONS]
        words = [word for word in words if word in ACTIONS]
    actions = np.array([_CODES[word] for word in words], np.uint32)
    addresses = _column_of(trace, "addr", "an entry's", default=0)
    oom_rows = np.flatnonzero(actions == Action.OOM)
    free = _column_of([trace[at] for at in oom_rows.tolist()], "device_free", "an entry's", default=0)
    addresses[oom_rows] = free
    sizes = _column_of(trace, "size", "an entry's")
    streams = _column_of(trace, "stream", "an entry's", default=0)
    times = _column_of(trace, "time_us", "an entry's", default=0)
    _require(bool((times < 1 << 52).all()), "an entry's time is out of range")
    stacks, pools, labels = _stacks_of(trace, number), None, None
    if trace and "pool_id" in trace[0]:
        pools = _ids_of([entry.get("pool_id", (0, 0)) for entry in trace])
    keys = ("compile_context", "user_metadata", "internal_metadata")
    contexts, metadata, internal = (_values_of(trace, key, "an entry's", "") for key in keys)
    if any(contexts) or any(metadata) or any(internal):
        _require({*map(type, chain(contexts, metadata, internal))} <= {str}, "a text is not a string")
        labels = contexts, metadata, internal
    return Entries(actions, addresses, sizes, streams, times, stacks, pools, labels, state_pools)


def _ids_of(values: Sequence[Any]) -> NDArray[np.uint64]:
    """Return the ids of pools as pairs of numbers."""
    wrong = "a pool's id is not a pair of numbers"
    _require(set(map(type, values)) <= {tuple, list} and set(map(len, values)) <= {2}, wrong)
    ids = np.zeros((len(values), 2), "<u8")
    for side in range(2):
        column = [value[side] for value in values]
        _require(set(map(type, column)) <= {int}, wrong)
        try:
            ids[:, side] = column
        except OverflowError:
            raise BadSnapshot("a pool's id is out of range") from None
    return ids


def _stacks_of(rows: _Dicts, number: _Number) -> NDArray[np.uint32]:
    return np.array([number(row.get("frames", ()), row.get("forward_frames", ())) for row in rows], np.uint32)


def _tree_row(tables: Tables, frames: Any, _: Any) -> int:
    """Return the row of a list of frames in the decoder's stack tree, which has the forward frames as well."""
    if isinstance(frames, StackRow):
        return tables.row_of.get(int(frames), int(frames))
    if frames in ([], ()):
        return 0
    raise Odd


class _StackNumbers:
    """Numbers of lists of frames, and the distinct lists. A list that was seen before costs one lookup."""

    def __init__(self, budget: Budget) -> None:
        self.lists = StackLists()
        self._budget = budget
        self._number_by_list: dict[int, int] = {}
        self._number_by_frames: dict[bytes, int] = {b"": 0}  # by the ids of the frames
        self._number_by_frame: dict[int, int] = {}
        self._number_by_forward: dict[tuple[int, tuple[str, ...]], int] = {}

    def number(self, frames: Any, forward: Any) -> int:
        """Return the number of a list of frames, innermost first, which is checked when it is seen first."""
        if forward:
            return self._with_forward(self.number(frames, ()), forward)
        # Every object whose id is a key here is part of the value being parsed, so ids are not reused.
        if (known := self._number_by_list.get(id(frames))) is not None:
            return known
        _require(isinstance(frames, list | tuple), "frames are not a list")
        key = array("Q", map(id, frames)).tobytes()
        if (number := self._number_by_frames.get(key)) is None:
            self._budget.charge(_ROW_COST + len(key))
            lists = self.lists
            lists.content.extend(map(self._frame, reversed(frames)))
            number = self._number_by_frames[key] = len(lists.ends)
            lists.ends.append(len(lists.content))
        self._number_by_list[id(frames)] = number
        return number

    def _with_forward(self, number: int, forward: Any) -> int:
        """Return the number of a list of frames with forward frames."""
        lists = self.lists
        key = (number, tuple(map(_as_text, _as_items(forward, "forward frames"))))
        if (known := self._number_by_forward.get(key)) is None:
            self._budget.charge(_ROW_COST + NODE_COST * len(key[1]))
            known = self._number_by_forward[key] = len(lists.ends)
            lists.content.extend(lists.content[lists.ends[number - 1] if number else 0 : lists.ends[number]])
            lists.ends.append(len(lists.content))
            lists.forward[known] = key[1]
        return known

    def _frame(self, frame: Any) -> int:
        if (known := self._number_by_frame.get(id(frame))) is None:
            _require(isinstance(frame, dict), "a frame is not a dict")
            line = frame.get("line", 0)
            _require(type(line) is int, "a frame's line is not a number")
            names = _as_text(frame.get("filename", "")), _as_text(frame.get("name", ""))
            details = [
                (key, each) for key, each in frame.items()
                if type(key) is str and key.startswith("fx_") and type(each) is str
            ]  # fmt: skip
            key = (*names, min(max(line, 0), _MAX_LINE), tuple(details))
            if (known := self.lists.frames.get(key)) is None:
                self._budget.charge(NODE_COST)
                known = self.lists.frames[key] = len(self.lists.frames)
            self._number_by_frame[id(frame)] = known
        return known


def _as_text(value: Any) -> str:
    """Return a value that must be a string."""
    _require(type(value) is str, "a text is not a string")
    found: str = value
    return found


def _as_items(value: Any, what: str) -> list[Any] | tuple[Any, ...]:
    """Return a value that must be a list or a tuple."""
    _require(isinstance(value, list | tuple), f"{what} are not a list")
    found: list[Any] | tuple[Any, ...] = value
    return found


def _as_dicts(value: Any, what: str) -> _Dicts:
    """Return a value that must be a list of dicts."""
    items = _as_items(value, what)
    _require(set(map(type, items)) <= {dict}, f"not all of {what} are dicts")
    return items


def _values_of(rows: _Dicts, key: str, whose: str, default: Any) -> list[Any]:
    """Return one value of each row; without a `default`, each row must have the key."""
    if default is not None:
        return [row.get(key, default) for row in rows]
    try:
        return [row[key] for row in rows]
    except KeyError:
        raise BadSnapshot(f"{whose} {key} is missing") from None


def _column_of(rows: _Dicts, key: str, whose: str, dtype: str = "u8", default: Any = None) -> NDArray[Any]:
    """Return one number of each row. A column as `default` has the values of the rows that lack the key."""
    if isinstance(default, np.ndarray):
        values = [row.get(key, other) for row, other in zip(rows, default.tolist(), strict=True)]
    else:
        values = _values_of(rows, key, whose, default)
    _require(set(map(type, values)) <= {int}, f"{whose} {key} is not a number")
    try:
        return np.array(values, dtype)
    except OverflowError:
        raise BadSnapshot(f"{whose} {key} is out of range") from None


def _codes_of(rows: _Dicts, key: str, words: Mapping[str, int], default: str | None, whose: str) -> list[int]:
    """Return the code of one word of each row."""
    values = _values_of(rows, key, whose, default)
    try:
        if set(map(type, values)) <= {str}:
            return [words[word] for word in values]
        raise KeyError  # noqa: TRY301 - nothing else may be hashed
    except KeyError:
        raise BadSnapshot(f"{whose} {key} is not one of {', '.join(words)}") from None


def _flags_of(rows: _Dicts, key: str) -> list[bool]:
    """Return one flag of each row; False by default."""
    values = _values_of(rows, key, "a segment's", False)
    _require(set(map(type, values)) <= {bool}, f"a segment's {key} is not True or False")
    return values


def _require(condition: bool, message: str) -> None:
    """Raise BadSnapshot if a condition is False."""
    if not condition:
        raise BadSnapshot(message)
