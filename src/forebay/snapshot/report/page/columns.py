"""Integer columns as compressed text: what the report page contains of a history.

A column is stored as differences or as it is, each number in the smallest number of bytes that holds all of them. The
bytes are ordered by significance, not by number, because equal high bytes compress well; the whole is compressed with
zlib and written in base64. `report-page/src/columns.ts` is the reader.
"""

from __future__ import annotations

import base64
import zlib
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = ["Columns"]

_LARGEST = 1 << 52
_LEVEL = 6  # of zlib: 9 takes three times as long and saves 2 %


class Columns:
    """Named columns of one page, and their encoding."""

    def __init__(self) -> None:
        self._layout: dict[str, list[int]] = {}
        self._bytes: list[bytes] = []

    def add(self, name: str, values: ArrayLike) -> None:
        """Add a column of integers. Those beyond 2^52, which JavaScript's numbers cannot hold, become 2^52."""
        given = np.asarray(values)
        if given.dtype == np.uint64:
            given = np.minimum(given, np.uint64(_LARGEST))
        plain = np.clip(given.astype(np.int64), -_LARGEST, _LARGEST)
        steps = np.diff(plain, prepend=np.int64(0))
        options = [(0, _unsigned(plain)), (1, _unsigned(steps))]
        by_steps, numbers = min(options, key=lambda option: int(option[1].max(initial=0)))
        width = (int(numbers.max(initial=0)).bit_length() + 7) // 8
        self._layout[name] = [len(plain), width, by_steps]
        self._bytes.append(numbers.view(np.uint8).reshape(-1, 8)[:, :width].T.tobytes())

    def add_repetitive(self, name: str, values: NDArray[Any]) -> None:
        """Add a column of few distinct integers: their table, and the row in it of each."""
        table, rows = np.unique(values, return_inverse=True)
        self.add(f"{name}.table", table)
        self.add(name, rows)

    def encoded(self) -> tuple[dict[str, list[int]], str]:
        """Return the layout (count, width, 1 for differences) and the compressed text, for JSON."""
        packed = zlib.compress(b"".join(self._bytes), _LEVEL)
        return self._layout, base64.b64encode(packed).decode()


def _unsigned(values: NDArray[np.int64]) -> NDArray[np.uint64]:
    """Map integers to 0, 1, 2, ... in the order 0, -1, 1, -2, ..., so that small ones remain small."""
    return np.ascontiguousarray(((values << 1) ^ (values >> 63)).astype("<u8"))
