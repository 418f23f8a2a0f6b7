"""Pickles of plain data from strangers: read before they are loaded, so that nothing can run or take much memory.

A pickle is a program. `load` takes only those whose every instruction makes a plain value, and refuses numbers of the
memo that would make the unpickler reserve gigabytes for nothing. Regular expressions read the instructions, several of
them a step: a million entries take less than their unpickling does.
"""

from __future__ import annotations

import gc
import io
import pickle
import re
from typing import Any, NoReturn

from forebay.snapshot.formats.native import BadSnapshot

__all__ = ["begins_like_one", "load"]

_STOP = b"."
# What has its length before it: an instruction, and how many bytes the length has.
_TEXTS = {b"X": 4, b"\x8c": 1, b"\x8d": 8}  # BINUNICODE, SHORT_BINUNICODE, BINUNICODE8
_FORBIDDEN = {
    b"c": "names a global", b"\x93": "names a global", b"i": "names a class", b"o": "makes an object",
    b"R": "calls a function", b"b": "sets an object's state", b"\x81": "makes an object", b"\x92": "makes an object",
    b"P": "names something outside", b"Q": "names something outside", b"\x82": "names an extension",
    b"\x83": "names an extension", b"\x84": "names an extension", b"\x96": "holds a byte array",
    b"\x97": "has buffers outside", b"B": "holds bytes", b"C": "holds bytes", b"\x8e": "holds bytes",
}  # fmt: skip


def begins_like_one(head: bytes) -> bool:
    """Whether a file that begins so may be a pickle of lists and dicts, of any protocol."""
    return head[:1] in (b"\x80", b"(", b"]", b"}") and head[:2] != b"(c"


def load(data: bytes) -> Any:
    """The value; raises BadSnapshot for what is cut short, foreign, or would do more than make plain values.

    >>> load(pickle.dumps({"a": [1, 2.5, None, "text"]}))
    {'a': [1, 2.5, None, 'text']}
    >>> load(pickle.dumps(print))
    Traceback (most recent call last):
    forebay.snapshot.formats.native.BadSnapshot: not plain data: at byte 30 it names a global
    """
    _read_instructions(data)
    collecting = gc.isenabled()
    gc.disable()  # a million dicts, and no garbage among them
    try:
        return _Plain(io.BytesIO(data), encoding="utf-8").load()
    except BadSnapshot:
        raise
    except Exception as error:  # the unpickler fails in many ways, and every one means the same
        raise BadSnapshot(f"a broken pickle: {str(error) or type(error).__name__}") from error
    finally:
        if collecting:
            gc.enable()


class _Plain(pickle.Unpickler):
    """A second lock behind the first."""

    def find_class(self, module: str, name: str) -> NoReturn:
        raise BadSnapshot(f"not plain data: it names the global {module}.{name}")

    def persistent_load(self, _: Any) -> NoReturn:
        raise BadSnapshot("not plain data: it names something outside")


def _read_instructions(data: bytes) -> None:
    """Raise BadSnapshot unless every instruction up to the end is a harmless one."""
    fixed = _fixed(len(data)).match
    at, size = 0, len(data)
    while at < size:
        if found := fixed(data, at):
            at = found.end()
        instruction = data[at : at + 1]
        if instruction == _STOP:
            return
        if not instruction:
            break
        if (width := _TEXTS.get(instruction)) is None:
            _refuse(data, at)
        at += 1 + width + int.from_bytes(data[at + 1 : at + 1 + width], "little")
    raise BadSnapshot("cut short: the pickle has no end")


def _refuse(data: bytes, at: int) -> NoReturn:
    what = _FORBIDDEN.get(data[at : at + 1])
    if what is None:
        raise BadSnapshot(f"a broken or foreign pickle: at byte {at} is the instruction {data[at]:#04x}")
    raise BadSnapshot(f"not plain data: at byte {at} it {what}")


def _fixed(size: int) -> re.Pattern[bytes]:
    """A run of instructions whose length does not depend on what they say, in a pickle of that many bytes."""
    most = max(256, 1 << size.bit_length())  # no pickle remembers more values than it has bytes
    short = b"".join(
        b"." if most >= 1 << 8 * (byte + 1) else b"[\\x00-\\x%02x]" % max(0, (most - 1 >> 8 * byte))
        for byte in range(4)
    )
    return re.compile(
        rb"(?:"
        rb"[\x94aesut\x85\x86\x87()\]}N\x88\x89ld]"  # MEMOIZE, collections, None, True, False
        rb"|[hKq].|j.{4}|M..|J.{4}|G.{8}"  # BINGET, BININT1, BINPUT, LONG_BINGET, BININT2, BININT, BINFLOAT
        rb"|\x8a(?:\x00|\x01.|\x02..|\x03.{3}|\x04.{4}|\x05.{5}|\x06.{6}|\x07.{7}|\x08.{8}|\x09.{9})"  # LONG1
        rb"|r" + short + rb"|\x95.{8}|\x80[\x00-\x05]"  # LONG_BINPUT, FRAME, PROTO
        rb"|p[0-9]{1,%d}\n"
        % len(str(size // 4))  # PUT: whoever is remembered takes 4 bytes or more
        + rb"|g[0-9]{1,10}\n|[IL]-?[0-9]{1,20}L?\n|F[-+.0-9a-z]{1,40}\n|V[^\n]*\n"  # GET, INT, LONG, FLOAT, UNICODE
        rb")*+",
        re.DOTALL,
    )
