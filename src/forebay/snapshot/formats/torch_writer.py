"""Writer of PyTorch's snapshot pickles, which PyTorch's viewers open. Rows become opcodes with NumPy, not one by one.

The protocol is 4, and integers below 2^63 have at most eight bytes, as PyTorch's viewer in the browser needs.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from forebay._base.atomic_write import atomic_write
from forebay.records.model import Action, Frame, Snapshot, State
from forebay.snapshot.formats.budget import BadSnapshot
from forebay.snapshot.formats.byte_source import Progress
from forebay.snapshot.formats.external_annotations import annotations_of
from forebay.snapshot.formats.forward_frames import forwards_of
from forebay.snapshot.formats.generated_frames import frame_details, generated_place
from forebay.snapshot.formats.known_notes import (
    FRAME_DETAILS,
    INTERNAL_METADATA,
    all_settings,
    details_of,
    pool_ids,
)
from forebay.snapshot.formats.native import check
from forebay.snapshot.formats.torch_addresses import pools_by_address, with_base
from forebay.snapshot.formats.torch_schema import PINNED

__all__ = ["write"]

_ACTIONS = {
    Action.ALLOC: "alloc", Action.FREE_REQUESTED: "free_requested", Action.FREE_COMPLETED: "free_completed",
    Action.RESERVE: "segment_alloc", Action.RELEASE: "segment_free", Action.OOM: "oom", Action.MAP: "segment_map",
    Action.UNMAP: "segment_unmap", Action.SNAPSHOT: "snapshot", Action.ANNOTATE: "annotate",
}  # fmt: skip
_STATES = {State.FREE: "inactive", State.LIVE: "active_allocated", State.PENDING_FREE: "active_pending_free"}
_KEYS = (
    "device", "address", "total_size", "allocated_size", "active_size", "requested_size", "stream", "segment_type",
    "segment_pool_id", "is_expandable", "frames", "blocks", "size", "state", "action", "addr", "device_free", "time_us",
    "pool_id", "compile_context", "user_metadata", "internal_metadata", "filename", "line", "name", "forward_frames",
)  # fmt: skip
_CHUNK = 1 << 16  # rows
_MAX_FRAMES = 100_000_000  # of all stacks: half a gigabyte of the file
_SIGNED = 1 << 63


def write(snapshots: Sequence[Snapshot], path: str | os.PathLike[str], progress: Progress | None = None) -> None:
    """Write snapshots of devices to one file, as torch.cuda.memory._dump_snapshot does.

    The file is replaced atomically.

    Parameters
    ----------
    snapshots : sequence of Snapshot
        The snapshots. The index in the name of a device, as in "cuda:1", is the index in the file; that of pinned
        memory is "pinned".
    path : str or os.PathLike
        The file to write.
    progress : callable, optional
        Called as `progress(entries_done, entries_total)`.

    Raises
    ------
    BadSnapshot
        If a snapshot is inconsistent, or two are of the same device.
    OSError
        If the file cannot be written.

    Notes
    -----
    PyTorch's schema has no place for the capacity, the statistics, the number of lost entries, the kind of the device,
    nanoseconds, and notes other than the settings.
    """
    by_device: dict[int, Snapshot] = {}
    for snapshot in snapshots:
        check(snapshot)
        index = -1 if snapshot.device == PINNED else _index(snapshot.device)
        if index in by_device:
            raise BadSnapshot(f"two snapshots are of the device {snapshot.device!r}")
        by_device[index] = with_base(snapshot)
    with atomic_write(Path(path)) as file:
        _Writer(file, sum(len(each.trace) for each in snapshots), progress).write(by_device)


def _index(device: str) -> int:
    text = device.rpartition(":")[2]
    return int(text) if text.isascii() and text.isdigit() and len(text) < 4 else 0


class _Writer:
    """One pickle. Texts, ids of pools and lists of frames come first, as "shared"; rows refer to them by number."""

    def __init__(self, file: BinaryIO, entries: int, progress: Progress | None) -> None:
        self._write, self._progress = file.write, progress
        self._done, self._total = 0, entries
        self._memo: dict[Any, int] = {}

    def write(self, by_device: Mapping[int, Snapshot]) -> None:
        devices = {index: each for index, each in sorted(by_device.items()) if index >= 0}
        pinned = {index: each for index, each in by_device.items() if index < 0}
        self._write(b"\x80\x04}(" + self._text("shared") + b"](")
        self._write(b"".join(map(self._text, (*_KEYS, *_ACTIONS.values(), *_STATES.values(), "small", "large"))))
        shared = {index: _Shared(self._memo, each, self._write) for index, each in by_device.items()}
        self._write(b"e" + self._text("segments") + b"](")
        for index, each in devices.items():
            self._segments(index, each, shared[index])
        self._write(b"e" + self._text("device_traces") + b"](")
        for index in range(max(devices, default=-1) + 1):
            self._write(b"](")
            if index in devices:
                self._trace(devices[index], shared[index])
            self._write(b"e")
        self._write(b"e" + self._text("allocator_settings") + self._value(_settings(devices.values())))
        self._write(self._text("external_annotations") + b"](")
        for annotation in annotations_of(each.notes for each in by_device.values()):
            self._write(self._value(annotation))
        self._write(b"e" + self._text("host_segments") + b"](")
        for index, each in pinned.items():
            self._segments(index, each, shared[index])
        self._write(b"e" + self._text("host_traces") + b"](")
        for index, each in pinned.items():
            self._trace(each, shared[index])
        self._write(b"eu.")

    def _text(self, text: str) -> bytes:
        return _text(self._memo, text)

    def _value(self, value: Any) -> bytes:
        if isinstance(value, Mapping):
            return b"}(" + b"".join(map(self._value, chain(*value.items()))) + b"u"
        if isinstance(value, str):
            return self._text(value)
        if isinstance(value, bool):
            return b"\x88" if value else b"\x89"
        return b"G" + struct.pack(">d", value) if isinstance(value, float) else _number(value)

    def _segments(self, index: int, snapshot: Snapshot, shared: _Shared) -> None:
        rows, blocks, key, memo = snapshot.segments, snapshot.blocks, self._key, self._memo
        states = np.array([self._memo[_STATES[state]] for state in sorted(_STATES)], "<u4")[blocks["state"].astype(int)]
        block_rows = _joined(
            b"}(", key("address"), _numbers(blocks["address"]), key("size"), _numbers(blocks["nbytes"]),
            key("requested_size"), _numbers(blocks["requested"]), key("state"), b"j", states,
            key("frames"), b"j", shared.stacks[blocks["stack"]],
            *shared.forward(blocks["stack"], memo["state"], states), b"u", count=len(blocks),
        )  # fmt: skip
        ends = np.searchsorted(blocks["segment"], np.arange(len(rows)), "right")
        sums = {"total_size": rows["nbytes"], **_sums(snapshot)}
        begin = 0
        for at, row in enumerate(rows):
            size_class = "small" if row["small"] else "large"
            self._write(b"}(" + key("device") + _number(index) + key("address") + _number(int(row["address"])))
            self._write(b"".join(key(name) + _number(int(column[at])) for name, column in sums.items()))
            self._write(key("stream") + _number(int(row["queue"])) + key("segment_type") + self._text(size_class))
            self._write(key("segment_pool_id") + _reference(int(shared.pools(row["pool"]))))
            self._write(key("is_expandable") + self._value(bool(row["growing"])))
            self._write(key("frames") + _reference(int(shared.stacks[row["stack"]])) + key("blocks") + b"](")
            self._write(block_rows[begin : ends[at]].tobytes() + b"eu")
            begin = ends[at]

    def _trace(self, snapshot: Snapshot, shared: _Shared) -> None:
        key, memo = self._key, self._memo
        actions = np.zeros(max(_ACTIONS) + 1, "<u4")
        actions[list(_ACTIONS)] = [memo[word] for word in _ACTIONS.values()]
        with_pools = _has_pools(snapshot)
        for begin in range(0, len(snapshot.trace), _CHUNK):
            rows = snapshot.trace[begin : begin + _CHUNK]
            place = np.where(rows["action"] == Action.OOM, memo["device_free"], memo["addr"]).astype("<u4")
            parts: list[_Part] = [
                b"}(", key("action"), b"j", actions[rows["action"]], b"j", place, _numbers(rows["address"]),
                key("size"), _numbers(rows["nbytes"]), key("stream"), _numbers(rows["queue"]),
                key("time_us"), _numbers(rows["time_ns"] // np.uint64(1000)),
                key("frames"), b"j", shared.stacks[rows["stack"]],
            ]  # fmt: skip
            if with_pools:
                parts += [key("pool_id"), b"j", shared.pools(rows["pool"])]
            if with_pools or snapshot.labels:
                for name, texts in zip(("compile_context", "user_metadata"), shared.labels.T[:2], strict=True):
                    parts += [key(name), b"j", texts[rows["note"]]]
            words = memo["action"], actions[rows["action"]]
            parts += _optional(memo["internal_metadata"], shared.labels[rows["note"], 2], *words)
            parts += shared.forward(rows["stack"], *words)
            self._write(_joined(*parts, b"u", count=len(rows)).tobytes())
            self._done += len(rows)
            if self._progress:
                self._progress(self._done, self._total)

    def _key(self, name: str) -> bytes:
        return _reference(self._memo[name])


_FrameKey = tuple[str, str, str, int, tuple[tuple[str, str], ...]]
_Part = bytes | NDArray[Any] | tuple[bytes, NDArray[Any], bytes]


class _Shared:
    """The numbers, in the memo, of what the rows of one snapshot refer to; writes each value once."""

    def __init__(self, memo: dict[Any, int], snapshot: Snapshot, write: Callable[[bytes], object]) -> None:
        self._memo = memo
        known = pool_ids(snapshot.notes)
        self._used_pools = np.union1d(snapshot.segments["pool"], snapshot.trace["pool"])
        self._places = np.zeros(len(self._used_pools), "<u4")
        for at, number in enumerate(self._used_pools.tolist()):
            pool = known.get(number, (0, number))
            write(self._once(("pool", pool), _number(pool[0]) + _number(pool[1]) + b"\x86"))
            self._places[at] = memo["pool", pool]
        self.labels = np.zeros((len(snapshot.labels) + 1, 3), "<u4")  # the last one is 0 for none
        internal = details_of(snapshot.notes, INTERNAL_METADATA, str)
        for row, label in enumerate([("", ""), *snapshot.labels]):
            texts = [*label, *([internal[row]] if row in internal else [])]
            write(b"".join(_text(memo, text) for text in texts))
            self.labels[row, : len(texts)] = [memo[text] for text in texts]
        self.stacks = np.zeros(max(len(snapshot.stacks), 1), "<u4")
        self._forwards = forwards_of(snapshot)
        self._forward = np.zeros(len(self.stacks), "<u4")  # the list of forward frames; 0 for none
        self._details = details_of(snapshot.notes, FRAME_DETAILS, dict)
        used = [np.unique(table["stack"]) for table in (snapshot.segments, snapshot.blocks, snapshot.trace)]
        self._write_stacks(snapshot, [0, *np.unique(np.concatenate(used)).tolist()], write)

    def _write_stacks(self, snapshot: Snapshot, rows: list[int], write: Callable[[bytes], object]) -> None:
        """Write the lists of frames. A list has all frames of its stack, also those that it shares with others."""
        table: list[tuple[int, int]] = snapshot.stacks.tolist() or [(0, 0)]  # caller and frame
        depths = [0] * len(table)
        for row, (parent, _) in enumerate(table[1:], 1):  # callers come first
            depths[row] = depths[parent] + 1
        if sum(depths[row] for row in rows) > _MAX_FRAMES:
            raise BadSnapshot(f"its stacks have more than {_MAX_FRAMES:,} frames, each of which the pickle would list")
        references: dict[int, bytes] = {}
        for row in rows:
            parts, at = list[bytes](), row
            forward = self._forwards.get(row)
            while at and (forward is None or len(parts) < forward.own):
                at, frame = table[at]
                if (known := references.get(frame)) is None:
                    write(self._frame(key := self._frame_key(snapshot, frame)))
                    known = references[frame] = _reference(self._memo[key])
                parts.append(known)
            content = b"".join(parts)
            write(self._once(("stack", content), b"](" + content + b"e" if parts else b"]"))
            self.stacks[row] = self._memo["stack", content]
            if forward is not None:
                lines = b"".join(_text(self._memo, text) for text in forward.texts)
                write(self._once(("forward", row, id(snapshot)), b"](" + lines + b"e"))
                self._forward[row] = self._memo["forward", row, id(snapshot)]

    def forward(self, stacks: NDArray[np.uint32], key: int, values: NDArray[Any]) -> list[_Part]:
        """Return the forward frames of rows with these stacks; see `_optional`."""
        return _optional(self._memo["forward_frames"], self._forward[stacks], key, values)

    def _frame_key(self, snapshot: Snapshot, row: int) -> _FrameKey:
        noted = self._details.get(row, {})
        if (place := generated_place(noted)) is None:
            file, name, line = snapshot.frames[row].tolist()
            place = Frame(snapshot.strings[file], snapshot.strings[name], line)
        return "frame", *place, frame_details(noted)

    def pools(self, used: NDArray[np.uint32]) -> NDArray[np.uint32]:
        """Return the number of each pool's id."""
        found: NDArray[np.uint32] = self._places[np.searchsorted(self._used_pools, used)]
        return found

    def _frame(self, frame: _FrameKey) -> bytes:
        if frame in self._memo:
            return b""
        memo, (_, file, name, line, details) = self._memo, frame
        content = _reference(memo["filename"]) + _text(memo, file) + _reference(memo["line"]) + _number(line)
        content += _reference(memo["name"]) + _text(memo, name)
        content += b"".join(_text(memo, text) for text in chain(*details))
        return self._once(frame, b"}(" + content + b"u")

    def _once(self, key: Any, value: bytes) -> bytes:
        if key in self._memo:
            return b""
        self._memo[key] = len(self._memo)
        return value + b"\x94"


def _optional(key: int, values: NDArray[np.uint32], other: int, others: NDArray[Any]) -> list[_Part]:
    """Return the parts of a key that only some rows have: those with a value that is not 0.

    All rows have the same length. Those without a value repeat another key and its value, which changes nothing.
    """
    if not values.any():
        return []
    has = values != 0
    return [b"j", np.where(has, key, other).astype("<u4"), b"j", np.where(has, values, others).astype("<u4")]


def _text(memo: dict[Any, int], text: str) -> bytes:
    """Return the opcodes of a text, or of a reference to it."""
    if (known := memo.get(text)) is not None:
        return _reference(known)
    memo[text] = len(memo)
    raw = text.encode("utf-8", "surrogatepass")
    head = b"\x8c" + bytes([len(raw)]) if len(raw) < 256 else b"X" + struct.pack("<I", len(raw))
    return head + raw + b"\x94"


def _reference(number: int) -> bytes:
    return b"h" + bytes([number]) if number < 256 else b"j" + struct.pack("<I", number)


def _number(value: int) -> bytes:
    if -(1 << 31) <= value < 1 << 31:
        return b"J" + struct.pack("<i", value)
    return b"\x8a\x08" + struct.pack("<q", value) if value < _SIGNED else b"\x8a\x09" + struct.pack("<Qx", value)


def _numbers(column: NDArray[Any]) -> tuple[bytes, NDArray[Any], bytes]:
    """Return the opcode, the arguments and what follows them for a column of numbers."""
    largest = int(column.max(initial=0))
    if largest < 1 << 31:
        return b"J", column.astype("<u4"), b""
    return (b"\x8a\x08", column.astype("<u8"), b"") if largest < _SIGNED else (b"\x8a\x09", column.astype("<u8"), b"\0")


def _joined(*parts: _Part, count: int) -> NDArray[np.uint8]:
    """Return `count` rows of bytes: constants, and the bytes of one value of each column."""
    flat = [part for each in parts for part in (each if isinstance(each, tuple) else (each,))]
    widths = [len(part) if isinstance(part, bytes) else part.itemsize for part in flat]
    rows, at = np.empty((count, sum(widths)), np.uint8), 0
    for part, width in zip(flat, widths, strict=True):
        raw = np.frombuffer(part, np.uint8) if isinstance(part, bytes) else part.view(np.uint8).reshape(count, width)
        rows[:, at : at + width] = raw
        at += width
    return rows


def _sums(snapshot: Snapshot) -> dict[str, NDArray[np.uint64]]:
    """Return the sizes of the blocks in each segment."""
    blocks = snapshot.blocks
    used, live = blocks["state"] != State.FREE, blocks["state"] == State.LIVE
    chosen = {
        "allocated_size": (live, "nbytes"),
        "active_size": (used, "nbytes"),
        "requested_size": (used, "requested"),
    }
    found = {}
    for name, (mask, column) in chosen.items():
        found[name] = np.zeros(len(snapshot.segments), np.uint64)
        np.add.at(found[name], blocks["segment"][mask], blocks[column][mask])
    return found


def _has_pools(snapshot: Snapshot) -> bool:
    """Return True if the entries state their pools, which earlier versions of PyTorch did only for segments."""
    known = snapshot.notes.get("order") == "arrival"
    return known or not np.array_equal(snapshot.trace["pool"], pools_by_address(snapshot.trace, snapshot.segments))


def _settings(snapshots: Iterable[Snapshot]) -> dict[str, Any]:
    found: dict[str, Any] = {"PYTORCH_CUDA_ALLOC_CONF": ""}
    for each in snapshots:
        found |= all_settings(each.notes)
    return found
