"""Which new files of a run without values are created for real, and their creation."""

from __future__ import annotations

import codecs
import os
import shutil
import stat
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from forebay.rehearsal.changes import Change
from forebay.rehearsal.mount_table import is_below

__all__ = ["choose", "create"]

# Note [New files]
# A file of a run without values has two kinds of content: text about the run, and data. Data may be computed from
# values that do not exist, and no name or format tells reliably whether it is (a plot, a pickle, a database). So only
# text is created. Half a folder of data is worse than none, as a later run would resume from it: a new folder with data
# directly inside is not created at all, with all that it has. The same holds for a file of several parts, of which some
# are text: the index of a `shelve` or of a sharded checkpoint. Downloads are kept: they do not depend on values.
# Test: tests/rehearsal/test_new_files.py::test_new_folder_with_data_is_left_out_with_all_that_it_has

_MOST_TEXT = 16 << 20  # bytes of a file that may be text
_PIECE = 1 << 20


def choose(changes: list[Change], kept: Callable[[str], bool], replaced: Callable[[str], bool]) -> list[Change]:
    """Return the new files, folders and links to create.

    `kept` returns True for the path of a file that is created whatever it contains, and `replaced` for that of a file
    that is written even if it exists.
    """
    new = [each for each in changes if each.kind == "new" or (each.kind == "changed" and replaced(each.path))]
    texts = {each.path: kept(each.path) or _is_text(each) for each in new if stat.S_ISREG(each.mode)}
    data = {path for path, is_text in texts.items() if not is_text}
    data |= {each.path for each in changes if each.kind == "changed" and not replaced(each.path)}
    for path in [path for path in texts if not kept(path) and not data.isdisjoint(_parts(path, data))]:
        texts[path] = False  # after its data, whose folder is refused already
    folders = {each.path for each in new if each.is_folder}
    refused = {str(Path(path).parent) for path, is_text in texts.items() if not is_text} & folders
    chosen = [
        each
        for each in new
        if texts.get(each.path, not stat.S_ISREG(each.mode))
        and (kept(each.path) or not any(is_below(each.path, folder) for folder in refused))
        and (stat.S_ISREG(each.mode) or stat.S_ISDIR(each.mode) or stat.S_ISLNK(each.mode))
    ]
    return _without_idle_folders(chosen)


def _parts(path: str, data: set[str]) -> set[str]:
    """Return files without which a text is useless: those of dbm.dumb, and the shards that an index names."""
    base, suffix = os.path.splitext(path)  # noqa: PTH122 -- texts
    if suffix in (".dir", ".bak"):
        return {f"{base}.dat"}
    if path.endswith(".index.json"):
        stem = os.path.splitext(path.removesuffix(".index.json"))[0]  # noqa: PTH122 -- as above
        return {each for each in data if each.startswith(f"{stem}-")}
    return set()


def _without_idle_folders(chosen: list[Change]) -> list[Change]:
    """Leave out folders in which nothing is created, and links to nothing, as to a checkpoint that is not created."""
    names = {each.path for each in chosen if not stat.S_ISLNK(each.mode)}
    links = [each for each in chosen if stat.S_ISLNK(each.mode) and _has_target(each, names)]
    files = [each for each in chosen if stat.S_ISREG(each.mode)] + links
    needed = {str(parent) for each in files for parent in Path(each.path).parents}
    folders = [each for each in chosen if each.is_folder and each.path in needed]
    return sorted([*folders, *files], key=lambda each: each.path)


def _has_target(link: Change, names: set[str]) -> bool:
    with suppress(OSError):
        target = os.path.normpath(Path(link.path).parent / Path(link.source).readlink())  # not resolved: it may be new
        return target in names or Path(target).exists()
    return False


def _is_text(change: Change) -> bool:
    """Return True for UTF-8 without null characters."""
    if change.nbytes > _MOST_TEXT:
        return False
    decoder = codecs.getincrementaldecoder("utf-8")()
    try:
        handle = os.open(change.source, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
        with os.fdopen(handle, "rb") as file:
            while piece := file.read(_PIECE):
                if b"\0" in piece:
                    return False
                decoder.decode(piece)
            decoder.decode(b"", final=True)
    except (OSError, UnicodeDecodeError):
        return False
    return True


def create(chosen: list[Change], replaced: Callable[[str], bool]) -> tuple[list[str], dict[str, str]]:
    """Create what was chosen. Return the paths that were created, and the reasons for those that were not.

    Nothing that exists is replaced, apart from files for which `replaced` returns True.
    """
    created, failed = [], {}
    for each in chosen:
        try:
            if each.is_folder:
                Path(each.path).mkdir(stat.S_IMODE(each.mode) | stat.S_IRWXU)
            elif stat.S_ISLNK(each.mode):
                Path(each.path).symlink_to(Path(each.source).readlink())
            else:
                _copy(each, replace=replaced(each.path))
        except FileExistsError:
            if not each.is_folder:
                failed[each.path] = "another process has created it during the run"
        except OSError as error:
            failed[each.path] = error.strerror or str(error)
        else:
            created.append(each.path)
    return created, failed


def _copy(change: Change, *, replace: bool) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC | (os.O_TRUNC if replace else os.O_EXCL)
    source = os.open(change.source, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    with os.fdopen(source, "rb") as reader:
        target = os.open(change.path, flags, stat.S_IMODE(change.mode))
        with os.fdopen(target, "wb") as writer:
            shutil.copyfileobj(reader, writer)
        found = os.fstat(reader.fileno())
        os.utime(change.path, ns=(found.st_atime_ns, found.st_mtime_ns))
