"""Renames of folders that exist, in an overlay of an ordinary user: the kernel refuses them there.

This file imports the standard library only, as `sitecustomize` loads it by its path. `mv` and `shutil.move` copy what
they cannot rename, but os.rename, and what calls it, would fail.
"""

from __future__ import annotations

import errno
import functools
import os
import shutil
import stat
from collections.abc import Callable
from typing import Any

__all__ = ["install"]


def install() -> None:
    """Let os.rename and os.replace copy a folder that the overlay cannot rename."""
    for name in ("rename", "replace"):
        setattr(os, name, _or_copy(getattr(os, name)))


def _or_copy(rename: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(rename)
    def call(src: Any, dst: Any, **descriptors: Any) -> None:
        try:
            rename(src, dst, **descriptors)
        except OSError as error:
            if error.errno != errno.EXDEV or descriptors or not _is_folder_of_same_system(src, dst):
                raise
            if os.path.lexists(dst):
                os.rmdir(dst)  # noqa: PTH106 -- bytes, too; raises as rename does unless it is an empty folder
            shutil.copytree(src, dst, symlinks=True)
            shutil.rmtree(src)

    return call


def _is_folder_of_same_system(src: Any, dst: Any) -> bool:
    """Return True if only the overlay refuses a rename: others that the program asks for fail as without it."""
    source = os.lstat(src)
    parent = os.stat(os.path.dirname(os.path.abspath(dst)))  # noqa: PTH100, PTH116, PTH120 -- bytes, too
    return stat.S_ISDIR(source.st_mode) and source.st_dev == parent.st_dev
