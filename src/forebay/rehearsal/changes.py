"""Changes of a program in its overlays: changed files, deleted files, and new files."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal

__all__ = ["Change", "Layer", "read_changes"]

_Kind = Literal["changed", "deleted", "renamed", "new"]
_NAMESPACES = ("trusted", "user")  # of overlayfs' attributes: mounted by root, and in a user namespace
_BYTECODE = "__pycache__"


@dataclass(frozen=True, slots=True)
class Layer:
    """The changes of one overlay: the real folder below it, and the folder that has the changes.

    `deleted` is a second folder of changes with a file for each deleted one, where the file system does not record
    deletions itself.
    """

    real: str
    upper: str
    deleted: str = ""


@dataclass(frozen=True, slots=True)
class Change:
    """One file or folder that differs from the real one."""

    path: str  # where the program sees it
    kind: _Kind  # "renamed" is a folder that exists under another name
    source: str = ""  # where the content is; "" for a deleted one
    mode: int = 0  # type and permissions
    nbytes: int = 0  # size of a file
    held: int = 0  # bytes that it takes: less than the size for tensors without values

    @property
    def is_folder(self) -> bool:
        return stat.S_ISDIR(self.mode)


def read_changes(layers: list[Layer]) -> list[Change]:
    """Return the changes of all layers, sorted by path. Entries that disappear during the walk are left out."""
    found = [change for layer in layers for change in _folder(layer, "", is_new=not os.path.lexists(layer.real))]
    found += [change for layer in layers if layer.deleted for change in _deleted(layer, "")]
    return sorted(found, key=lambda each: each.path)


def _folder(layer: Layer, inner: str, *, is_new: bool) -> Iterator[Change]:
    try:
        entries = sorted(os.scandir(f"{layer.upper}{inner}"), key=lambda each: each.name)
    except OSError:
        return
    for entry in entries:
        if entry.name != _BYTECODE:
            with suppress(FileNotFoundError):
                yield from _entry(layer, f"{inner}/{entry.name}", entry.stat(follow_symlinks=False), is_new=is_new)


def _entry(layer: Layer, inner: str, found: os.stat_result, *, is_new: bool) -> Iterator[Change]:
    path, source = f"{layer.real.rstrip('/')}{inner}", f"{layer.upper}{inner}"
    real = None if is_new else _status(path)
    if stat.S_ISCHR(found.st_mode) and found.st_rdev == 0:  # overlayfs' mark of a deleted entry
        if real is not None:
            yield Change(path, "deleted")
        return
    size, held = (found.st_size, found.st_blocks * 512) if stat.S_ISREG(found.st_mode) else (0, 0)
    if not stat.S_ISDIR(found.st_mode):
        if real is None:
            yield Change(path, "new", source, found.st_mode, size, held)
        elif _differs(found, real):
            yield Change(path, "changed", source, found.st_mode, size, held)
        return
    is_folder = real is not None and stat.S_ISDIR(real.st_mode)
    if _attribute(source, "redirect"):
        yield Change(path, "renamed", source, found.st_mode)
        return
    if not is_folder:
        yield Change(path, "new" if real is None else "changed", source, found.st_mode)
    elif real is not None and (found.st_mode ^ real.st_mode) & ~stat.S_IRWXU:  # what the owner may is not comparable
        yield Change(path, "changed", source, found.st_mode)
    if is_folder and _attribute(source, "opaque") == b"y":  # deleted, and made again
        yield from _hidden(path, source)
    yield from _folder(layer, inner, is_new=not is_folder)


def _differs(one: os.stat_result, other: os.stat_result) -> bool:
    """Return False for a file that was opened for writing, which copies it, and not written."""
    return (one.st_mode, one.st_size, one.st_mtime_ns) != (other.st_mode, other.st_size, other.st_mtime_ns)


def _hidden(path: str, source: str) -> Iterator[Change]:
    with suppress(OSError):
        for name in sorted(os.listdir(path)):  # noqa: PTH208 -- names
            if name != _BYTECODE and not os.path.lexists(f"{source}/{name}"):
                yield Change(f"{path}/{name}", "deleted")


def _deleted(layer: Layer, inner: str) -> Iterator[Change]:
    try:
        entries = sorted(os.scandir(f"{layer.deleted}{inner}"), key=lambda each: each.name)
    except OSError:
        return
    for entry in entries:
        path = f"{layer.real.rstrip('/')}{inner}/{entry.name}"
        if entry.is_dir(follow_symlinks=False):
            yield from _deleted(layer, f"{inner}/{entry.name}")
        elif os.path.lexists(path) and not os.path.lexists(f"{layer.upper}{inner}/{entry.name}"):
            yield Change(path, "deleted")


def _attribute(path: str, name: str) -> bytes:
    for namespace in _NAMESPACES if sys.platform == "linux" else ():
        with suppress(OSError):
            return os.getxattr(path, f"{namespace}.overlay.{name}", follow_symlinks=False)
    return b""


def _status(path: str) -> os.stat_result | None:
    try:
        return os.lstat(path)
    except (OSError, ValueError):
        return None
