"""Files that commands write to a path of the user: none that forebay has not made is replaced without --overwrite."""

from __future__ import annotations

import argparse
import os
import re
import stat
from collections.abc import Iterable
from pathlib import Path

from forebay.commands import CommandError

__all__ = ["add_overwrite", "check_output"]

_HEAD = 1024  # bytes
_MOST_FOOTER = 1 << 20  # bytes of the end of a Parquet file that are searched
_BEGINNINGS = (
    b"\x80\x04}(\x8c\x06shared",  # a pickle: Python's own pickler writes frames
    b'{"exporter": "forebay"',  # speedscope
    b'{"name": "memory at the peak", "value": ',  # d3-flame-graph
)
_PAGE = b'<meta name="generator" content="forebay">'
_ARCHIVE, _MANIFEST = b"PK\x03\x04", b"manifest.json"
_FOLDED = re.compile(rb"[^\x00-\x1f]+(;[^\x00-\x1f]*)+ \d+\n")  # ends behind the head if the first stack is long
_TABLE = b"forebay_table"  # in the metadata of a Parquet file


def add_overwrite(parser: argparse.ArgumentParser) -> None:
    """Add the option."""
    parser.add_argument(
        "--overwrite", action="store_true", help="replace an existing file also if forebay has not made it"
    )


def check_output(output: Path | None, inputs: Iterable[Path], option: str, *, overwrite: bool) -> None:
    """Raise CommandError if a command would replace a snapshot that it reads, or a file that forebay has not made."""
    if output is None:
        return
    try:
        if not output.exists():
            return
        is_input = any(each.exists() and each.samefile(output) for each in inputs)
        is_ours = overwrite or _is_ours(output)
    except (OSError, ValueError):  # reported when the file is written
        return
    if is_input:
        raise CommandError(f"{option} {str(output)!r} is one of the snapshots: choose another name")
    if not is_ours:
        raise CommandError(
            f"{option} {str(output)!r} exists, and was not made by forebay: choose another name, or replace it with "
            "--overwrite"
        )


def _is_ours(path: Path) -> bool:
    """Return True for an empty file, one in a format of forebay, and for a folder or device, which is refused later."""
    found = path.stat()
    if not stat.S_ISREG(found.st_mode) or found.st_size == 0:
        return True
    try:
        with path.open("rb") as file:
            head = file.read(_HEAD)
            if head.startswith(b"PAR1"):
                file.seek(-min(found.st_size, _MOST_FOOTER), os.SEEK_END)
                return _TABLE in file.read()
    except PermissionError:  # nothing is known about it
        return False
    if head.startswith(_ARCHIVE):
        return head[30:].startswith(_MANIFEST)
    is_trace = head.startswith(b"\x0a") and b"\x07forebay" in head[:64]  # Perfetto: the name of the process
    is_folded = path.name.endswith(".folded") and _FOLDED.match(head) is not None
    return head.startswith(_BEGINNINGS) or (head.startswith(b"<!doctype") and _PAGE in head) or is_trace or is_folded
