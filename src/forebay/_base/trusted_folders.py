"""Folders in which forebay makes files of its own, or reads them: never those of other users."""

from __future__ import annotations

import errno
import os
import stat
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

__all__ = [
    "check_folder",
    "check_target",
    "make_folder",
    "named_errors",
    "open_folder",
    "open_place",
]

# Note [Trusted folders]
# The owner of a folder can replace every file in it by a link, at any moment: to a file of the user that is then
# overwritten, or to one that is then read in place of the user's. So forebay makes files, folders and sockets of its
# own only in trusted folders, and reads its caches, sockets and results of child processes only there. `check_folder`
# decides:
# * A folder is trusted if it belongs to the user, to root, or to the owner of "/" (in a container, root of the machine
#   may have another number), and not everyone can write to it. With the sticky bit, as in /tmp, everyone may: no one
#   can replace the files of others there. A `private` folder (caches, sockets) belongs to the user, and no other user
#   can write to it, sticky or not. The group may write to other folders, as many systems give each user a group.
# * A symbolic link, in any component of a path, is followed only if its owner is one of these.
# * In a shared folder, a file of someone else is not replaced, and a device or pipe of someone else not opened.
# The folders above need no check: the path is walked by descriptors, so no component can be replaced afterwards.
# Files that the user names as input may belong to anyone: their content is hostile, and read as
# docs/design/untrusted-snapshots.md describes.
# Files that a program names in functions of PyTorch, such as `_dump_snapshot`, are written as by `open`.
# Test: tests/_base/test_trusted_folders.py::test_folder_of_another_user_is_refused

_DIRECTORY = os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC | getattr(os, "O_PATH", os.O_RDONLY)
_MOST_LINKS = 40  # that Linux follows


def _is_trusted(owner: int) -> bool:
    return owner in (os.geteuid(), 0, Path("/").stat().st_uid)


def _refuse(path: str | os.PathLike[str], reason: str, number: int = errno.EPERM) -> NoReturn:
    raise OSError(number, reason, os.fspath(path))


def check_folder(status: os.stat_result, path: str | os.PathLike[str], *, private: bool = False) -> None:
    """Raise PermissionError unless a folder is trusted: see Note [Trusted folders].

    It is not if it belongs to another user, or others can replace files in it; if it has to be `private`, also if
    others can write to it. `status` is best that of an open descriptor; `path` is for the text of the error.
    """
    if not _is_trusted(status.st_uid) or (private and status.st_uid != os.geteuid()):
        _refuse(
            path,
            f"the folder belongs to another user (number {status.st_uid}), who can replace the files in it: choose a "
            "folder of your own",
        )
    others = 0o022 if private else 0o002
    if status.st_mode & others and (private or not status.st_mode & stat.S_ISVTX):
        _refuse(path, "other users can replace the files in the folder: choose another one, or change its mode to 0700")


def check_target(folder: int, name: str, path: str | os.PathLike[str]) -> os.stat_result | None:
    """Return the status of a file that would be replaced, or written if it is a device or a pipe; None: there is none.

    PermissionError is raised if `folder`, a descriptor, is not trusted, or the file belongs to another user and lies in
    a shared folder. `path` is for the text of the error.
    """
    around = os.fstat(folder)
    try:
        found = os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        found = None
    is_special = found is not None and not (stat.S_ISREG(found.st_mode) or stat.S_ISDIR(found.st_mode))
    if not is_special:
        check_folder(around, Path(path).parent)
    if (
        found is not None
        and around.st_mode & 0o022
        and not (_is_trusted(found.st_uid) or found.st_uid == around.st_uid)
    ):
        kind = "special file" if is_special else "file"
        _refuse(path, f"it is a {kind} of another user in a shared directory: choose another name")
    return found


def open_place(path: str | os.PathLike[str], *, create: bool = False) -> tuple[int, str]:
    """Open the folder of a file, following trusted links only, also that of the file itself.

    The file need not exist; `create` makes missing folders, in trusted folders. The result is a descriptor of the
    folder, which the caller closes, and the name of the file in it, which is no link. OSError is raised if a folder
    does not exist, or a component may not be followed.
    """
    wanted = Path(path).absolute()
    pending, links = [*reversed(wanted.parts[1:])], 0
    folder = os.open("/", _DIRECTORY)
    try:
        while pending:
            name = pending.pop()
            if name != ".." and (target := _link_target(folder, name, path)) is not None:
                links += 1
                if links > _MOST_LINKS:
                    _refuse(path, os.strerror(errno.ELOOP), errno.ELOOP)
                parts = Path(target).parts
                if parts[:1] == ("/",):
                    folder = _replaced(folder, os.open("/", _DIRECTORY))
                    parts = parts[1:]
                pending += reversed(parts)
            elif pending or name == "..":
                folder = _replaced(folder, _child(folder, name, path, create))
            else:
                break
        else:
            name = "."
    except BaseException:
        os.close(folder)
        raise
    return folder, name


def _link_target(folder: int, name: str, path: str | os.PathLike[str]) -> str | None:
    """Return what a component refers to if it is a trusted link; None if it is no link."""
    try:
        with named_errors(path):
            status = os.stat(name, dir_fd=folder, follow_symlinks=False)
            target = os.readlink(name, dir_fd=folder) if stat.S_ISLNK(status.st_mode) else None
    except FileNotFoundError:
        return None
    if target is not None and not _is_trusted(status.st_uid):
        _refuse(path, f"{name!r} is a symbolic link of another user (number {status.st_uid}): choose another path")
    return target


def _replaced(before: int, after: int) -> int:
    os.close(before)
    return after


def _child(folder: int, name: str, path: str | os.PathLike[str], create: bool) -> int:
    """Open a folder in a folder."""
    with named_errors(path):
        if create:
            _make(folder, name, path, private=False)
        return os.open(name, _DIRECTORY, dir_fd=folder)


class named_errors:  # noqa: N801 -- used as a function
    """Context manager that puts a path into errors of calls with a descriptor, which have a name in its folder.

    The error is changed, not replaced, and by no generator: both make cycles of the error and its frames (in Python
    3.12), which keep what the callers of a kernel have on a device until the cycle collector runs.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = os.fspath(path)

    def __enter__(self) -> None:
        """Begin."""

    def __exit__(self, _kind: object, error: BaseException | None, _traceback: object) -> None:
        """Put the path into an error."""
        if isinstance(error, OSError) and not (isinstance(error.filename, str) and Path(error.filename).is_absolute()):
            error.filename = self._path
            with suppress(AttributeError):  # of calls with two names
                del error.filename2


def open_folder(path: str | os.PathLike[str], *, create: bool = False, private: bool = False) -> int:
    """Open a trusted folder, and return a descriptor, which the caller closes.

    `create` makes it and the folders above, if they are missing. `private` demands that no other user can write to it;
    it is then made with mode 0700. OSError is raised if it does not exist, is no folder, or is not trusted.
    """
    above, name = open_place(path, create=create)
    try:
        with named_errors(path):
            if create:
                _make(above, name, path, private=private)
            folder = os.open(name, _DIRECTORY, dir_fd=above)
    finally:
        os.close(above)
    try:
        check_folder(os.fstat(folder), path, private=private)
    except BaseException:
        os.close(folder)
        raise
    return folder


def _make(above: int, name: str, path: str | os.PathLike[str], *, private: bool) -> None:
    """Make a folder in a trusted one, unless it exists. Raises FileExistsError if that is none, as `mkdir`."""
    try:
        status = os.stat(name, dir_fd=above)
    except FileNotFoundError:
        check_folder(os.fstat(above), Path(path).parent)
        with suppress(FileExistsError):  # another process was faster
            os.mkdir(name, 0o700 if private else 0o777, dir_fd=above)
    else:
        if not stat.S_ISDIR(status.st_mode):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))


def make_folder(path: str | os.PathLike[str], *, private: bool = False) -> None:
    """Make a folder and those above, unless it exists, and check that it is trusted: see `open_folder`."""
    os.close(open_folder(path, create=True, private=private))
