"""Compiled kernels on disk, in the user's cache folder.

# Note [Cache of kernels]
What is read from the cache runs on the device with the rights of the program, and several processes write it at once. A
file counts only if its folder is private to the user (Note [Trusted folders]), if it belongs to the user and no
other user can write to it, and if it has the digest of its key and content: a damaged file, or that of another key, is
compiled again. Files are replaced as a whole (Note [Files are replaced as a whole]). The key has everything that the
result depends on: source, headers, options and compiler. No failure of the cache is one of the program. Rejected: a
lock for all processes, which a killed one would leave behind.
Test: tests/backends/common/test_kernel_cache.py::test_damaged_file_counts_as_missing
"""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path  # at run time only when it is needed, as hashlib: they take long, and few programs compile

__all__ = ["KernelCache", "cache_folder"]

_MAGIC = b"forebay kernel 1\n"
_DIGEST = 32  # bytes of SHA-256


def cache_folder() -> Path:
    """Return the folder of compiled kernels: in XDG_CACHE_HOME, which is ~/.cache unless it is set to a full path."""
    from pathlib import Path

    base = Path(os.environ.get("XDG_CACHE_HOME", ""))
    if not base.is_absolute():
        with suppress(RuntimeError):  # no home directory: the folder is not writable, and nothing is cached
            base = Path("~/.cache").expanduser()
    return base / "forebay" / "kernels"


class KernelCache:
    """Compiled kernels on disk, by key.

    A file that is damaged, or that another user can write, counts as missing. A failure of the file system is not
    raised: what cannot be stored is compiled again.

    Parameters
    ----------
    folder : pathlib.Path, optional
        The folder; by default forebay's in the user's cache folder.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self.folder: Path = cache_folder() if folder is None else folder

    def get(self, key: str) -> bytes | None:
        """Return the content that was stored under a key; None if there is none.

        Parameters
        ----------
        key : str
            Hexadecimal digest of all that the result depends on: source, options, versions and device.
        """
        # A file that cannot be trusted is missing: Note [Cache of kernels].
        from forebay._base.trusted_folders import open_folder

        name = self._path(key).name
        with suppress(OSError):
            folder = open_folder(self.folder, private=True)
            try:
                flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
                file = os.open(name, flags, dir_fd=folder)
            finally:
                os.close(folder)
            with os.fdopen(file, "rb") as opened:
                found = os.fstat(file)
                if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o022:
                    return None
                content = opened.read()
            head, content = content[: len(_MAGIC) + _DIGEST], content[len(_MAGIC) + _DIGEST :]
            if head == _MAGIC + _digest(key, content):
                return content
        return None

    def put(self, key: str, content: bytes) -> None:
        """Store bytes under a key, if the folder can be written.

        Parameters
        ----------
        key : str
            Hexadecimal digest, as for `get`.
        content : bytes
            The bytes.
        """
        from forebay._base.atomic_write import atomic_write
        from forebay._base.trusted_folders import make_folder

        path = self._path(key)
        with suppress(OSError):
            make_folder(self.folder, private=True)
            with atomic_write(path) as file:
                os.fchmod(file.fileno(), 0o600)
                file.write(_MAGIC + _digest(key, content) + content)

    def _path(self, key: str) -> Path:
        if not key.isalnum():  # it could lead out of the folder
            raise ValueError(f"a key consists of letters and digits, unlike {key!r}")
        return self.folder / f"{key}.kernel"


def _digest(key: str, content: bytes) -> bytes:
    import hashlib

    return hashlib.sha256(key.encode() + content).digest()
