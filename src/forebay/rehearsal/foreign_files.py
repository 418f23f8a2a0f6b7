"""Changes of files of another owner or group, in an overlay of an ordinary user: the kernel cannot copy them there.

It answers EOVERFLOW, see Note [Owners in a user namespace]. Python's functions then replace the file in the overlay by
a copy that belongs to this user, and try again; programs that are not Python get the error. This file imports the
standard library only, as `sitecustomize` loads it by its path.
"""

from __future__ import annotations

import builtins
import errno
import functools
import io
import os
import shutil
import stat
from collections.abc import Callable
from typing import Any

__all__ = ["install"]

_CHANGES = ("open", "chmod", "utime", "truncate", "rename", "replace", "link", "setxattr")
_PATHS, _DESCRIPTORS = ("file", "path", "src"), ("dir_fd", "src_dir_fd", "dst_dir_fd")
_open_now = io.open  # as it is before the replacement


def install() -> None:
    """Let Python's functions copy what the overlay cannot copy."""
    for name in _CHANGES:
        if hasattr(os, name):
            setattr(os, name, _or_adopt(getattr(os, name)))
    builtins.open = io.open = _or_adopt(io.open)


def _or_adopt(change: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(change)
    def call(*args: Any, **keywords: Any) -> Any:
        try:
            return change(*args, **keywords)
        except OSError as error:
            path = args[0] if args else next((keywords[name] for name in _PATHS if name in keywords), None)
            is_relative = any(keywords.get(name) is not None for name in _DESCRIPTORS)
            if error.errno != errno.EOVERFLOW or is_relative or not _adopt(path):
                raise
        return change(*args, **keywords)

    return call


_chmod, _utime, _replace = os.chmod, os.utime, os.replace  # as they are before the replacement


def _adopt(path: Any) -> bool:
    """Replace a file in the overlay by a copy of this user. Return False if that is not possible."""
    if isinstance(path, int):
        return False
    try:
        text = os.path.realpath(os.fsdecode(path))
        found = os.lstat(text)
        if not stat.S_ISREG(found.st_mode):
            return False
        new = f"{text}.forebay-{os.getpid()}"
        with _open_now(text, "rb") as source, _open_now(new, "xb") as target:
            shutil.copyfileobj(source, target)
        _chmod(new, stat.S_IMODE(found.st_mode))
        _utime(new, ns=(found.st_atime_ns, found.st_mtime_ns))
        _replace(new, text)
    except (OSError, TypeError, ValueError):
        return False
    return True
