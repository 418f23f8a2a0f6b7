"""Compiled programs on disk, in the user's cache folder."""

from __future__ import annotations

import hashlib
import os
import stat
from contextlib import suppress
from pathlib import Path

from forebay._base.atomic_write import atomic_write
from forebay._base.trusted_folders import make_folder, open_folder

__all__ = ["KernelCache", "cache_folder"]

_MAGIC = b"forebay kernel 1\n"
_DIGEST = hashlib.sha256().digest_size


def cache_folder() -> Path:
    """Return the folder of compiled kernels: in XDG_CACHE_HOME, which is ~/.cache unless it is set to a full path."""
    base = Path(os.environ.get("XDG_CACHE_HOME", ""))
    if not base.is_absolute():
        with suppress(RuntimeError):  # no home directory: the folder is not writable, and nothing is cached
            base = Path("~/.cache").expanduser()
    return base / "forebay" / "kernels"


class KernelCache:
    """Files by key. A file that is damaged or that another user can write counts as missing; no failure is raised."""

    def __init__(self, folder: Path) -> None:
        self.folder: Path = folder

    def get(self, key: str) -> bytes | None:
        """Return what was stored under a key."""
        with suppress(OSError):
            folder = open_folder(self.folder, private=True)
            try:
                flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
                file = os.open(self._path(key).name, flags, dir_fd=folder)
            finally:
                os.close(folder)
            with os.fdopen(file, "rb") as opened:
                found = os.fstat(file)
                if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o022:
                    return None
                content = opened.read()
            head, content = content[: len(_MAGIC) + _DIGEST], content[len(_MAGIC) + _DIGEST :]
            if head == _MAGIC + hashlib.sha256(key.encode() + content).digest():
                return content
        return None

    def put(self, key: str, content: bytes) -> None:
        """Store bytes under a key, if the folder can be written."""
        with suppress(OSError):
            make_folder(self.folder, private=True)
            with atomic_write(self._path(key)) as file:
                os.fchmod(file.fileno(), 0o600)
                file.write(_MAGIC + hashlib.sha256(key.encode() + content).digest() + content)

    def _path(self, key: str) -> Path:
        return self.folder / f"{key}.kernel"
