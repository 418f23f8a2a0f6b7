"""PyTorch's snapshots: the pickled dicts and lists of `torch.cuda.memory._snapshot()` as columns (semantics 3.12).

Every version from 1.13 to 2.15 is read: what an older one does not say is empty, worked out, or its default. What a
stranger wrote is believed only after its type and bounds were looked at; keys that nobody here knows are left alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from forebay.snapshot.formats import safe_pickle
from forebay.snapshot.formats.native import BadSnapshot, check
from forebay.snapshot.model import BLOCK, ENTRY, FRAME, HEAP_NOTES, SEGMENT, STACK, Action, Snapshot, State

__all__ = ["parse", "snapshots"]

_ACTIONS = {
    "alloc": Action.TAKE,
    "free_requested": Action.GIVE,
    "free_completed": Action.GIVEN,
    "segment_alloc": Action.RESERVE,
    "segment_free": Action.RELEASE,
    "oom": Action.OOM,
    "segment_map": Action.MAP,
    "segment_unmap": Action.UNMAP,
    "snapshot": Action.LOOK,
}
_STATES = {
    "inactive": State.FREE,
    "active_allocated": State.LIVE,
    "active_pending_free": State.AWAITING,
    "active_awaiting_free": State.AWAITING,  # as older ones said
}
_KINDS = {"small": 1, "large": 0}
_SETTINGS = {
    "PYTORCH_CUDA_ALLOC_CONF": str, "max_split_size": int, "garbage_collection_threshold": float,
    "expandable_segments": bool, "roundup_power2_divisions": dict, "heaps": dict, "watermarks": str,
}  # fmt: skip
_DEVICES = 1024
_LINES = (1 << 32) - 1

_Rows = Sequence[Mapping[str, Any]]


def parse(data: bytes) -> tuple[Snapshot, ...]:
    """The snapshots in a pickle that anybody may have made; raises BadSnapshot."""
    return snapshots(safe_pickle.load(data))


def snapshots(value: Any) -> tuple[Snapshot, ...]:
    """A snapshot for each device that the value tells of, in order; raises BadSnapshot where it is not of the schema.

    `capacity` is 0, as PyTorch does not say it. Notes are the settings, and the ids of private pools by their home.
    """
    if isinstance(value, list):  # before 2.0 there was no history
        value = {"segments": value}
    _demand(isinstance(value, dict) and "segments" in value, "it has no segments, so it is no snapshot of PyTorch's")
    segments = _dicts(value["segments"], "segments")
    traces = [_dicts(trace, "a trace") for trace in _list(value.get("device_traces", []), "device_traces")]
    told = [trace for trace in traces if trace]
    _demand(len({*map(id, told)}) == len(told), "two devices share their history")
    owner = _column(segments, "device", "a segment's", "i8", 0).tolist()
    _demand(all(0 <= device < _DEVICES for device in owner) and len(traces) <= _DEVICES, "there are too many devices")
    devices = sorted({*owner, *(device for device, trace in enumerate(traces) if trace)}) or [0]
    settings = _settings(value.get("allocator_settings"))
    found = []
    for device in devices:
        mine = [segment for segment, of in zip(segments, owner, strict=True) if of == device]
        trace = traces[device] if device < len(traces) else []
        found.append(_snapshot(f"cuda:{device}", mine, trace, settings))
    return tuple(found)


def _snapshot(name: str, segments: _Rows, trace: _Rows, settings: Mapping[str, Any]) -> Snapshot:
    stacks, homes, labels = _Stacks(), _Numbers(1, (0, 0)), _Numbers(1, ("", ""))
    segment_rows, block_rows = _segments(segments, stacks, homes)
    entries = _trace(trace, stacks, homes, labels, segment_rows)
    frames, strings = stacks.tables()
    notes: dict[str, Any] = {"from": "PyTorch"}
    if settings:
        notes["allocator_settings"] = {key: said for key, said in settings.items() if key not in HEAP_NOTES}
        notes |= {key: settings[key] for key in HEAP_NOTES if key in settings}
    if len(homes.of) > 1:
        notes["pools"] = {str(home): list(pool) for pool, home in homes.of.items() if home}
    if any("pool_id" in entry for entry in trace[:1]):
        notes["order"] = "arrival"  # of equal free blocks, that of the older segment goes first: PyTorch 2.10 and later
    made = Snapshot(
        device=name,
        capacity=0,
        taken_at_ns=int(entries["time_ns"].max(initial=0)),
        segments=segment_rows,
        blocks=block_rows,
        trace=entries,
        stacks=stacks.rows(),
        frames=frames,
        strings=strings,
        notes=MappingProxyType(notes),
        labels=tuple(labels.of)[1:],
    )
    check(made)
    return made


def _segments(segments: _Rows, stacks: _Stacks, homes: _Numbers) -> tuple[NDArray[np.void], NDArray[np.void]]:
    """Both tables, by address."""
    rows = np.zeros(len(segments), SEGMENT)
    rows["address"] = _column(segments, "address", "a segment's")
    rows["nbytes"] = _column(segments, "total_size", "a segment's")
    rows["queue"] = _column(segments, "stream", "a segment's", default=0)
    rows["stack"] = [stacks.number(segment.get("frames", ())) for segment in segments]
    rows["small"] = _named(segments, "segment_type", _KINDS, "large", "a segment's")
    rows["home"] = [homes.number(_pool(segment.get("segment_pool_id", (0, 0)))) for segment in segments]
    rows["growing"] = _flags(segments, "is_expandable")
    order = np.argsort(rows["address"], kind="stable")

    pieces = [_dicts(segment.get("blocks"), "a segment's blocks") for segment in segments]
    lengths = np.array([len(piece) for piece in pieces], np.int64)
    shown = {id(piece) for piece in pieces}
    _demand(len(shown) == len(pieces) or not lengths.sum(), "two segments share their blocks")
    flat = [block for piece in pieces for block in piece]
    blocks = np.zeros(len(flat), BLOCK)
    blocks["nbytes"] = _column(flat, "size", "a block's")
    of = np.repeat(np.arange(len(segments)), lengths)
    blocks["address"] = _addresses(flat, blocks["nbytes"], rows["address"][of], of)
    blocks["requested"] = _column(flat, "requested_size", "a block's", default=blocks["nbytes"])
    blocks["stack"] = [stacks.number(block.get("frames", ())) for block in flat]
    blocks["state"] = _named(flat, "state", _STATES, None, "a block's")
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    blocks["segment"] = place[of]
    return rows[order], blocks[np.argsort(blocks["address"], kind="stable")]


def _addresses(blocks: _Rows, sizes: NDArray[Any], start: NDArray[Any], of: NDArray[np.int64]) -> NDArray[np.uint64]:
    """Before 2.1 a block did not say where it is: behind the one before it."""
    if blocks and "address" in blocks[0]:
        return _column(blocks, "address", "a block's")
    ends = np.cumsum(sizes, dtype=np.uint64)
    first = np.searchsorted(of, of)  # the first block of the same segment
    addresses: NDArray[np.uint64] = start + (ends - sizes) - (ends - sizes)[first]
    return addresses


def _trace(
    trace: _Rows, stacks: _Stacks, homes: _Numbers, labels: _Numbers, segments: NDArray[np.void]
) -> NDArray[np.void]:
    words = _values(trace, "action", "an entry's", None)
    _demand(set(map(type, words)) <= {str}, "an entry's action is not a word")
    if not set(words) <= _ACTIONS.keys():  # annotations, and whatever comes in later versions: no event of the memory
        trace = [entry for entry, word in zip(trace, words, strict=True) if word in _ACTIONS]
        words = [word for word in words if word in _ACTIONS]
    rows = np.zeros(len(trace), ENTRY)
    rows["action"] = [_ACTIONS[word] for word in words]
    full = np.flatnonzero(rows["action"] == Action.OOM)
    rows["address"] = _column(trace, "addr", "an entry's", default=0)
    rows["address"][full] = _column([trace[at] for at in full.tolist()], "device_free", "an entry's", default=0)
    rows["nbytes"] = _column(trace, "size", "an entry's")
    rows["queue"] = _column(trace, "stream", "an entry's", default=0)
    times = _column(trace, "time_us", "an entry's", default=0)
    _demand(bool((times < 1 << 52).all()), "an entry's time is out of range")
    rows["time_ns"] = times * np.uint64(1000)
    number = stacks.number
    rows["stack"] = [number(entry.get("frames", ())) for entry in trace]
    if trace and "pool_id" in trace[0]:
        rows["home"] = homes.column(_pool, [entry.get("pool_id", (0, 0)) for entry in trace])
    elif len(homes.of) > 1:  # older ones name the pool with the segment only
        at = np.searchsorted(segments["address"], rows["address"], "right") - 1
        inside = (at >= 0) & (rows["address"] < (segments["address"] + segments["nbytes"])[at])
        rows["home"] = np.where(inside, segments["home"][at], 0)
    said = [_values(trace, key, "an entry's", "") for key in ("compile_context", "user_metadata")]
    if any(map(any, said)):
        rows["note"] = labels.column(_texts, list(zip(*said, strict=True)))
    return rows


class _Numbers:
    """Numbers things as they come; `first` is 0."""

    def __init__(self, start: int, first: Any) -> None:
        self.of: dict[Any, int] = {first: start - 1}

    def number(self, thing: Any) -> int:
        return self.of.setdefault(thing, len(self.of))

    def column(self, understood: Callable[[Any], Any], things: list[Any]) -> list[int]:
        """Of each its number; of equal ones only the first is looked at."""
        try:
            numbers = {thing: self.number(understood(thing)) for thing in dict.fromkeys(things)}
            return [numbers[thing] for thing in things]
        except TypeError:  # lists have no hash
            return [self.number(understood(thing)) for thing in things]


class _Stacks:
    """Lists of frames, innermost first, as a tree. A list that was seen before costs a look."""

    def __init__(self) -> None:
        self._nodes: dict[tuple[int, int], int] = {}
        self._frames: dict[tuple[str, str, int], int] = {}
        self._of_list: dict[int, int] = {}
        self._of_frames: dict[tuple[int, ...], int] = {(): 0}
        self._of_frame: dict[int, int] = {}

    def number(self, frames: Any) -> int:
        # Everything that has a number here is part of the value that is read, so it lives, and so does its id.
        if (known := self._of_list.get(id(frames))) is not None:
            return known
        _demand(isinstance(frames, list | tuple), "frames are not a list")
        key = tuple(map(id, frames))
        if (row := self._of_frames.get(key)) is None:
            row = 0
            for frame in reversed(frames):
                row = self._nodes.setdefault((row, self._frame(frame)), len(self._nodes) + 1)
            self._of_frames[key] = row
        self._of_list[id(frames)] = row
        return row

    def _frame(self, frame: Any) -> int:
        if (known := self._of_frame.get(id(frame))) is None:
            _demand(isinstance(frame, dict), "a frame is not a dict")
            line = frame.get("line", 0)
            _demand(type(line) is int, "a frame's line is not a number")
            words = (_text(frame.get("filename", "")), _text(frame.get("name", "")), min(max(line, 0), _LINES))
            known = self._of_frame[id(frame)] = self._frames.setdefault(words, len(self._frames))
        return known

    def rows(self) -> NDArray[np.void]:
        return np.array([(0, 0), *self._nodes], STACK)

    def tables(self) -> tuple[NDArray[np.void], tuple[str, ...]]:
        words = _Numbers(0, None)
        words.of.clear()
        rows = [(words.number(file), words.number(name), line) for file, name, line in self._frames]
        return np.array(rows, FRAME), tuple(words.of)


def _settings(value: Any) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        return {}
    found = {key: value[key] for key, kind in _SETTINGS.items() if _is(value.get(key), kind)}
    for name, kinds in (("roundup_power2_divisions", {int}), ("heaps", {int, bool})):
        if not all(type(key) is str and type(number) in kinds for key, number in found.get(name, {}).items()):
            del found[name]
    return found


def _is(value: Any, kind: type) -> bool:
    return type(value) is kind or (type(value) is int and kind in (float, bool))


def _pool(value: Any) -> tuple[int, int]:
    _demand(
        isinstance(value, tuple | list) and len(value) == 2 and {*map(type, value)} == {int}, "a pool's id is no pair"
    )
    return value[0], value[1]


def _text(value: Any) -> str:
    _demand(type(value) is str, "a text is not a text")
    text: str = value
    return text


def _texts(values: tuple[Any, Any]) -> tuple[str, str]:
    return _text(values[0]), _text(values[1])


def _list(value: Any, what: str) -> list[Any] | tuple[Any, ...]:
    _demand(isinstance(value, list | tuple), f"{what} are not a list")
    items: list[Any] | tuple[Any, ...] = value
    return items


def _dicts(value: Any, what: str) -> _Rows:
    items = _list(value, what)
    _demand(set(map(type, items)) <= {dict}, f"{what}: not all are dicts")
    return items


def _values(rows: _Rows, key: str, whose: str, default: Any) -> list[Any]:
    if default is not None:
        return [row.get(key, default) for row in rows]
    try:
        return [row[key] for row in rows]
    except KeyError:
        raise BadSnapshot(f"{whose} {key} is missing") from None


def _column(rows: _Rows, key: str, whose: str, dtype: str = "u8", default: Any = None) -> NDArray[Any]:
    """One number of each row. `default` may be a column, which then stands for all where the first row has none."""
    if isinstance(default, np.ndarray):
        if not rows or key not in rows[0]:
            return default
        default = None
    values = _values(rows, key, whose, default)
    _demand(set(map(type, values)) <= {int}, f"{whose} {key} is not a number")
    try:
        return np.array(values, dtype)
    except OverflowError:
        raise BadSnapshot(f"{whose} {key} is out of range") from None


def _named(rows: _Rows, key: str, words: Mapping[str, int], default: str | None, whose: str) -> list[int]:
    try:
        return [words[word] for word in _values(rows, key, whose, default)]
    except (KeyError, TypeError):
        raise BadSnapshot(f"{whose} {key} is not one of {', '.join(words)}") from None


def _flags(rows: _Rows, key: str) -> list[bool]:
    values = _values(rows, key, "a segment's", False)
    _demand(set(map(type, values)) <= {bool}, f"a segment's {key} is not True or False")
    return values


def _demand(condition: bool, otherwise: str) -> None:
    if not condition:
        raise BadSnapshot(otherwise)
