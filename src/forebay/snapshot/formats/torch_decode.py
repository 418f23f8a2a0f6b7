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
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from forebay.records.model import ENTRY
from forebay.snapshot.formats import safe_pickle
from forebay.snapshot.formats._history_reader import HistoryReader, Odd, Rows, StackRow, TooLarge
from forebay.snapshot.formats.budget import BadSnapshot, Budget
from forebay.snapshot.formats.byte_source import ByteSource
from forebay.snapshot.formats.forward_frames import Forwards, with_callers
from forebay.snapshot.formats.torch_schema import ACTIONS

__all__ = ["HAS_POOL", "Decoded", "Odd", "Rows", "StackRow", "Tables", "decode_stream", "decode_values"]

HAS_POOL = 1 << 16  # added to an entry's action
_WINDOW, _MAX_WINDOW = 1 << 20, 64 << 20
_LOW = 0xFFFFFFFF
_MORE_TEXTS = 1 << 31  # the first row of texts that are not in the reader, which never has so many
_FORWARD_COST = 1000  # bytes of memory of a forward frame: the match, the frame and its rows


class Tables(NamedTuple):
    """Entries and stacks of all devices in a file, from the streaming reader."""

    entries: NDArray[np.void]  # dtype ENTRY: rows of `nodes`, and of `pools` and `notes` from 1; action 0 is unknown
    pools: NDArray[np.uint64]  # ids of private pools, and other pairs of numbers
    notes: NDArray[np.uint64]  # texts from 1, 0: none; compile_context, internal_metadata << 32 | user_metadata
    parents: NDArray[np.intp]  # the nodes of the stack tree; row 0 is the empty stack
    frame_of: NDArray[np.intp]
    frames: NDArray[np.uint64]  # text of the file << 32 | text of the name, chain of details << 32 | line
    text: Callable[[int], str]  # raises Odd for one that is not UTF-8
    details: Callable[[int], tuple[tuple[str, str], ...]]  # keys and texts of a chain
    row_of: Mapping[int, int] = MappingProxyType({})  # rows of the tree that replace those of StackRow values
    forwards: Forwards = {}  # noqa: RUF012 - a NamedTuple has no factories, and nothing changes it


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
    chains, text = _pairs(reader.details()), reader.text

    def details(chain: int) -> tuple[tuple[str, str], ...]:
        return tuple((text(key), text(value)) for key, value in _links(chains, chain))

    tables = Tables(
        entries, _pairs(reader.pairs()), _pairs(reader.notes()), parents & _LOW, frame_of, _pairs(reader.frames()),
        text, details,
    )  # fmt: skip
    if (with_forward := np.flatnonzero(parents >> 32)).size:
        lines = {row: tuple(text(each) for _, each in _links(chains, int(parents[row]) >> 32)) for row in
                 with_forward.tolist()}  # fmt: skip
        tables = _with_forward(tables, lines, source.budget())
    return Decoded(value, source.budget(), tables, truncated)


def _links(chains: NDArray[np.uint64], chain: int) -> list[tuple[int, int]]:
    """Return the keys and the texts of a chain, the first one first."""
    found = []
    while chain:
        head, text = chains[chain - 1].tolist()
        chain, key = head >> 32, head & _LOW
        found.append((key, text))
    return found[::-1]


def _with_forward(tables: Tables, lines: dict[int, tuple[str, ...]], budget: Budget) -> Tables:
    """Return the tables with forward frames as callers: Note [Forward frames are callers]."""
    budget.charge(sum(_FORWARD_COST * (len(each) + 1) for each in lines.values()))
    found = with_callers(tables.parents, tables.frame_of, len(tables.frames), lines)
    words = list(dict.fromkeys(text for frame in found.frames for text in (frame.file, frame.name)))
    number = {text: _MORE_TEXTS + at for at, text in enumerate(words)}
    frames = [(number[frame.file] << 32 | number[frame.name], frame.line) for frame in found.frames]
    rows = np.arange(len(found.parents), dtype=np.uint32)
    rows[[*found.row_of]] = [*found.row_of.values()]
    tables.entries["stack"] = rows[tables.entries["stack"]]
    return tables._replace(
        parents=found.parents,
        frame_of=found.frame_of,
        frames=np.concatenate([tables.frames, np.array(frames, np.uint64).reshape(-1, 2)]),
        text=lambda row: tables.text(row) if row < _MORE_TEXTS else words[row - _MORE_TEXTS],
        row_of=found.row_of,
        forwards=found.forwards,
    )


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
