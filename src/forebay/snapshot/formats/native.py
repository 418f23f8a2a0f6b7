"""Snapshots on disk: a zip of one plain .npy per column and a manifest.json, readable without forebay.

`trace/time_ns.npy` is the column `time_ns` of `Snapshot.trace`, and so on. Measured with a million entries: a column
each at deflate level 1 is 6 to 9 MB against 40 MB stored, and takes a quarter of a second each way. Reading trusts
nothing: nothing is unpickled, no member is named by the file, and no size is believed before it has been compared.
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

from forebay.atomic_write import in_place_of
from forebay.errors import ForebayError
from forebay.snapshot.model import BLOCK, ENTRY, FRAME, SEGMENT, STACK, VERSION, Action, Snapshot, State

__all__ = ["BadSnapshot", "Progress", "check", "read", "write"]

Progress = Callable[[int, int], None]  # bytes done, bytes in all

_FORMAT = "forebay-snapshot"
_TABLES = {"segments": SEGMENT, "blocks": BLOCK, "trace": ENTRY, "stacks": STACK, "frames": FRAME}
_NEW = {"segments/home": 2, "segments/growing": 2, "trace/home": 2, "trace/note": 2}  # the versions they came with
_CHUNK = 1 << 22
_LARGEST_RATIO = 400  # a real history packs 4 to 50 times; deflate's own limit, which bombs use, is 1032
_ALWAYS_FINE = 16 << 20  # unpacked bytes that no machine minds, whatever the ratio
_HALF = 1 << 62  # two of anything below it still fit a signed 64-bit number


class BadSnapshot(ForebayError, ValueError):
    """The file (or the snapshot to be written) is cut short, foreign, or says something impossible."""


def write(snapshot: Snapshot, path: str | os.PathLike[str], progress: Progress | None = None) -> None:
    """Write the snapshot; the path holds a whole file or what it held before, whatever happens on the way."""
    check(snapshot)
    with in_place_of(Path(path)) as file:
        _pack(snapshot, file, progress)


def read(path: str | os.PathLike[str], progress: Progress | None = None) -> Snapshot:
    """The snapshot in a file that anybody may have made; raises BadSnapshot, or OSError if it cannot be opened.

    Columns that an older version did not have are zero.
    """
    path = Path(path)
    with path.open("rb") as file:
        try:
            with zipfile.ZipFile(file) as archive:
                snapshot = _unpack(archive, file.seek(0, os.SEEK_END), progress)
            check(snapshot)
        except BadSnapshot as error:
            raise BadSnapshot(f"{path}: {error}") from error.__cause__
        # zipfile raises the last two for what it cannot unpack: foreign methods, passwords.
        except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError) as error:
            raise BadSnapshot(f"{path}: not a forebay snapshot, or cut short: {error}") from error
    return snapshot


def check(snapshot: Snapshot) -> None:
    """Raise BadSnapshot unless every index points somewhere, stacks are trees and sizes can be added up."""
    s = snapshot
    for name, dtype in _TABLES.items():
        column = getattr(s, name)
        _demand(column.ndim == 1 and column.dtype == dtype, f"{name} has another dtype than the schema's")
    stacks = max(1, len(s.stacks))  # index 0 is "no stack" even where there are none at all
    for name, table, field, limit in (
        ("segment", s.segments, "stack", stacks),
        ("block", s.blocks, "stack", stacks),
        ("block", s.blocks, "segment", len(s.segments)),
        ("entry", s.trace, "stack", stacks),
        ("stack", s.stacks[1:], "frame", len(s.frames)),
        ("frame", s.frames, "file", len(s.strings)),
        ("frame", s.frames, "name", len(s.strings)),
        ("entry", s.trace, "note", len(s.labels) + 1),
    ):
        _demand(bool((table[field] < limit).all()), f"the {field} of a {name} points outside its table")
    _demand(bool((s.stacks["parent"][1:] < np.arange(1, stacks)).all()), "a stack's parent does not come before it")
    _demand(bool((s.blocks["state"] <= max(State)).all()), "a block is in no known state")
    actions = s.trace["action"]
    _demand(bool(((actions >= min(Action)) & (actions <= max(Action))).all()), "an entry has no known action")
    _demand(bool((s.trace["time_ns"] < _HALF).all()), "an entry's time is out of range")
    for name, table in (("segment", s.segments), ("block", s.blocks), ("entry", s.trace[actions != Action.OOM])):
        _demand(bool((table["address"] < _HALF).all()), f"the address of a {name} is out of range")
        _demand(float(table["nbytes"].sum(dtype=np.float64)) < _HALF, f"the {name} sizes are out of range")
    _demand(float(s.blocks["requested"].sum(dtype=np.float64)) < _HALF, "the requested sizes are out of range")
    for name, table in (("segments", s.segments), ("blocks", s.blocks)):
        ends = table["address"] + table["nbytes"]
        _demand(bool((ends[:-1] <= table["address"][1:]).all()), f"the {name} overlap or are not in order")
    home = s.segments[s.blocks["segment"]]
    inside = (s.blocks["address"] >= home["address"]) & (
        s.blocks["address"] + s.blocks["nbytes"] <= home["address"] + home["nbytes"]
    )
    _demand(bool(inside.all()), "a block lies outside its segment")


def _demand(condition: bool, otherwise: str) -> None:
    if not condition:
        raise BadSnapshot(otherwise)


def _columns(version: int = VERSION) -> Iterator[tuple[str, str, str, np.dtype[Any]]]:
    for table, dtype in _TABLES.items():
        for column in dtype.names or ():
            if _NEW.get(f"{table}/{column}", 1) <= version:
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
    """A member without a date, so that the same snapshot makes the same file."""
    info = zipfile.ZipInfo(name)
    info.compress_type = zipfile.ZIP_DEFLATED
    info._compresslevel = 1  # type: ignore[attr-defined]  # noqa: SLF001 - public from 3.13, as compress_level
    return info


def _unpack(archive: zipfile.ZipFile, packed: int, progress: Progress | None) -> Snapshot:
    members = {info.filename: info for info in archive.infolist()}
    _demand("manifest.json" in members, "not a forebay snapshot: there is no manifest.json")
    unpacked = sum(info.file_size for info in archive.infolist())
    _demand(
        all(info.compress_type in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED) for info in members.values()),
        "a member is packed in a foreign way",
    )
    _demand(unpacked <= max(_ALWAYS_FINE, packed * _LARGEST_RATIO), f"it claims to unpack to {unpacked} bytes")
    manifest = _manifest(archive.read(members["manifest.json"]))
    columns = list(_columns(manifest["version"]))
    names = {name for name, *_ in columns} | {"manifest.json"}
    _demand(len(archive.infolist()) == len(names), "a member is missing, foreign or there twice")
    _demand(members.keys() == names, f"members are missing or foreign: {sorted(members.keys() ^ names)[:3]}")

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
    """The manifest, every value of the type that the schema says."""
    try:
        manifest: dict[str, Any] = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise BadSnapshot(f"manifest.json is not JSON: {error}") from error
    _demand(isinstance(manifest, dict) and manifest.get("format") == _FORMAT, "not a forebay snapshot")
    version: Any = manifest.get("version")
    _demand(type(version) is int and version > 0, "the version is not a number")
    _demand(version <= VERSION, f"written by a newer forebay (version {version}; this one reads up to {VERSION})")
    if version < 2:
        manifest["labels"] = []
    kinds = {"device": str, "rows": dict, "strings": list, "stats": dict, "notes": dict, "labels": list}
    for name, kind in kinds.items():
        _demand(type(manifest.get(name)) is kind, f"{name} is missing or not a {kind.__name__}")
    numbers = {name: manifest.get(name) for name in ("capacity", "taken_at_ns", "lost")}
    for name, value in (*numbers.items(), *manifest["rows"].items(), *manifest["stats"].items()):
        _demand(type(value) is int and abs(value) < 1 << 63, f"{name} is missing or not a 64-bit number")
    _demand(all(type(text) is str for text in manifest["strings"]), "a string is not a string")
    for label in manifest["labels"]:
        _demand(type(label) is list and [type(text) for text in label] == [str, str], "a label is not two strings")
    _demand(min(manifest["capacity"], manifest["taken_at_ns"], manifest["lost"]) >= 0, "a negative size, time or count")
    return manifest


def _sizes(
    rows: Mapping[str, int],
    members: Mapping[str, zipfile.ZipInfo],
    columns: list[tuple[str, str, str, np.dtype[Any]]],
) -> dict[str, int]:
    """Rows of every table; no more than its members' bytes can hold, so that nothing is made before it is there."""
    _demand(rows.keys() == _TABLES.keys(), "the manifest does not say how long the tables are")
    for name, table, _, dtype in columns:
        _demand(0 <= rows[table] * dtype.itemsize <= members[name].file_size, f"{name} is cut short")
    return dict(rows)


def _values(source: IO[bytes], name: str, dtype: np.dtype[Any], rows: int) -> Iterator[tuple[int, NDArray[Any]]]:
    """The values of one member, piece by piece, with the row of the first."""
    try:
        _demand(npy.read_magic(source) == (1, 0), f"{name} is in another .npy version")
        shape, by_column, found = npy.read_array_header_1_0(source)
    except Exception as error:  # numpy's header parser fails in many ways, and every one means the same
        raise BadSnapshot(f"{name} has a broken .npy header: {error}") from error
    _demand(
        (shape, by_column, found) == ((rows,), False, dtype), f"{name} holds {found} {shape}, not {dtype} ({rows},)"
    )
    at = 0
    while at < rows:
        piece = source.read(min(_CHUNK, (rows - at) * dtype.itemsize))
        _demand(bool(piece) and len(piece) % dtype.itemsize == 0, f"{name} is cut short")
        yield at, np.frombuffer(piece, dtype)
        at += len(piece) // dtype.itemsize
    _demand(not source.read(1), f"{name} is longer than the manifest says")
