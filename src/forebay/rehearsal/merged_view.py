"""Real folders and private changes as one tree, for functions of Python that open, list, remove and rename files.

A folder `upper` has what was written, under the same paths, and a folder `deleted` a file for each real entry that is
hidden. This file imports the standard library only, as `sitecustomize` loads it by its path, and calls the functions of
the module `posix`: those of `os` are the ones that are replaced.
"""

from __future__ import annotations

import errno
import os
import posix
import stat
from collections.abc import Iterator
from contextlib import suppress

__all__ = ["MergedView"]

_SYSTEM = ("/dev", "/proc", "/sys")
_PROCESSES = "/proc/"
_MEMORY_FILES = "/dev/shm/"  # noqa: S108 -- users keep data sets in it
_MOST_LINKS = 40  # as Linux
_PIECE = 1 << 20


class MergedView:
    """The tree that a program sees.

    `folder` is the private folder, with `upper` and `deleted` inside; folders in `real` are not redirected.
    """

    def __init__(self, folder: str, real: list[str]) -> None:
        self._upper, self._deleted = f"{folder}/upper", f"{folder}/deleted"
        self._real = (*_SYSTEM, folder, *real)

    def resolve(self, path: str, *, follow: bool = True) -> str:
        """Return the absolute path without links, as the program sees it. The last part may be missing."""
        rest = [each for each in reversed(path.split("/")) if each not in ("", ".")]
        found, links = "", 0
        is_private = is_hidden = True  # what the private folders may have below here: most folders have nothing there
        while rest:
            name = rest.pop()
            if name == "..":
                found, is_private, is_hidden = found.rpartition("/")[0], True, True
                continue
            inner = f"{found}/{name}"
            is_private = is_private and _status(self._upper + inner) is not None
            is_hidden = is_hidden and _status(self._deleted + inner) is not None
            place = self.place(inner) if is_private or is_hidden else inner
            if (rest or follow) and _is_link(place):
                links += 1
                if links > _MOST_LINKS:
                    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
                target = posix.readlink(place)
                if place.startswith(_PROCESSES) and not (target.startswith("/") and _status(target)):
                    found = inner  # a descriptor of a pipe or of a deleted file: the target is no path
                    continue
                if target.startswith("/"):
                    found = ""
                is_private = is_hidden = True
                rest += [each for each in reversed(target.split("/")) if each not in ("", ".")]
            else:
                found = inner
        return found or "/"

    def is_redirected(self, path: str) -> bool:
        """Return False for a folder that stays real, and what is in it."""
        real = self._real[len(_SYSTEM) :] if f"{path}/".startswith(_MEMORY_FILES) else self._real
        return not any(path == each or path.startswith(f"{each}/") for each in real)

    def place(self, path: str) -> str:
        """Return where the content of a path is that `resolve` returned; a missing path is missing there, too."""
        if not self.is_redirected(path) or (self.is_visible(path) and _status(self._upper + path) is None):
            return path
        return self._upper + path

    def is_visible(self, path: str) -> bool:
        """Return True if the real entry, if there is one, is not hidden."""
        at = 0
        while at >= 0:
            at = path.find("/", at + 1)
            found = _status(self._deleted + (path if at < 0 else path[:at]))
            if found is None:
                return True
            if not stat.S_ISDIR(found.st_mode):
                return False
        return True

    def exists(self, path: str) -> bool:
        """Return True if the program sees an entry."""
        return _status(self.place(path)) is not None

    def to_write(self, path: str, *, keep: bool = True) -> str:
        """Return the private place of a path, to which the content is copied if it is kept. Raises OSError."""
        if not self.is_redirected(path):
            return path
        private, real = self._upper + path, _status(path) if self.is_visible(path) else None
        parent = path.rpartition("/")[0] or "/"
        if _status(private) is None:
            if real is None and not posix.access(self.place(parent), os.W_OK):
                self._missing(parent, path)
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)
            if real is not None and not stat.S_ISLNK(real.st_mode) and not posix.access(path, os.W_OK):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)
            self._missing(parent, path)
            self._make_folder(parent)
            if real is not None and (keep or not stat.S_ISREG(real.st_mode)):
                _copy(path, private, real)
        return private

    def _missing(self, parent: str, path: str) -> None:
        """Raise the system's error if the folder of a path is missing or none."""
        found = _status(self.place(parent))
        if found is None or not stat.S_ISDIR(found.st_mode):
            code = errno.ENOENT if found is None else errno.ENOTDIR
            raise OSError(code, os.strerror(code), path)

    def _make_folder(self, path: str) -> None:
        """Make a private folder, and those above, for one that the program sees."""
        private = self._upper + path
        if _status(private) is None:
            self._make_folder(path.rpartition("/")[0] or "/")
            real = _status(path)
            with suppress(FileExistsError):
                posix.mkdir(private)
                if real is not None:  # the umask does not apply; this user must be able to write here
                    posix.chmod(private, stat.S_IMODE(real.st_mode) | stat.S_IRWXU)

    def hide(self, path: str) -> None:
        """Hide the real entry of a path, if there is one and it is visible."""
        if not self.is_redirected(path) or not self.is_visible(path) or _status(path) is None:
            return
        marker = self._deleted + path
        if (found := _status(marker)) is not None and stat.S_ISDIR(found.st_mode):
            _remove_tree(marker)
        for at in (index for index, letter in enumerate(path) if letter == "/" and index):
            with suppress(FileExistsError):
                posix.mkdir(self._deleted + path[:at], 0o700)
        posix.close(posix.open(marker, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o600))

    def names(self, path: str) -> Iterator[tuple[str, str]]:
        """Return the names in a folder, and where each is."""
        private = self._upper + path
        found = set()
        if (status := _status(private)) is not None and stat.S_ISDIR(status.st_mode):
            for name in posix.listdir(private):
                found.add(name)
                yield name, f"{private}/{name}"
        if self.is_visible(path):
            base = path.rstrip("/")
            with suppress(FileNotFoundError, NotADirectoryError):
                for name in posix.listdir(path):
                    if name not in found and self.is_visible(f"{base}/{name}"):
                        yield name, f"{base}/{name}"

    def is_merged(self, path: str) -> bool:
        """Return True if a folder has private changes directly inside."""
        if not self.is_redirected(path):
            return False
        return _status(self._upper + path) is not None or _status(self._deleted + path) is not None

    def copy_tree(self, path: str) -> str:
        """Copy a folder with all that the program sees in it to its private place, which is returned."""
        for name, place in list(self.names(path)):
            inner = f"{path}/{name}"
            if _is_folder(place):
                self.to_write(inner)
                self._make_folder(inner)
                self.copy_tree(inner)
            else:
                self.to_write(inner)
        self._make_folder(path)
        return self._upper + path

    def logical(self, path: str) -> str:
        """Return the path that the program sees for a place."""
        return path.removeprefix(self._upper) or "/" if path.startswith(self._upper) else path


def _status(path: str) -> os.stat_result | None:
    try:
        return posix.lstat(path)
    except (OSError, ValueError):
        return None


def _is_link(path: str) -> bool:
    found = _status(path)
    return found is not None and stat.S_ISLNK(found.st_mode)


def _is_folder(path: str) -> bool:
    found = _status(path)
    return found is not None and stat.S_ISDIR(found.st_mode)


def _copy(source: str, target: str, status: os.stat_result) -> None:
    """Copy a file, a link or an empty folder with its permissions and times."""
    if stat.S_ISLNK(status.st_mode):
        posix.symlink(posix.readlink(source), target)
        return
    if stat.S_ISDIR(status.st_mode):
        posix.mkdir(target, stat.S_IMODE(status.st_mode) | stat.S_IRWXU)
    elif stat.S_ISREG(status.st_mode):
        reader = posix.open(source, os.O_RDONLY | os.O_CLOEXEC)
        try:
            writer = posix.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            try:
                while piece := posix.read(reader, _PIECE):
                    while piece:
                        piece = piece[posix.write(writer, piece) :]
            finally:
                posix.close(writer)
        finally:
            posix.close(reader)
        posix.chmod(target, stat.S_IMODE(status.st_mode))
    posix.utime(target, ns=(status.st_atime_ns, status.st_mtime_ns))


def _remove_tree(path: str) -> None:
    for name in posix.listdir(path):
        inner = f"{path}/{name}"
        if _is_folder(inner):
            _remove_tree(inner)
        else:
            posix.unlink(inner)
    posix.rmdir(path)
