"""Safe loading of untrusted pickles: only plain values, within a budget of memory, and nothing is executed.

A pickle is a program. `_plain_pickle` interprets the opcodes that create plain values and refuses all others; it counts
every object before it creates it, as 20 MB of opcodes for empty lists would take 1.8 GB. That takes less time than the
unpickler of the standard library, which offers no place to count.
"""

from __future__ import annotations

import gc
from typing import Any

from forebay.snapshot.formats import _plain_pickle
from forebay.snapshot.formats.budget import BadSnapshot, Budget

__all__ = ["load", "looks_like_pickle"]

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


def load(data: bytes, budget: Budget | None = None) -> Any:
    """Unpickle plain data. Raises BadSnapshot if the pickle is truncated, invalid, or would run or import anything.

    Numbers may have 64 bits, values may be nested 100 deep, and the keys of dicts must be
    strings or numbers below 2^32. `budget` is by
    default that of a file with this content.

    >>> import pickle
    >>> load(pickle.dumps({"a": [1, 2.5, None, "text"]}))
    {'a': [1, 2.5, None, 'text']}
    >>> load(pickle.dumps(print))
    Traceback (most recent call last):
    forebay.snapshot.formats.budget.BadSnapshot: not plain data: at byte 30 it names a global
    """
    budget = budget or Budget.of_file(len(data))
    gc_enabled = gc.isenabled()
    gc.disable()  # collections would scan a million dicts and find no garbage
    try:
        value, used = _plain_pickle.load(data, budget.left)
    except _plain_pickle.TooLarge as error:
        raise BadSnapshot(f"invalid pickle: {error}") from None
    except _plain_pickle.Forbidden as error:
        at = error.args[0]
        raise BadSnapshot(f"not plain data: at byte {at} it {_FORBIDDEN[data[at : at + 1]]}") from None
    except ValueError as error:  # Invalid, and undecodable text
        raise BadSnapshot(f"invalid pickle: {error}") from None
    finally:
        if gc_enabled:
            gc.enable()
    budget.charge(used)
    return value
