"""Safe loading of untrusted pickles: every opcode is checked before the data is unpickled.

A pickle is a program. `load` accepts it only if every opcode creates a plain value, and rejects memo indices that would
make the unpickler allocate gigabytes. Regular expressions match runs of opcodes: the check of a million entries takes
less time than unpickling them.
"""

from __future__ import annotations

import gc
import io
import pickle
import re
from typing import Any, NoReturn

from forebay.snapshot.formats.native import BadSnapshot

__all__ = ["load", "looks_like_pickle"]

_STOP = b"."
# Opcodes followed by a length prefix, and the size of the prefix in bytes.
_LENGTH_PREFIXED = {b"X": 4, b"\x8c": 1, b"\x8d": 8}  # BINUNICODE, SHORT_BINUNICODE, BINUNICODE8
_FORBIDDEN = {
    b"c": "names a global", b"\x93": "names a global", b"i": "names a class", b"o": "creates an object",
    b"R": "calls a function", b"b": "sets an object's state", b"\x81": "creates an object",
    b"\x92": "creates an object", b"P": "has a persistent id", b"Q": "has a persistent id",
    b"\x82": "names an extension", b"\x83": "names an extension", b"\x84": "names an extension",
    b"\x96": "holds a byte array", b"\x97": "has out-of-band buffers", b"B": "holds bytes",
    b"C": "holds bytes", b"\x8e": "holds bytes",
}  # fmt: skip


def looks_like_pickle(head: bytes) -> bool:
    """Return True if a file with these first bytes may be a pickle of lists and dicts, in any protocol."""
    return head[:1] in (b"\x80", b"(", b"]", b"}") and head[:2] != b"(c"


def load(data: bytes) -> Any:
    """Unpickle plain data. Raises BadSnapshot if the pickle is truncated, invalid, or would run or import anything.

    >>> load(pickle.dumps({"a": [1, 2.5, None, "text"]}))
    {'a': [1, 2.5, None, 'text']}
    >>> load(pickle.dumps(print))
    Traceback (most recent call last):
    forebay.snapshot.formats.native.BadSnapshot: not plain data: at byte 30 it names a global
    """
    _check_opcodes(data)
    gc_enabled = gc.isenabled()
    gc.disable()  # collections would scan a million dicts and find no garbage
    try:
        return _PlainUnpickler(io.BytesIO(data), encoding="utf-8").load()
    except BadSnapshot:
        raise
    except Exception as error:  # the unpickler raises many types of exceptions
        raise BadSnapshot(f"invalid pickle: {str(error) or type(error).__name__}") from error
    finally:
        if gc_enabled:
            gc.enable()


class _PlainUnpickler(pickle.Unpickler):
    """An unpickler that rejects globals and persistent ids, in case the opcode check misses one."""

    def find_class(self, module: str, name: str) -> NoReturn:
        raise BadSnapshot(f"not plain data: it names the global {module}.{name}")

    def persistent_load(self, _: Any) -> NoReturn:
        raise BadSnapshot("not plain data: it has a persistent id")


def _check_opcodes(data: bytes) -> None:
    """Raise BadSnapshot unless every opcode up to STOP creates a plain value."""
    fixed_run = _fixed_length_run(len(data)).match
    at, size = 0, len(data)
    while at < size:
        if found := fixed_run(data, at):
            at = found.end()
        opcode = data[at : at + 1]
        if opcode == _STOP:
            return
        if not opcode:
            break
        if (width := _LENGTH_PREFIXED.get(opcode)) is None:
            _reject(data, at)
        at += 1 + width + int.from_bytes(data[at + 1 : at + 1 + width], "little")
    raise BadSnapshot("truncated: the pickle has no STOP opcode")


def _reject(data: bytes, at: int) -> NoReturn:
    reason = _FORBIDDEN.get(data[at : at + 1])
    if reason is None:
        raise BadSnapshot(f"invalid pickle: unknown opcode {data[at]:#04x} at byte {at}")
    raise BadSnapshot(f"not plain data: at byte {at} it {reason}")


def _fixed_length_run(size: int) -> re.Pattern[bytes]:
    """Return a pattern for a run of opcodes of fixed length, in a pickle of `size` bytes."""
    most = max(256, 1 << size.bit_length())  # a pickle memoizes at most one value per byte
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
        % len(str(size // 4))  # PUT: every memoized value takes at least 4 bytes
        + rb"|g[0-9]{1,10}\n|[IL]-?[0-9]{1,20}L?\n|F[-+.0-9a-z]{1,40}\n|V[^\n]*\n"  # GET, INT, LONG, FLOAT, UNICODE
        rb")*+",
        re.DOTALL,
    )
