"""Addresses of sockets among files, redirected as Python's functions for files are.

Programs bind sockets in folders that they have made, as the workers of a DataLoader do, and these folders are private.
This file imports the standard library only, as `sitecustomize` loads it by its path.
"""

from __future__ import annotations

import _socket
import functools
import os
import socket
from collections.abc import Callable
from typing import Any

__all__ = ["install"]

_LONGEST = 100  # bytes of an address: Linux takes 108, macOS 104; private places are longer than the program's


def install(place_of: Callable[..., str]) -> None:
    """Redirect the addresses of this process, for its whole life.

    Parameters
    ----------
    place_of : callable
        `forebay.rehearsal.file_functions.place_of`.
    """
    for name in ("bind", "connect", "connect_ex"):
        setattr(socket.socket, name, _redirected(getattr(_socket.socket, name), place_of, is_new=name == "bind"))


def _redirected(original: Callable[..., Any], place_of: Callable[..., str], *, is_new: bool) -> Callable[..., Any]:
    @functools.wraps(original)
    def call(self: Any, address: Any, /) -> Any:
        if self.family != socket.AF_UNIX or not address or os.fsencode(address)[:1] == b"\0":  # abstract: no file
            return original(self, address)
        place = place_of(address, write=is_new)
        if len(os.fsencode(place)) <= _LONGEST:
            return original(self, place)
        folder = os.open(os.path.dirname(place), getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_CLOEXEC)  # noqa: PTH120 -- a text
        try:
            return original(self, f"/proc/self/fd/{folder}/{os.path.basename(place)}")  # noqa: PTH119 -- as above
        finally:
            os.close(folder)

    return call
