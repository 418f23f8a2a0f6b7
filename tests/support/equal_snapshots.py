"""Comparison of snapshots by their tables; stacks by their frames, as equal stacks may have other numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from forebay.snapshot import Frame, Snapshot


def without_stacks(table: NDArray[np.void]) -> list[Any]:
    return table[[name for name in table.dtype.names if name != "stack"]].tolist()


def stacks(found: Snapshot, table: NDArray[np.void]) -> list[tuple[Frame, ...]]:
    known = {row: tuple(found.stack(row)) for row in np.unique(table["stack"]).tolist()}
    return [known[row] for row in table["stack"].tolist()]


def assert_equal(found: Snapshot, expected: Snapshot) -> None:
    for name in ("segments", "blocks", "trace"):
        first, second = getattr(found, name), getattr(expected, name)
        assert without_stacks(first) == without_stacks(second)
        assert stacks(found, first) == stacks(expected, second)
    assert (found.device, found.labels, found.notes) == (expected.device, expected.labels, expected.notes)
