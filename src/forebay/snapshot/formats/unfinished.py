"""Snapshot of a program that has not written its report yet, in a file that is changed in place.

# Note [Unfinished snapshots]
A program under `forebay run` that is killed can write nothing any more, so its state is written while it runs, into the
file that the snapshot of its report replaces. At any instruction the file has one complete state: a header of fixed
size names the place of the state, the next state is written beside it, and one write of the header makes it the valid
one. NumPy is not used, as its arrays would be recorded, and the file is opened once, as a program may expect that the
descriptors it opens have the lowest numbers. Rejected: renaming a new file over the old one, which opens one each time;
and appending to a log of entries, from which segments, blocks and inherited arrays would have to be derived.
Test: tests/process/test_run_killed.py::test_killed_program_leaves_what_was_recorded
"""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any, BinaryIO

import numpy as np

from forebay.records.model import BLOCK, ENTRY, FRAME, SEGMENT, STACK, Snapshot
from forebay.snapshot.formats.budget import BadSnapshot

__all__ = ["HEADER_BYTES", "MAGIC", "header", "is_unfinished", "pack", "read"]

MAGIC = b"forebay-running\n"
_HEADER = struct.Struct("<16sQQ")  # the magic, and the offset and the length of the state; length 0: none yet
HEADER_BYTES = _HEADER.size
_MOST_STRING = 1 << 16


def header(offset: int, length: int) -> bytes:
    """Return the header of a file whose state is in this place."""
    return _HEADER.pack(MAGIC, offset, length)


def pack(
    details: Mapping[str, Any],
    tables: tuple[bytes, bytes, bytes],
    stacks: Iterable[tuple[int, str, str, int]],
) -> bytes:
    """Return a state: what a manifest has, the rows of segments, blocks and entries, and the stacks.

    A stack is its parent, and the file, name and line of its innermost frame.
    """
    strings: dict[str, int] = {}
    rows = [
        (parent, strings.setdefault(file, len(strings)), strings.setdefault(name, len(strings)), line)
        for parent, file, name, line in stacks
    ]
    sizes = [len(each) for each in tables]
    text = json.dumps({**details, "sizes": sizes, "stacks": rows, "strings": [*strings]}).encode("ascii")
    return b"".join([len(text).to_bytes(8, "little"), text, *tables])


def is_unfinished(start: bytes) -> bool:
    """Return True for the first bytes of such a file."""
    return start == MAGIC[: len(start)]


def read(file: BinaryIO) -> Snapshot:
    """Read the snapshot of an untrusted file. Raises BadSnapshot."""
    size = file.seek(0, os.SEEK_END)
    file.seek(0)
    start = file.read(HEADER_BYTES)
    _require(len(start) == HEADER_BYTES and is_unfinished(start[: len(MAGIC)]), "the header is damaged")
    _, offset, length = _HEADER.unpack(start)
    if not length:
        raise BadSnapshot("the program ended, or still runs, and has recorded nothing yet")
    _require(HEADER_BYTES <= offset <= size and 8 <= length <= size - offset, "the state is not in the file")
    file.seek(offset)
    state = file.read(length)
    head = int.from_bytes(state[:8], "little")
    _require(head <= length - 8, "the state is damaged")
    try:
        details = json.loads(state[8 : 8 + head])
        return _snapshot(details, memoryview(state)[8 + head :])
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError, AttributeError) as error:
        raise BadSnapshot(f"the state is damaged: {error}") from error


def _snapshot(details: Any, rest: memoryview) -> Snapshot:
    segments, blocks, entries = _tables(details["sizes"], rest)
    rows = np.array(details["stacks"], np.uint32).reshape(-1, 4)
    stacks = np.zeros(len(rows) + 1, STACK)
    frames = np.zeros(len(rows), FRAME)
    stacks["parent"][1:], stacks["frame"][1:] = rows[:, 0], np.arange(len(rows))
    frames["file"], frames["name"], frames["line"] = rows[:, 1], rows[:, 2], rows[:, 3]
    seconds, pid = float(details["seconds"]), int(details["pid"])
    truncated = (
        f"process {pid} has written no report: it was killed, or still runs. This is what it had done "
        f"{seconds:.1f} s after its start"
    )
    found = Snapshot(
        device=_text(details["device"]),
        capacity=int(details["capacity"]),
        taken_at_ns=int(details["taken_at_ns"]),
        segments=segments,
        blocks=blocks,
        trace=entries,
        stacks=stacks,
        frames=frames,
        strings=tuple(map(_text, details["strings"])),
        lost=int(details["lost"]),
        stats=MappingProxyType({_text(name): int(value) for name, value in details["stats"].items()}),
        notes=MappingProxyType({**dict(details["notes"]), "truncated": truncated}),
        labels=tuple((_text(context), _text(own)) for context, own in details["labels"]),
    )
    from forebay.snapshot.formats.native import check

    check(found)
    return found


def _tables(sizes: Any, rest: memoryview) -> list[Any]:
    found, at = [], 0
    for size, dtype in zip(sizes, (SEGMENT, BLOCK, ENTRY), strict=True):
        _require(type(size) is int and 0 <= size <= len(rest) - at and not size % dtype.itemsize, "a table is damaged")
        found.append(np.frombuffer(rest[at : at + size], dtype))
        at += size
    return found


def _text(value: Any) -> str:
    _require(type(value) is str and len(value) <= _MOST_STRING, "a text is damaged")
    return str(value)


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise BadSnapshot(message)
