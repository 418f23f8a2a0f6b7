"""forebay's snapshot format: a zip of one plain .npy file per column and a manifest.json, readable without forebay.

`trace/time_ns.npy` is the column `time_ns` of `Snapshot.trace`, and so on. Measured with a million entries: one member
per column at deflate level 1 takes 6 to 9 MB instead of 40 MB uncompressed, and a quarter of a second each way. The
reader treats files as untrusted: it does not unpickle, opens only members with known names, and compares every size
with the file before it allocates memory.
"""

from __future__ import annotations

import json
import os
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import IO, Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from forebay.atomic_write import atomic_write
from forebay.errors import ForebayError
from forebay.snapshot.model import BLOCK, ENTRY, FRAME, SEGMENT, STACK, VERSION, Action, Snapshot, State

__all__ = ["BadSnapshot", "Progress", "check", "read", "write"]

Progress = Callable[[int, int], None]  # bytes done, bytes in total

_FORMAT = "forebay-snapshot"
_TABLES = {"segments": SEGMENT, "blocks": BLOCK, "trace": ENTRY, "stacks": STACK, "frames": FRAME}
_SINCE = {"segments/home": 2, "segments/growing": 2, "trace/home": 2, "trace/note": 2}  # first version with the column
_CHUNK = 1 << 22
_MAX_RATIO = 400  # real histories compress 4 to 50 times; deflate's limit, which zip bombs reach, is 1032
_MAX_UNCHECKED = 16 << 20  # uncompressed bytes accepted at any ratio
_MAX_VALUE = 1 << 62  # the sum of two smaller values fits a signed 64-bit integer


class BadSnapshot(ForebayError, ValueError):
    """A snapshot file, or a snapshot to be written, is truncated, in another format, or inconsistent."""


def write(snapshot: Snapshot, path: str | os.PathLike[str], progress: Progress | None = None) -> None:
    """Write a snapshot to a file.

    The file is replaced atomically: after an error, `path` holds what it held before.

    Parameters
    ----------
    snapshot : Snapshot
        The snapshot.
    path : str or os.PathLike
        The file to write.
    progress : callable, optional
        Called as `progress(bytes_done, bytes_total)`.

    Raises
    ------
    BadSnapshot
        If the snapshot is inconsistent.
    OSError
        If the file cannot be written.

    Notes
    -----
    The same snapshot always results in the same bytes.
    """
    check(snapshot)
    with atomic_write(Path(path)) as file:
        _pack(snapshot, file, progress)


def read(path: str | os.PathLike[str], progress: Progress | None = None) -> Snapshot:
    """Read a snapshot from an untrusted file.

    Parameters
    ----------
    path : str or os.PathLike
        A file from `write`.
    progress : callable, optional
        Called as `progress(bytes_done, bytes_total)`.

    Returns
    -------
    Snapshot
        The snapshot. Columns that an older version of the format lacks are zero.

    Raises
    ------
    BadSnapshot
        If the file is truncated, in another format, or inconsistent.
    OSError
        If the file cannot be opened.
    """
    path = Path(path)
    with path.open("rb") as file:
        try:
            with zipfile.ZipFile(file) as archive:
                snapshot = _unpack(archive, file.seek(0, os.SEEK_END), progress)
            check(snapshot)
        except BadSnapshot as error:
            raise BadSnapshot(f"{path}: {error}") from error.__cause__
        # zipfile raises the last two for unsupported compression methods and for encryption.
        except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError) as error:
            raise BadSnapshot(f"{path}: not a forebay snapshot, or truncated: {error}") from error
    return snapshot


def check(snapshot: Snapshot) -> None:
    """Check that a snapshot is consistent.

    Every index must be valid, stacks must be trees, blocks must lie in their segments, and sums of sizes must not
    overflow.

    Parameters
    ----------
    snapshot : Snapshot
        The snapshot.

    Raises
    ------
    BadSnapshot
        If the snapshot is inconsistent.
    """
    s = snapshot
    for name, dtype in _TABLES.items():
        column = getattr(s, name)
        _require(column.ndim == 1 and column.dtype == dtype, f"{name} does not have the dtype of the schema")
    stacks = max(1, len(s.stacks))  # index 0 means "no stack" even if the table is empty
    for name, table, field, limit in (
        ("a segment", s.segments, "stack", stacks),
        ("a block", s.blocks, "stack", stacks),
        ("a block", s.blocks, "segment", len(s.segments)),
        ("an entry", s.trace, "stack", stacks),
        ("a stack", s.stacks[1:], "frame", len(s.frames)),
        ("a frame", s.frames, "file", len(s.strings)),
        ("a frame", s.frames, "name", len(s.strings)),
        ("an entry", s.trace, "note", len(s.labels) + 1),
    ):
        _require(bool((table[field] < limit).all()), f"the {field} of {name} is not in its table")
    _require(bool((s.stacks["parent"][1:] < np.arange(1, stacks)).all()), "a stack's parent does not precede it")
    _require(bool((s.blocks["state"] <= max(State)).all()), "a block has an unknown state")
    actions = s.trace["action"]
    _require(bool(((actions >= min(Action)) & (actions <= max(Action))).all()), "an entry has an unknown action")
    _require(bool((s.trace["time_ns"] < _MAX_VALUE).all()), "an entry's time is out of range")
    for name, table in (("segments", s.segments), ("blocks", s.blocks), ("trace", s.trace[actions != Action.OOM])):
        _require(bool((table["address"] < _MAX_VALUE).all()), f"an address in {name} is out of range")
        _require(float(table["nbytes"].sum(dtype=np.float64)) < _MAX_VALUE, f"the sizes in {name} are out of range")
    _require(float(s.blocks["requested"].sum(dtype=np.float64)) < _MAX_VALUE, "the requested sizes are out of range")
    for name, table in (("segments", s.segments), ("blocks", s.blocks)):
        ends = table["address"] + table["nbytes"]
        _require(bool((ends[:-1] <= table["address"][1:]).all()), f"the {name} overlap or are not sorted by address")
    home = s.segments[s.blocks["segment"]]
    inside = (s.blocks["address"] >= home["address"]) & (
        s.blocks["address"] + s.blocks["nbytes"] <= home["address"] + home["nbytes"]
    )
    _require(bool(inside.all()), "a block lies outside its segment")


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise BadSnapshot(message)


def _columns(version: int = VERSION) -> Iterator[tuple[str, str, str, np.dtype[Any]]]:
    for table, dtype in _TABLES.items():
        for column in dtype.names or ():
            if _SINCE.get(f"{table}/{column}", 1) <= version:
                yield f"{table}/{column}.npy", table, column, dtype[column].newbyteorder("<")


def _pack(snapshot: Snapshot, file: IO[bytes], progress: Progress | None) -> None:
    manifest = {
        "format": _FORMAT,
        "version": VERSION,
        "device": snapshot.device,
        "capacity": snapshot.capacity,
        "taken_at_ns": snapshot.taken_at_ns,
        "lost": snapshot.lost,
        "rows": {table: len(getattr(snapshot, table)) for table in _TABLES},
        "strings": snapshot.strings,
        "stats": dict(snapshot.stats),
        "notes": dict(snapshot.notes),
        "labels": snapshot.labels,
    }
    total = sum(len(getattr(snapshot, table)) * dtype.itemsize for _, table, _, dtype in _columns())
    done = 0
    with zipfile.ZipFile(file, "w") as archive:
        with archive.open(_member("manifest.json"), "w") as out:
            out.write(json.dumps(manifest, indent=1).encode("ascii"))
        for name, table, column, dtype in _columns():
            values = np.ascontiguousarray(getattr(snapshot, table)[column], dtype)
            with archive.open(_member(name), "w") as out:
                npy.write_array_header_1_0(out, npy.header_data_from_array_1_0(values))
                raw = memoryview(values.view(np.uint8).data)
                for at in range(0, len(raw), _CHUNK):
                    out.write(raw[at : at + _CHUNK])
                    done += len(raw[at : at + _CHUNK])
                    if progress:
                        progress(done, total)


def _member(name: str) -> zipfile.ZipInfo:
    """Return a member without a date, so that the same snapshot results in the same file."""
    info = zipfile.ZipInfo(name)
    info.compress_type = zipfile.ZIP_DEFLATED
    info._compresslevel = 1  # type: ignore[attr-defined]  # noqa: SLF001 - public from 3.13, as compress_level
    return info


def _unpack(archive: zipfile.ZipFile, packed: int, progress: Progress | None) -> Snapshot:
    members = {info.filename: info for info in archive.infolist()}
    _require("manifest.json" in members, "not a forebay snapshot: manifest.json is missing")
    unpacked = sum(info.file_size for info in archive.infolist())
    _require(
        all(info.compress_type in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED) for info in members.values()),
        "a member has an unsupported compression method",
    )
    _require(unpacked <= max(_MAX_UNCHECKED, packed * _MAX_RATIO), f"it claims to unpack to {unpacked} bytes")
    manifest = _manifest(archive.read(members["manifest.json"]))
    columns = list(_columns(manifest["version"]))
    names = {name for name, *_ in columns} | {"manifest.json"}
    _require(len(archive.infolist()) == len(names), "a member is missing, unknown or duplicated")
    _require(members.keys() == names, f"members are missing or unknown: {sorted(members.keys() ^ names)[:3]}")

    sizes = _sizes(manifest["rows"], members, columns)
    tables: dict[str, Any] = {name: np.zeros(rows, _TABLES[name]) for name, rows in sizes.items()}
    total, done = sum(table.nbytes for table in tables.values()), 0
    for name, table, column, dtype in columns:
        with archive.open(members[name]) as source:
            for at, values in _values(source, name, dtype, len(tables[table])):
                tables[table][column][at : at + len(values)] = values
                done += values.nbytes
                if progress:
                    progress(done, total)
    return Snapshot(
        device=manifest["device"],
        capacity=manifest["capacity"],
        taken_at_ns=manifest["taken_at_ns"],
        lost=manifest["lost"],
        strings=tuple(manifest["strings"]),
        stats=MappingProxyType(manifest["stats"]),
        notes=MappingProxyType(manifest["notes"]),
        labels=tuple((context, own) for context, own in manifest["labels"]),
        **tables,
    )


def _manifest(raw: bytes) -> dict[str, Any]:
    """Parse the manifest and check the type of every value."""
    try:
        manifest: dict[str, Any] = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise BadSnapshot(f"manifest.json is not JSON: {error}") from error
    _require(isinstance(manifest, dict) and manifest.get("format") == _FORMAT, "not a forebay snapshot")
    version: Any = manifest.get("version")
    _require(type(version) is int and version > 0, "the version is not a positive integer")
    _require(version <= VERSION, f"written by a newer forebay (version {version}; this one reads up to {VERSION})")
    if version < 2:
        manifest["labels"] = []
    kinds = {"device": str, "rows": dict, "strings": list, "stats": dict, "notes": dict, "labels": list}
    for name, kind in kinds.items():
        _require(type(manifest.get(name)) is kind, f"{name} is missing or not a {kind.__name__}")
    numbers = {name: manifest.get(name) for name in ("capacity", "taken_at_ns", "lost")}
    for name, value in (*numbers.items(), *manifest["rows"].items(), *manifest["stats"].items()):
        _require(type(value) is int and abs(value) < 1 << 63, f"{name} is missing or not a 64-bit integer")
    _require(all(type(text) is str for text in manifest["strings"]), "an item of strings is not a string")
    for label in manifest["labels"]:
        _require(
            type(label) is list and [type(text) for text in label] == [str, str], "a label is not a pair of strings"
        )
    _require(
        min(manifest["capacity"], manifest["taken_at_ns"], manifest["lost"]) >= 0, "a size, time or count is negative"
    )
    return manifest


def _sizes(
    rows: Mapping[str, int],
    members: Mapping[str, zipfile.ZipInfo],
    columns: list[tuple[str, str, str, np.dtype[Any]]],
) -> dict[str, int]:
    """Return the rows of every table, limited by the size of its members, so that no larger array is allocated."""
    _require(rows.keys() == _TABLES.keys(), "the manifest does not list the lengths of the tables")
    for name, table, _, dtype in columns:
        _require(0 <= rows[table] * dtype.itemsize <= members[name].file_size, f"{name} is truncated")
    return dict(rows)


def _values(source: IO[bytes], name: str, dtype: np.dtype[Any], rows: int) -> Iterator[tuple[int, NDArray[Any]]]:
    """Yield the values of one member in chunks, each with the row of its first value."""
    try:
        _require(npy.read_magic(source) == (1, 0), f"{name} has an unsupported .npy version")
        shape, fortran_order, found = npy.read_array_header_1_0(source)
    except Exception as error:  # NumPy's header parser raises many types of exceptions
        raise BadSnapshot(f"{name} has an invalid .npy header: {error}") from error
    _require(
        (shape, fortran_order, found) == ((rows,), False, dtype), f"{name} holds {found} {shape}, not {dtype} ({rows},)"
    )
    at = 0
    while at < rows:
        chunk = source.read(min(_CHUNK, (rows - at) * dtype.itemsize))
        _require(bool(chunk) and len(chunk) % dtype.itemsize == 0, f"{name} is truncated")
        yield at, np.frombuffer(chunk, dtype)
        at += len(chunk) // dtype.itemsize
    _require(not source.read(1), f"{name} is longer than the manifest states")
