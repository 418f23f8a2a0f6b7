"""forebay's snapshot format: a zip of one plain .npy file per column and a manifest.json, readable without forebay.

`trace/time_ns.npy` is the column `time_ns` of `Snapshot.trace`, and so on. Measured with a million entries: one member
per column at deflate level 1 takes 6 to 9 MB instead of 40 MB uncompressed, and a quarter of a second each way. The
reader treats files as untrusted: it does not unpickle, opens only members with known names, and compares every size
with the file before it allocates memory.
"""

from __future__ import annotations

import errno
import json
import os
import re
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import IO, Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from forebay._base.atomic_write import atomic_write
from forebay._base.untrusted import open_regular
from forebay.records.model import BLOCK, ENTRY, FRAME, SEGMENT, STACK, VERSION, Action, Snapshot, State
from forebay.snapshot.formats.budget import BadSnapshot, Budget

__all__ = ["BadSnapshot", "Progress", "check", "read", "write"]

Progress = Callable[[int, int], None]  # bytes done, bytes in total

_FORMAT = "forebay-snapshot"
_TABLES = {"segments": SEGMENT, "blocks": BLOCK, "trace": ENTRY, "stacks": STACK, "frames": FRAME}
_SINCE = {"segments/pool": 2, "segments/growing": 2, "trace/pool": 2, "trace/note": 2}  # first version with the column
_MEMBERS = {"pool": "home"}  # names of columns in the file, where they are others
_CHUNK = 1 << 22
_TABLE_COST = 2  # bytes of memory per byte of a table: the table, and the copies that `check` makes
_HEADER = re.compile(rb"\{'descr': '(<u[48])', 'fortran_order': False, 'shape': \((\d{1,18}),\), \} *\n")
_MAX_DEVICE_NAME = 200
_MAX_VALUE = 1 << 62  # the sum of two smaller values fits a signed 64-bit integer


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
        cost = _pack(snapshot, file, progress)
        if cost > Budget.of_file(file.tell()).left:  # so regular that the reader would take it for a bomb
            file.seek(0)
            file.truncate()
            _pack(snapshot, file, progress, loose=True)


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
        If the file cannot be opened, or is a directory, a pipe or a device.
    """
    path = Path(path)
    with open_regular(path) as file:
        try:
            with zipfile.ZipFile(file) as archive:
                snapshot = _unpack(archive, file.seek(0, os.SEEK_END), progress)
            check(snapshot)
        except BadSnapshot as error:
            raise BadSnapshot(f"{path}: {error}") from error.__cause__
        # zipfile raises the last two for unsupported compression methods and for encryption.
        except OSError as error:
            if error.errno != errno.EINVAL:  # a seek to an offset that the file does not have
                raise
            raise BadSnapshot(f"{path}: not a forebay snapshot: an offset is out of range") from None
        except (
            zipfile.BadZipFile,
            zlib.error,
            EOFError,
            NotImplementedError,
            RuntimeError,
            struct.error,
            UnicodeError,
        ) as error:
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
    around = s.segments[s.blocks["segment"]]
    inside = (s.blocks["address"] >= around["address"]) & (
        s.blocks["address"] + s.blocks["nbytes"] <= around["address"] + around["nbytes"]
    )
    _require(bool(inside.all()), "a block lies outside its segment")


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise BadSnapshot(message)


def _columns(version: int = VERSION) -> Iterator[tuple[str, str, str, np.dtype[Any]]]:
    for table, dtype in _TABLES.items():
        for column in dtype.names or ():
            if _SINCE.get(f"{table}/{column}", 1) <= version:
                yield f"{table}/{_MEMBERS.get(column, column)}.npy", table, column, dtype[column].newbyteorder("<")


def _manifest_of(snapshot: Snapshot) -> bytes:
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
    return json.dumps(manifest, indent=1).encode("ascii")


def _manifest_cost(raw: bytes) -> int:
    """Return an upper bound of the memory that parsing the manifest takes.

    Each value takes a reference and an object; a dict is made with room for eight keys. A string with an escape
    sequence may take four bytes per character.
    """
    objects = 40 * raw.count(b",") + 72 * raw.count(b"[") + 240 * raw.count(b"{") + 72 * raw.count(b":")
    return objects + 24 * raw.count(b'"') + (6 if b"\\u" in raw else 3) * len(raw)


def _pack(snapshot: Snapshot, file: IO[bytes], progress: Progress | None, *, loose: bool = False) -> int:
    """Write all members and return the bytes of memory that reading them takes.

    `loose` leaves the manifest and the first column of each table uncompressed: a sixth of the table or more.
    """
    manifest = _manifest_of(snapshot)
    total = sum(len(getattr(snapshot, table)) * dtype.itemsize for _, table, _, dtype in _columns())
    done = 0
    with zipfile.ZipFile(file, "w") as archive:
        with archive.open(_member("manifest.json", stored=loose), "w") as out:
            out.write(manifest)
        for name, table, column, dtype in _columns():
            values = np.ascontiguousarray(getattr(snapshot, table)[column], dtype)
            stored = loose and column == (_TABLES[table].names or ())[0]
            with archive.open(_member(name, stored=stored), "w") as out:
                npy.write_array_header_1_0(out, npy.header_data_from_array_1_0(values))
                raw = memoryview(values.view(np.uint8).data)
                for at in range(0, len(raw), _CHUNK):
                    out.write(raw[at : at + _CHUNK])
                    done += len(raw[at : at + _CHUNK])
                    if progress:
                        progress(done, total)
    return _manifest_cost(manifest) + _TABLE_COST * total


def _member(name: str, *, stored: bool) -> zipfile.ZipInfo:
    """Return a member without a date, so that the same snapshot results in the same file."""
    info = zipfile.ZipInfo(name)
    info.compress_type = zipfile.ZIP_STORED if stored else zipfile.ZIP_DEFLATED
    info._compresslevel = 1  # type: ignore[attr-defined]  # noqa: SLF001 - public from 3.13, as compress_level
    return info


def _unpack(archive: zipfile.ZipFile, packed: int, progress: Progress | None) -> Snapshot:
    members = {info.filename: info for info in archive.infolist()}
    _require("manifest.json" in members, "not a forebay snapshot: manifest.json is missing")
    budget = Budget.of_file(packed)
    _require(
        all(info.compress_type in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED) for info in members.values()),
        "a member has an unsupported compression method",
    )
    budget.charge(2 * members["manifest.json"].file_size)
    raw = archive.read(members["manifest.json"])
    budget.charge(_manifest_cost(raw) - 2 * len(raw))
    manifest = _manifest(raw)
    del raw
    columns = list(_columns(manifest["version"]))
    names = {name for name, *_ in columns} | {"manifest.json"}
    _require(len(archive.infolist()) == len(names), "a member is missing, unknown or duplicated")
    _require(members.keys() == names, f"members are missing or unknown: {sorted(members.keys() ^ names)[:3]}")

    sizes = _sizes(manifest["rows"], members, columns)
    budget.charge(_TABLE_COST * sum(rows * _TABLES[table].itemsize for table, rows in sizes.items()))
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
    types = {"device": str, "rows": dict, "strings": list, "stats": dict, "notes": dict, "labels": list}
    for name, wanted in types.items():
        _require(type(manifest.get(name)) is wanted, f"{name} is missing or not a {wanted.__name__}")
    numbers = {name: manifest.get(name) for name in ("capacity", "taken_at_ns", "lost")}
    for name, value in (*numbers.items(), *manifest["rows"].items(), *manifest["stats"].items()):
        _require(type(value) is int and abs(value) < 1 << 63, f"{name} is missing or not a 64-bit integer")
    _require(len(manifest["device"]) <= _MAX_DEVICE_NAME, "the name of the device is too long")
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
    prefix = source.read(10)  # of version 1.0: the magic string, the version, and the length of the header
    _require(prefix[:8] == npy.magic(1, 0) and len(prefix) == 10, f"{name} has an unsupported .npy version")
    header = _HEADER.fullmatch(source.read(int.from_bytes(prefix[8:], "little")))
    _require(header is not None, f"{name} has an invalid .npy header")
    found, length = header.groups() if header else (b"", b"")
    _require(
        (found.decode(), int(length)) == (dtype.newbyteorder("<").str, rows),
        f"{name} holds {int(length)} of {found.decode()}, not {rows} of {dtype.str}",
    )
    at = 0
    while at < rows:
        chunk = source.read(min(_CHUNK, (rows - at) * dtype.itemsize))
        _require(bool(chunk) and len(chunk) % dtype.itemsize == 0, f"{name} is truncated")
        yield at, np.frombuffer(chunk, dtype)
        at += len(chunk) // dtype.itemsize
    _require(not source.read(1), f"{name} is longer than the manifest states")
