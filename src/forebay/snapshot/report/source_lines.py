"""Source lines of the user's own code, where the file of a snapshot is at hand."""

from __future__ import annotations

import os
from functools import lru_cache

from forebay._base.untrusted import open_regular, printable, shortened
from forebay.records.frame_kinds import is_own
from forebay.records.model import Frame

__all__ = ["source_line"]

_MOST_BYTES = 4 << 20  # of a file
_MOST_CHARACTERS = 160


def source_line(frame: Frame, taken_at_ns: int) -> str:
    """Return the text of a frame's line; "" if its file is not at hand, or newer than the snapshot.

    Only files of the user's own code with the suffix .py are read, as a snapshot of unknown origin may name any.

    Parameters
    ----------
    frame : Frame
        The frame.
    taken_at_ns : int
        Unix time of the snapshot in nanoseconds; 0 if unknown.
    """
    if not (frame.file.startswith("/") and frame.file.endswith(".py") and is_own(frame.file)):
        return ""
    lines = _lines_of(frame.file, taken_at_ns)
    text = lines[frame.line - 1] if 0 < frame.line <= len(lines) else b""
    return printable(shortened(text.decode("utf-8", "replace").strip(), _MOST_CHARACTERS))


@lru_cache(maxsize=64)
def _lines_of(path: str, taken_at_ns: int) -> tuple[bytes, ...]:
    try:
        with open_regular(path) as file:
            found = os.fstat(file.fileno())
            if found.st_size > _MOST_BYTES or (taken_at_ns and found.st_mtime_ns > taken_at_ns):
                return ()
            return tuple(file.read(_MOST_BYTES).splitlines())
    except (OSError, ValueError):
        return ()
