"""Text and files from other people: text is made printable, and only regular files are opened."""

from __future__ import annotations

import os
import re
import stat
from typing import BinaryIO

__all__ = ["UNPRINTABLE", "open_regular", "printable", "shortened"]

# Control characters, bidirectional marks, separators that end a line, surrogates, and characters that XML forbids.
UNPRINTABLE = re.compile(
    r"[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff\ufeff\ufff9-\ufffb\ufffe\uffff]"
)


def printable(text: str) -> str:
    r"""Replace characters that control a terminal or the order of text by their escape sequences.

    The result is one line without control characters, bidirectional marks and surrogates.

    Examples
    --------
    >>> printable(chr(27) + "[31mred")
    '\\x1b[31mred'
    """
    return UNPRINTABLE.sub(_escape, text)


def _escape(found: re.Match[str]) -> str:
    code = ord(found.group())
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


def shortened(text: str, length: int) -> str:
    """Return the beginning and the end of a text that is longer than `length` characters, with "…" between them.

    Examples
    --------
    >>> shortened("/home/ada/project/train.py", 16)
    '/home/ada/…in.py'
    """
    if len(text) <= length:
        return text
    end = length // 3
    return f"{text[: length - end - 1]}…{text[len(text) - end :]}"


def open_regular(path: str | os.PathLike[str]) -> BinaryIO:
    """Open a regular file for reading.

    OSError is raised if it cannot be opened, or is a directory, a pipe, a socket or a device, which may block or never
    end.
    """
    number = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    mode = os.fstat(number).st_mode
    if stat.S_ISREG(mode):
        return os.fdopen(number, "rb")
    os.close(number)
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(21, "Is a directory", os.fspath(path))
    raise OSError(22, "not a regular file", os.fspath(path))
