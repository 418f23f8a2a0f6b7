"""First pass over a PyTorch snapshot: the bytes of a pickle become plain values.

# Note [Snapshots are read in three passes]
A file is decoded (`torch_decode`: bytes become plain values, each counted before it is made), validated
(`torch_validate`: the type and range of each value that is used, with the text of the error) and converted
(`torch_columns`: checked values become the tables of a `Snapshot`). Data flows in this order only: no pass calls or
imports a later one, so that no conversion can meet a value that was not checked. Devices are validated and converted
one after another, so that the checked values of one device are in memory at a time, not those of all.

The streaming reader (`_history_reader` over native/pickle/history.hpp) does all three for entries and frames, which are
nearly all of a file: a dict with the keys of an entry becomes a row when it closes, if its values have the types and
ranges of the schema. A million entries take 0.4 s and 103 MiB in this way, and 3.4 s and 700 MiB as values. The passes
stay apart around it: the decoder returns its tables as they are (`Tables`), in place of the values that they stand for;
validation checks how the other values refer to them; conversion numbers their rows for each device. What the reader
refuses (`Odd`) is decoded again as values, so that every error comes from the second pass or from `safe_pickle`.
Rejected: values with a converter for each type, which checked and converted in one call, and whose checks depended on
the order of the calls.
Test: tests/house/test_layers.py::test_passes_over_a_snapshot_follow_their_order
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from forebay.records.model import ENTRY
from forebay.snapshot.formats import safe_pickle
from forebay.snapshot.formats._history_reader import HistoryReader, Odd, Rows, StackRow, TooLarge
from forebay.snapshot.formats.budget import BadSnapshot, Budget
from forebay.snapshot.formats.byte_source import ByteSource
from forebay.snapshot.formats.torch_schema import ACTIONS

__all__ = ["HAS_POOL", "Decoded", "Odd", "Rows", "StackRow", "Tables", "decode_stream", "decode_values"]

HAS_POOL = 1 << 16  # added to an entry's action
_WINDOW, _MAX_WINDOW = 1 << 20, 64 << 20


class Tables(NamedTuple):
    """Entries and stacks of all devices in a file, from the streaming reader."""

    entries: NDArray[np.void]  # dtype ENTRY: rows of `nodes`, and of `pools` and `notes` from 1; action 0 is unknown
    pools: NDArray[np.uint64]  # ids of private pools, and other pairs of numbers
    notes: NDArray[np.uint64]  # texts of compile_context and user_metadata, from 1; 0: none
    parents: NDArray[np.intp]  # the nodes of the stack tree; row 0 is the empty stack
    frame_of: NDArray[np.intp]
    frames: NDArray[np.uint64]  # text of the file << 32 | text of the name, line
    text: Callable[[int], str]  # raises Odd for one that is not UTF-8


class Decoded(NamedTuple):
    """The plain values of a file."""

    value: Any  # if there are tables: with Rows for lists of entries, and StackRow for lists of frames
    budget: Budget  # what is left for the later passes
    tables: Tables | None = None
    truncated: str = ""  # where the file ends early


def decode_stream(source: ByteSource) -> Decoded:
    """Decode a file that PyTorch wrote, from its beginning, in windows.

    Raises Odd if it is not a history as PyTorch writes it (it may be another pickle, or damaged), and BadSnapshot if it
    would take too much memory.
    """
    reader = HistoryReader(int.from_bytes(os.urandom(8), "little"), dict(ACTIONS))
    truncated = ""
    try:
        if not _execute(reader, source):
            if not reader.salvage():
                raise Odd
            truncated = f"the file ends after {source.position:,} bytes, inside the pickle: "
            truncated += "entries and settings may be missing"
        value = reader.value()
    except TooLarge as error:
        raise BadSnapshot(f"invalid pickle: {error}") from None
    nodes = np.concatenate([np.zeros((1, 2), np.uint64), _pairs(reader.nodes())]).astype(np.intp)
    parents, frame_of = np.ascontiguousarray(nodes.T)
    entries = np.frombuffer(memoryview(reader), ENTRY)
    tables = Tables(
        entries, _pairs(reader.pairs()), _pairs(reader.notes()), parents, frame_of, _pairs(reader.frames()), reader.text
    )
    return Decoded(value, source.budget(), tables, truncated)


def decode_values(source: ByteSource) -> Decoded:
    """Decode any pickle of plain values, from its beginning, as a whole. Raises BadSnapshot."""
    data = source.read_all()
    budget = source.budget()
    return Decoded(safe_pickle.load(data, budget), budget)


def _execute(reader: HistoryReader, source: ByteSource) -> bool:
    """Read the whole pickle. Returns False if it is truncated."""
    rest, window = b"", _WINDOW
    while not reader.done:
        fresh = source.read(window)
        data = rest + fresh if rest else fresh
        done = reader.read(data, source.beyond, source.budget().left)
        if reader.done:
            break
        if len(fresh) < window:
            return False
        rest = data[done:]
        window = _WINDOW if done else 2 * window  # a text that is longer than the window
        if window > _MAX_WINDOW:
            raise Odd
    return True


def _pairs(content: bytes) -> NDArray[np.uint64]:
    return np.frombuffer(content, np.uint64).reshape(-1, 2)
