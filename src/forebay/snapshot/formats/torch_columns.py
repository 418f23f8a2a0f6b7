"""Columns of a PyTorch snapshot from the streaming reader: its tables in the form of `Snapshot`, for each device."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from forebay.records.model import ENTRY, FRAME, STACK
from forebay.snapshot.formats._history_reader import HistoryReader, Odd, Rows, StackRow, TooLarge
from forebay.snapshot.formats.budget import BadSnapshot, Budget
from forebay.snapshot.formats.byte_source import ByteSource

__all__ = ["Columns", "Odd"]

_WINDOW, _MAX_WINDOW = 1 << 20, 64 << 20
_HAS_POOL = 1 << 16


class Columns:
    """Result of the streaming reader of a file.

    Parameters
    ----------
    source : ByteSource
        The file, at its beginning.
    actions : Mapping of str to int
        The numbers of the actions.

    Raises
    ------
    Odd
        If the file is not a history as PyTorch writes it. It may be another pickle, or damaged.
    BadSnapshot
        If it would take too much memory.
    """

    def __init__(self, source: ByteSource, actions: Mapping[str, int]) -> None:
        reader = HistoryReader(int.from_bytes(os.urandom(8), "little"), dict(actions))
        try:
            self.truncated: bool = not _execute(reader, source)
            if self.truncated and not reader.salvage():
                raise Odd
            self.value: Any = reader.value()  # with Rows and StackRow
        except TooLarge as error:
            raise BadSnapshot(f"invalid pickle: {error}") from None
        self.budget: Budget = source.budget()
        self._entries = np.frombuffer(memoryview(reader), ENTRY)
        self._pools = _pairs(reader.pairs())
        self._notes = _pairs(reader.notes())
        nodes = np.concatenate([np.zeros((1, 2), np.uint64), _pairs(reader.nodes())]).astype(np.intp)
        self._parents, self._frame_of = np.ascontiguousarray(nodes.T)
        self._number = np.zeros(len(nodes), np.uint32)  # for `compact`: the new rows of one device's stacks
        self._frames = _pairs(reader.frames())
        self._text = reader.text

    @staticmethod
    def has(history: Any) -> bool:
        """Return True for the value that stands for a history."""
        return isinstance(history, Rows)

    def number(self, frames: Any) -> int:
        """Return the row of a list of frames in the stack tree."""
        if isinstance(frames, StackRow):
            return int(frames)
        if frames in ([], ()):
            return 0
        raise Odd

    def entries(
        self, rows: Any, pool_number: Callable[[tuple[int, int]], int], label_number: Callable[[tuple[str, str]], int]
    ) -> tuple[NDArray[np.void], bool]:
        """Return the history of a device, and whether it states the pools. Entries of unknown actions are dropped."""
        found = self._entries[rows.start : rows.stop]
        has_pools = bool(len(found)) and bool(found["action"][0] & _HAS_POOL)
        found["action"] &= _HAS_POOL - 1
        if not found["action"].all():
            found = found[found["action"] != 0]
        pools = {row: pool_number((first, second)) for row, (first, second) in _used(found["home"], self._pools)}
        found["home"] = _renumbered(found["home"], pools, len(self._pools))
        labels = {row: label_number(self._label(pair)) for row, pair in _used(found["note"], self._notes)}
        found["note"] = _renumbered(found["note"], labels, len(self._notes))
        return found, has_pools

    def _label(self, pair: tuple[int, int]) -> tuple[str, str]:
        context, metadata = (self._text(row - 1) if row else "" for row in pair)
        return context, metadata

    def compact(self, *tables: NDArray[np.void]) -> tuple[NDArray[np.void], NDArray[np.void], tuple[str, ...]]:
        """Return the stacks, frames and strings that the tables of one device use; renumbers their stacks."""
        is_used = np.zeros(len(self._parents), bool)
        is_used[0] = True
        for table in tables:
            is_used[table["stack"]] = True
        rows = np.flatnonzero(is_used)
        while len(rows):
            rows = np.unique(self._parents[rows])
            rows = rows[~is_used[rows]]
            is_used[rows] = True
        used = np.flatnonzero(is_used)
        self._number[used] = np.arange(len(used), dtype=np.uint32)  # only these: there may be 1,000 devices
        for table in tables:
            table["stack"] = self._number[table["stack"]]
        stacks = np.zeros(len(used), STACK)
        stacks["parent"] = self._number[self._parents[used]]
        kept, stacks["frame"][1:] = _by_appearance(self._frame_of[used][1:])
        places = self._frames[kept] if len(kept) else np.zeros((0, 2), np.uint64)
        words = np.stack([places[:, 0] >> np.uint64(32), places[:, 0] & np.uint64(0xFFFFFFFF)], 1).reshape(-1)
        texts, numbers = _by_appearance(words.astype(np.intp))
        frames = np.zeros(len(kept), FRAME)
        frames["file"], frames["name"], frames["line"] = numbers[::2], numbers[1::2], places[:, 1]
        return stacks, frames, tuple(map(self._text, texts.tolist()))


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


def _by_appearance(values: NDArray[np.intp]) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Return the distinct values in the order of their first appearance, and the number of each value among them."""
    distinct, first, inverse = np.unique(values, return_index=True, return_inverse=True)
    order = np.argsort(first)
    rank = np.empty(len(order), np.intp)
    rank[order] = np.arange(len(order))
    return distinct[order], rank[inverse]
