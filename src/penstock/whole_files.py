"""Files that are there whole, or not at all."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["beside", "in_place_of"]


def beside(path: Path) -> Path:
    """A name in the same directory for what will be `path`: another one each time."""
    return path.with_name(f".{path.name[:100]}.{os.getpid()}-{os.urandom(4).hex()}.part")


@contextmanager
def in_place_of(path: Path) -> Iterator[Path]:
    """A name beside `path` to write to; it becomes `path` when that went well, and goes when it did not."""
    part = beside(path)
    try:
        yield part
        part.replace(path)
    except BaseException:  # Ctrl-C, too
        part.unlink(missing_ok=True)
        raise
