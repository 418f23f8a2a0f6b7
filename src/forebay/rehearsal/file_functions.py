"""Python's functions for files, redirected to a private folder: the fallback where no mount namespace can be made.

See Note [Private files]. This file imports the standard library only, as `sitecustomize` loads it by its path in each
Python process that the program starts.
"""

from __future__ import annotations

import builtins
import errno
import functools
import io
import os
import posix
import shutil
import stat
import sys
from collections.abc import Callable, Iterator
from typing import Any, Self

__all__ = ["has_private_places", "install", "place_of"]

_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_view: Any = None  # the MergedView of this process
_folder = ""  # the working directory, if it exists only in the private folder


def install(view: Any) -> None:
    """Redirect the functions of this process, for its whole life.

    Parameters
    ----------
    view : MergedView
        The tree that the program sees.
    """
    global _view  # noqa: PLW0603 -- one for the process
    if _view is not None:
        return
    _view = view
    for name, function in _FUNCTIONS.items():
        if hasattr(os, name):
            setattr(os, name, functools.wraps(getattr(posix, name))(function))
    builtins.open = io.open = functools.wraps(io.open)(_opened_by(io.open))
    shutil._use_fd_functions = False  # type: ignore[attr-defined]  # noqa: SLF001 -- rmtree would pass descriptors of folders
    _replace_sqlite()


def place_of(path: Any, *, write: bool = False) -> str:
    """Return where the content of a file is, for libraries that open it by themselves."""
    text = os.fsdecode(path)
    return text if _view is None else _to_write(text) if write else _to_read(text)


def has_private_places() -> bool:
    """Return True if the functions of this process are redirected."""
    return _view is not None


def _logical(path: Any, dir_fd: int | None = None) -> str:
    text = os.fsdecode(path)
    if not text:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
    if not text.startswith("/"):
        text = f"{_getcwd() if dir_fd is None else _path_of(dir_fd)}/{text}"
    return text


def _path_of(number: int) -> str:
    found: str = _view.logical(posix.readlink(f"/proc/self/fd/{number}"))
    return found


def _to_read(path: Any, dir_fd: int | None = None, *, follow: bool = True) -> str:
    found: str = _view.place(_view.resolve(_logical(path, dir_fd), follow=follow))
    return found


def _to_write(path: Any, dir_fd: int | None = None, *, follow: bool = True) -> str:
    found: str = _view.to_write(_view.resolve(_logical(path, dir_fd), follow=follow))
    return found


def _named(call: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function whose errors name the path that the program has given."""

    @functools.wraps(call)
    def run(path: Any, *args: Any, **keywords: Any) -> Any:
        try:
            return call(path, *args, **keywords)
        except OSError as error:
            if not isinstance(path, int):
                error.filename = path
            raise

    return run


@_named
def _open(path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
    if not flags & _WRITES:
        return posix.open(_to_read(path, dir_fd, follow=not flags & os.O_NOFOLLOW), flags, mode)
    where = _view.resolve(_logical(path, dir_fd), follow=not flags & (os.O_NOFOLLOW | os.O_EXCL))
    exists = _view.exists(where)
    if flags & getattr(os, "O_TMPFILE", 0) == getattr(os, "O_TMPFILE", -1):
        _view.to_write(f"{where}/x", keep=False)
        return posix.open(_view.place(where), flags, mode)
    if flags & os.O_CREAT and flags & os.O_EXCL and exists:
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)
    if not exists and not flags & os.O_CREAT:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
    private = _view.to_write(where, keep=not flags & os.O_TRUNC)
    # A truncated file is made anew at its private place.
    return posix.open(private, flags | (os.O_CREAT if exists else 0), mode)


def _opened_by(original: Callable[..., Any]) -> Callable[..., Any]:
    def open(file: Any, *args: Any, **keywords: Any) -> Any:  # noqa: A001 -- the function that it replaces
        if isinstance(file, int) or len(args) > 6 or keywords.get("opener") is not None:
            return original(file, *args, **keywords)
        return original(file, *args, **{**keywords, "opener": lambda path, flags: _open(path, flags, 0o666)})

    return open


def _reading(name: str) -> Callable[..., Any]:
    """Return a function of os that reads: of a path, or of a descriptor."""
    original = getattr(posix, name, None)

    @_named
    def call(path: Any = ".", *args: Any, dir_fd: int | None = None, follow_symlinks: bool = True, **more: Any) -> Any:
        if isinstance(path, int):
            return original(path, *args, **more)  # type: ignore[misc]  # installed only if it exists
        if not follow_symlinks:
            more = {**more, "follow_symlinks": False}
        follow = follow_symlinks and name not in ("lstat", "readlink")
        return original(_to_read(path, dir_fd, follow=follow), *args, **more)  # type: ignore[misc]  # as above

    return call


def _writing(name: str) -> Callable[..., Any]:
    """Return a function of os that changes an entry: of a path, or of a descriptor."""
    original = getattr(posix, name, None)

    @_named
    def call(path: Any, *args: Any, dir_fd: int | None = None, follow_symlinks: bool = True, **more: Any) -> Any:
        if isinstance(path, int):
            return original(path, *args, **more)  # type: ignore[misc]  # as above
        follow = follow_symlinks and not name.startswith("l")
        where = _view.resolve(_logical(path, dir_fd), follow=follow)
        if not _view.exists(where):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        if not follow_symlinks:
            more = {**more, "follow_symlinks": False}
        return original(_view.to_write(where), *args, **more)  # type: ignore[misc]  # as above

    return call


def _making(name: str) -> Callable[..., Any]:
    """Return a function of os that makes an entry."""
    original = getattr(posix, name, None)

    @_named
    def call(path: Any, *args: Any, dir_fd: int | None = None, **more: Any) -> Any:
        where = _view.resolve(_logical(path, dir_fd), follow=False)
        if _view.exists(where):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)
        return original(_view.to_write(where, keep=False), *args, **more)  # type: ignore[misc]  # as above

    return call


def _symlink(src: Any, dst: Any, target_is_directory: bool = False, *, dir_fd: int | None = None) -> None:  # noqa: ARG001 -- the signature of os
    where = _view.resolve(_logical(dst, dir_fd), follow=False)
    if _view.exists(where):
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), src, None, dst)
    posix.symlink(src, _view.to_write(where, keep=False))


def _link(
    src: Any, dst: Any, *, src_dir_fd: int | None = None, dst_dir_fd: int | None = None, follow_symlinks: bool = True
) -> None:
    source = _to_write(src, src_dir_fd, follow=follow_symlinks)
    where = _view.resolve(_logical(dst, dst_dir_fd), follow=False)
    if _view.exists(where):
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), src, None, dst)
    posix.link(source, _view.to_write(where, keep=False), follow_symlinks=follow_symlinks)


@_named
def _unlink(path: Any, *, dir_fd: int | None = None) -> None:
    where = _view.resolve(_logical(path, dir_fd), follow=False)
    place = _view.place(where)
    status = posix.lstat(place)
    if not _view.is_redirected(where) or stat.S_ISDIR(status.st_mode):
        posix.unlink(place)  # raises for a folder
        return
    _refuse_unless_writable(where)
    if place != where:
        posix.unlink(place)
    _view.hide(where)


@_named
def _rmdir(path: Any, *, dir_fd: int | None = None) -> None:
    where = _view.resolve(_logical(path, dir_fd), follow=False)
    place = _view.place(where)
    if not _view.is_redirected(where) or not stat.S_ISDIR(posix.lstat(place).st_mode):
        posix.rmdir(place)  # raises for a file
        return
    if next(_view.names(where), None) is not None:
        raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), path)
    _refuse_unless_writable(where)
    if place != where:
        posix.rmdir(place)
    _view.hide(where)


def _refuse_unless_writable(where: str) -> None:
    if not posix.access(_view.place(where.rpartition("/")[0] or "/"), os.W_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), where)


def _rename(src: Any, dst: Any, *, src_dir_fd: int | None = None, dst_dir_fd: int | None = None) -> None:
    source = _view.resolve(_logical(src, src_dir_fd), follow=False)
    target = _view.resolve(_logical(dst, dst_dir_fd), follow=False)
    status = posix.lstat(_view.place(source))
    if source == target:
        return
    is_folder = stat.S_ISDIR(status.st_mode)
    if is_folder and _view.exists(target):
        if not stat.S_ISDIR(posix.lstat(_view.place(target)).st_mode):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), src, None, dst)
        if next(_view.names(target), None) is not None:
            raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), src, None, dst)
        _rmdir(target)
    if not is_folder and _view.exists(target) and stat.S_ISDIR(posix.lstat(_view.place(target)).st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), src, None, dst)
    _refuse_unless_writable(source)
    private = _view.copy_tree(source) if is_folder else _view.to_write(source)
    posix.rename(private, _view.to_write(target, keep=False))
    _view.hide(source)
    if is_folder:
        _view.hide(target)


class _Entry:
    """An entry of a folder, as os.DirEntry."""

    def __init__(self, name: Any, path: Any, place: str) -> None:
        self.name, self.path, self._place = name, path, place

    def __fspath__(self) -> Any:
        return self.path

    def __repr__(self) -> str:
        return f"<DirEntry {self.name!r}>"

    def inode(self) -> int:
        return posix.lstat(self._place).st_ino

    def stat(self, *, follow_symlinks: bool = True) -> os.stat_result:
        return os.stat(self.path) if follow_symlinks else posix.lstat(self._place)  # noqa: PTH116 -- the redirected one

    def is_symlink(self) -> bool:
        return stat.S_ISLNK(posix.lstat(self._place).st_mode)

    def is_dir(self, *, follow_symlinks: bool = True) -> bool:
        return self._is(stat.S_ISDIR, follow_symlinks=follow_symlinks)

    def is_file(self, *, follow_symlinks: bool = True) -> bool:
        return self._is(stat.S_ISREG, follow_symlinks=follow_symlinks)

    def is_junction(self) -> bool:
        return False

    def _is(self, check: Callable[[int], bool], *, follow_symlinks: bool) -> bool:
        try:
            return check(self.stat(follow_symlinks=follow_symlinks).st_mode)
        except FileNotFoundError:
            return False


class _Entries:
    """An iterator and context manager, as os.scandir returns."""

    def __init__(self, entries: Iterator[_Entry]) -> None:
        self._entries = entries

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> _Entry:
        return next(self._entries)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._entries = iter(())


def _scandir(path: Any = ".") -> Any:
    given = "." if path is None else path
    where = _view.resolve(_path_of(given) if isinstance(given, int) else _logical(given))
    if not _view.is_merged(where):
        return posix.scandir(path)
    _list_of(where, given)
    binary = isinstance(given, bytes)
    base = "" if isinstance(given, int) else os.fsdecode(given).rstrip("/") + "/"

    def entries() -> Iterator[_Entry]:
        for name, place in _list_of(where, given):
            shown = f"{base}{name}"
            yield _Entry(os.fsencode(name) if binary else name, os.fsencode(shown) if binary else shown, place)

    return _Entries(entries())


def _listdir(path: Any = ".") -> list[Any]:
    given = "." if path is None else path
    where = _view.resolve(_path_of(given) if isinstance(given, int) else _logical(given))
    if not _view.is_merged(where):
        return posix.listdir(path)
    names = [name for name, _ in _list_of(where, given)]
    return [os.fsencode(each) for each in names] if isinstance(given, bytes) else names


def _list_of(where: str, given: Any) -> list[tuple[str, str]]:
    if not stat.S_ISDIR(posix.stat(_view.place(where)).st_mode):
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), given)
    return [*_view.names(where)]


@_named
def _chdir(path: Any) -> None:
    global _folder  # noqa: PLW0603 -- of the process
    where = _view.resolve(_path_of(path) if isinstance(path, int) else _logical(path))
    place = _view.place(where)
    real = where if _view.is_visible(where) and stat.S_ISDIR(posix.stat(place).st_mode) else place
    try:
        posix.chdir(real)
    except FileNotFoundError:
        posix.chdir(place)
        real = place
    _folder = "" if real == where else where


def _getcwd() -> str:
    return _folder or posix.getcwd()


def _replace_sqlite() -> None:
    """Let SQLite open private files. Its module takes the function from one in C, unless it was imported before."""
    try:
        import _sqlite3
    except ImportError:  # a Python without it
        return
    connect = _sqlite3.connect

    @functools.wraps(connect)
    def to_private(database: Any, *args: Any, **keywords: Any) -> Any:
        text = os.fsdecode(database)
        is_file = text not in ("", ":memory:") and not text.startswith("file:")
        return connect(_to_write(text) if is_file else database, *args, **keywords)

    for name in ("_sqlite3", "sqlite3", "sqlite3.dbapi2"):
        if name in sys.modules:
            sys.modules[name].connect = to_private  # type: ignore[attr-defined]  # the library's function


_FUNCTIONS: dict[str, Callable[..., Any]] = {
    **{name: _reading(name) for name in ("stat", "lstat", "access", "readlink", "statvfs", "getxattr", "listxattr")},
    **{name: _writing(name) for name in ("chmod", "chown", "lchown", "utime", "truncate", "setxattr", "removexattr")},
    **{name: _making(name) for name in ("mkdir", "mkfifo", "mknod")},
    "open": _open,
    "symlink": _symlink,
    "link": _link,
    "unlink": _unlink,
    "remove": _unlink,
    "rmdir": _rmdir,
    "rename": _rename,
    "replace": _rename,
    "scandir": _scandir,
    "listdir": _listdir,
    "chdir": _chdir,
    "getcwd": _getcwd,
    "getcwdb": lambda: os.fsencode(_getcwd()),
}
