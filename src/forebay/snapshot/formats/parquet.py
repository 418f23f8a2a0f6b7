"""Writer of Parquet files, which DuckDB, Polars and pandas query. Needs the package pyarrow (the extra `parquet`)."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from forebay._base.atomic_write import atomic_write
from forebay._base.untrusted import printable, shortened
from forebay.errors import Unsupported
from forebay.records.model import Action, Snapshot, State
from forebay.records.sites import find_sites
from forebay.snapshot.formats.byte_source import Progress
from forebay.snapshot.formats.known_notes import INTERNAL_METADATA, details_of

__all__ = ["TABLES", "Ranges", "write"]

Ranges = Callable[[Snapshot], tuple[NDArray[Any], Sequence[str]]]
TABLES = ("history", "blocks", "segments")
_ROWS = 1 << 18  # of a row group
_MAX_FRAMES, _MAX_NAME = 200, 300


def write(
    snapshots: Sequence[Snapshot],
    path: str | os.PathLike[str],
    table: str = "history",
    progress: Progress | None = None,
    ranges: Ranges | None = None,
) -> None:
    """Write one table of snapshots to a Parquet file.

    The file is replaced atomically and written in row groups, so that it needs little memory.

    Parameters
    ----------
    snapshots : sequence of Snapshot
        The snapshots of the devices.
    path : str or os.PathLike
        The file to write.
    table : {"history", "blocks", "segments"}, default "history"
        The table.
    progress : callable, optional
        Called as `progress(rows_done, rows_total)`.
    ranges : callable, optional
        Returns for each entry of a snapshot's history a number, and the text of each number, for the column "ranges" of
        the history.

    Raises
    ------
    Unsupported
        If the package pyarrow is not installed.
    OSError
        If the file cannot be written.

    Notes
    -----
    All tables have the columns device, address, bytes, stream, pool (0: the default pool), site (as in all reports, ""
    without a stack) and stack (from the outermost frame, joined by ";"). The history adds entry (from 0), time_ns,
    action, compile_context, user_metadata and internal_metadata; blocks add requested, segment and state; segments add
    small and expandable.
    """
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError:
        raise Unsupported("writing Parquet requires the package pyarrow: pip install forebay[parquet]") from None
    rows = [getattr(each, "trace" if table == "history" else table) for each in snapshots]
    done, total = 0, sum(map(len, rows))
    with atomic_write(Path(path)) as file:
        writer = None
        try:
            for snapshot, all_rows in zip(snapshots, rows, strict=True):
                texts = _StackTexts(snapshot)
                numbers, paths = ranges(snapshot) if ranges is not None and table == "history" else (None, [])
                paths = [_text(path) for path in paths]
                for begin in range(0, max(len(all_rows), 1), _ROWS):
                    columns = _COLUMNS[table](snapshot, all_rows[begin : begin + _ROWS], begin)
                    if numbers is not None:
                        columns["ranges"] = _Words(numbers[begin : begin + _ROWS], paths)
                    group = pa.table({name: _array(pa, each) for name, each in (columns | texts.of(columns)).items()})
                    writer = writer or pq.ParquetWriter(file, _marked(group.schema, table), compression="zstd")
                    writer.write_table(group)
                    done += len(group)
                    if progress:
                        progress(done, total)
        finally:
            if writer is not None:
                writer.close()


def _marked(schema: Any, table: str) -> Any:
    """Return a schema that tells which table of forebay the file has."""
    return schema.with_metadata({"forebay_table": table})


class _Words:
    """A column of words: their numbers and the words."""

    def __init__(self, numbers: NDArray[Any], words: Sequence[str]) -> None:
        self.numbers, self.words = numbers, words


def _array(pa: Any, column: NDArray[Any] | _Words) -> Any:
    if isinstance(column, _Words):
        words = pa.array(column.words, pa.string())
        return pa.DictionaryArray.from_arrays(pa.array(column.numbers.astype(np.int32)), words)
    return pa.array(np.ascontiguousarray(column))


class _StackTexts:
    """Texts of the stacks of one snapshot. That of a frame, which many stacks may share, is made once."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self._stacks: list[tuple[int, int]] = snapshot.stacks.tolist()  # parent and frame
        self._texts: dict[int, str] = {}  # of the frames
        self._sites = find_sites(snapshot)

    def of(self, columns: dict[str, Any]) -> dict[str, _Words]:
        stacks, numbers = np.unique(columns.pop("stack_row"), return_inverse=True)
        found = [*map(self._frames, stacks.tolist())]
        return {
            "site": _Words(numbers, [self._site(stack) if stack else "" for stack in stacks.tolist()]),
            "stack": _Words(numbers, [";".join(reversed(frames)) for frames in found]),
        }

    def _site(self, stack: int) -> str:
        return self._sites.labels[int(self._sites.of_stack[stack])]

    def _frames(self, stack: int) -> list[str]:
        """Return the texts of the innermost frames of a stack."""
        found: list[str] = []
        while stack and len(found) < _MAX_FRAMES:
            stack, frame = self._stacks[stack]
            found.append(self._frame(frame))
        return found

    def _frame(self, row: int) -> str:
        if (known := self._texts.get(row)) is None:
            file, name, line = self._snapshot.frames[row].tolist()
            strings = self._snapshot.strings
            known = f"{_text(strings[name])} ({_text(strings[file])}:{line})".replace(";", ":")
            self._texts[row] = known
        return known


def _text(text: str) -> str:
    return printable(shortened(text, _MAX_NAME))


def _common(snapshot: Snapshot, rows: NDArray[np.void]) -> dict[str, Any]:
    return {
        "device": _Words(np.zeros(len(rows)), [_text(snapshot.device)]),
        "address": rows["address"],
        "bytes": rows["nbytes"],
        "stack_row": rows["stack"],
    }


def _history(snapshot: Snapshot, rows: NDArray[np.void], begin: int) -> dict[str, Any]:
    labels = [("", ""), *snapshot.labels]
    contexts, own = ([_text(label[side]) for label in labels] for side in range(2))
    internal = details_of(snapshot.notes, INTERNAL_METADATA, str)
    return {
        "entry": begin + np.arange(len(rows)),
        "time_ns": rows["time_ns"],
        "action": _Words(rows["action"], ["", *(action.name.lower() for action in Action)]),
        **_common(snapshot, rows),
        "stream": rows["queue"],
        "pool": rows["pool"],
        "compile_context": _Words(rows["note"], contexts),
        "user_metadata": _Words(rows["note"], own),
        "internal_metadata": _Words(rows["note"], [_text(internal.get(row, "")) for row in range(len(labels))]),
    }


def _blocks(snapshot: Snapshot, rows: NDArray[np.void], _: int) -> dict[str, Any]:
    segments = snapshot.segments[rows["segment"]]
    return {
        **_common(snapshot, rows),
        "requested": rows["requested"],
        "segment": segments["address"],
        "state": _Words(rows["state"], [state.name.lower() for state in State]),
        "stream": segments["queue"],
        "pool": segments["pool"],
    }


def _segments(snapshot: Snapshot, rows: NDArray[np.void], _: int) -> dict[str, Any]:
    return {
        **_common(snapshot, rows),
        "stream": rows["queue"],
        "pool": rows["pool"],
        "small": rows["small"] != 0,
        "expandable": rows["growing"] != 0,
    }


_COLUMNS: Mapping[str, Any] = {"history": _history, "blocks": _blocks, "segments": _segments}
