"""Hostile arguments by label: wrong types, limits of C types, damaged buffers, and objects whose methods misbehave."""

from __future__ import annotations

import array
import contextlib
import ctypes
import gc
import itertools
from collections.abc import Callable
from typing import Any

import numpy as np

__all__ = ["MEMORY", "SMALL", "Reentry", "hostile_method", "values"]

SMALL = 4096
CLAIMED = 1 << 24  # items; a vector of as many elements is still allocated
MEMORY = ctypes.create_string_buffer(1 << 16)  # what every address of memory that is used refers to


class Reentry:
    """Effects of the methods of hostile objects: a further call of the object whose method is running."""

    def __init__(self) -> None:
        self.subject: Any = None
        self.depth = 0

    def __call__(self, number: int) -> None:
        """Call a method of the subject, or change the lists that it may be reading."""
        shared[:] = shared[: number % 3]
        shared_map.clear()
        if self.subject is None or self.depth > 2:
            return
        names = [name for name in dir(type(self.subject)) if not name.startswith("_") or name == "__init__"]
        if not names:
            return
        self.depth += 1
        try:
            found = getattr(self.subject, names[number % len(names)])
            if callable(found):
                found(*(0, 1, SMALL)[: number % 3])
        except BaseException:  # noqa: BLE001 - any error is right here; only a death is a fault
            pass
        finally:
            self.depth -= 1


shared: list[Any] = []
shared_map: dict[Any, Any] = {}
_numbers = itertools.count()


def _raise(*_: Any, **__: Any) -> Any:
    raise ArithmeticError("a hostile method")


class Raises:
    """An object all of whose methods raise."""

    __len__ = __index__ = __int__ = __float__ = __bool__ = __iter__ = __next__ = __getitem__ = __setitem__ = _raise
    __call__ = __contains__ = __eq__ = __hash__ = __lt__ = __le__ = __enter__ = __exit__ = __str__ = __getattr__ = (
        _raise
    )


def reentering(reenter: Reentry, answer: Any) -> Any:
    """Return an object whose methods call the subject again, and then answer."""

    def method(*_: Any, **__: Any) -> Any:
        reenter(next(_numbers))
        return answer

    def truth(*_: Any) -> bool:
        method()
        return True

    body: dict[str, Any] = dict.fromkeys(("__index__", "__int__", "__len__", "__call__", "__getattr__"), method)
    body |= dict.fromkeys(("__eq__", "__contains__", "__bool__", "__lt__", "__le__", "__gt__", "__ge__"), truth)
    body["__len__"] = lambda _: (method(), min(answer, CLAIMED) if isinstance(answer, int) else answer)[1]
    body |= {"__hash__": lambda _: (method(), 7)[1], "__iter__": lambda _: iter((method(), method()))}
    return type("Reenters", (), body)()


class LyingList(list):
    """A list that claims another length."""

    def __len__(self) -> int:
        return CLAIMED


class LyingBytes(bytes):
    """Bytes that claim another length."""

    def __len__(self) -> int:
        return CLAIMED


class LyingText(str):  # noqa: SLOT000 - instances have no attributes, but may get some
    """A text whose encoding claims another length."""

    def __len__(self) -> int:
        return CLAIMED

    def encode(self, *_: Any) -> bytes:
        return LyingBytes(b"alloc")


class LyingNumber(int):
    """A number that answers every comparison with True."""

    def __le__(self, other: object) -> bool:
        return True

    __ge__ = __lt__ = __gt__ = __le__

    def __index__(self) -> int:
        return -1


class Context:
    """A context of NVIDIA's driver, a device, a queue or a pool, as far as attributes go."""

    handle = 1
    name = "hostile"
    kind = "cuda"
    index = 0
    released = False
    process = 0
    key = 3
    tick = 1
    done = True

    def __init__(self, reenter: Reentry | None = None) -> None:
        self.devices: dict[Any, Any] = {}
        self._reenter = reenter

    def check_usable(self, *_: Any) -> None:
        if self._reenter is not None:
            self._reenter(next(_numbers))

    reached = idle = check_usable


class Finalizer:
    """Garbage in a cycle, whose finalizer calls the subject again."""

    def __init__(self, reenter: Reentry) -> None:
        self.me = self
        self._reenter = reenter

    def __del__(self) -> None:
        self._reenter(next(_numbers))


def hostile_method(number: int, reenter: Reentry) -> Callable[..., Any]:
    """Return a method for a subclass: it returns something unexpected, raises, or calls the object again."""

    def method(self: Any, *arguments: Any, **_: Any) -> Any:
        case = next(_numbers) % 7
        if case == 0:
            raise KeyboardInterrupt
        if case == 1:
            raise MemoryError
        if case == 2:
            reenter(number)
        if case == 3:
            Finalizer(reenter)
            gc.collect(0)
        return (None, 0, -1, 1 << 63, "text", self, (), arguments, [], lambda *_: 1)[number % 10]

    return method


def _cycle() -> list[Any]:
    found: list[Any] = []
    found.append(found)
    return found


def _memory(content: bytes, cast: str | None = None) -> memoryview:
    return memoryview(bytearray(content)).cast(cast) if cast else memoryview(bytearray(content))


def _released() -> memoryview:
    view = memoryview(b"1234")
    view.release()
    return view


def _used(kind: Callable[[], Any]) -> Any:
    found = kind()
    with contextlib.suppress(StopIteration):
        next(found)
    return found


def values(reenter: Reentry) -> dict[str, Callable[[], Any]]:
    """Return makers of hostile values by label.

    Parameters
    ----------
    reenter : Reentry
        What methods of the values call.

    Returns
    -------
    dict
        The makers.
    """
    numbers = (
        0, 1, -1, 2, 3, 16, 64, 65, 255, 256, 512, SMALL, 1 << 20, 2 << 20, 20 << 20, 1 << 31, (1 << 31) - 1,
        -(1 << 31), 1 << 32, 1 << 40, (1 << 40) + (2 << 20), 1 << 60, (1 << 60) - 1, 1 << 62, (1 << 63) - 1,
        1 << 63, (1 << 64) - 1, 1 << 64, -(1 << 63), 10**30, True, False,
    )  # fmt: skip
    made: dict[str, Callable[[], Any]] = {repr(number): lambda number=number: number for number in numbers}
    made |= {
        "None": lambda: None,
        "nan": lambda: float("nan"),
        "inf": lambda: float("inf"),
        "1.5": lambda: 1.5,
        "1j": lambda: 1j,
        "''": str,
        "'a'": lambda: "a",
        "'cuda:0'": lambda: "cuda:0",
        "'cuMemAlloc'": lambda: "cuMemAlloc",
        "'cuMemFree'": lambda: "cuMemFree",
        "surrogate": lambda: "\ud800",
        "long text": lambda: "x" * 100_000,
        "lying text": lambda: LyingText("alloc"),
        "b''": bytes,
        "b'.'": lambda: b"N.",
        "zeros": lambda: bytes(40),
        "more zeros": lambda: bytes(10_000),
        "ones": lambda: b"\xff" * 96,
        "lying bytes": lambda: LyingBytes(b"\x80\x04N."),
        "pickle": lambda: b"\x80\x02]q\x00}q\x01(X\x06\x00\x00\x00actionq\x02X\x05\x00\x00\x00allocq\x03ua.",
        "half a pickle": lambda: b"\x80\x02]q\x00(}q\x01(X\x06\x00\x00\x00action",
        "bytearray": lambda: bytearray(b"\x80\x02]."),
        "memoryview": lambda: _memory(b"12345678"),
        "memoryview of doubles": lambda: _memory(b"12345678", "d"),
        "strided memoryview": lambda: _memory(b"12345678")[::2],
        "reversed memoryview": lambda: _memory(b"12345678")[::-1],
        "released memoryview": _released,
        "array": lambda: array.array("Q", [1, 2, 3]),
        "numpy": lambda: np.arange(6, dtype="u8").reshape(2, 3).T,
        "readonly numpy": lambda: np.broadcast_to(np.uint8(1), (3, 3)),
        "0-d numpy": lambda: np.array(3),
        "numpy scalar": lambda: np.int64(-5),
        "numpy objects": lambda: np.array([None, "a"], dtype=object),
        "()": tuple,
        "(1, 2)": lambda: (1, 2),
        "(1, 2, 3)": lambda: (1, 2, 3),
        "pair of a pair": lambda: ((1, 2), (3, 4)),
        "[]": list,
        "[0] * 16": lambda: [0] * 16,
        "[3] * 16": lambda: [3] * 16,
        "[1 << 60] * 16": lambda: [1 << 60] * 16,
        "[[]]": lambda: [[]],
        "[[], [1]]": lambda: [[], [1]],
        "[[1, 2], [3]]": lambda: [[1, 2], [3]],
        "['a', 'b']": lambda: ["a", "b"],
        "[None]": lambda: [None],
        "[('cuMemFree', 1)]": lambda: [("cuMemFree", 1)],
        "checkpoint": lambda: [[{"address": 1 << 40, "size": 2 << 20, "live": True, "committed": True}]],
        "half a checkpoint": lambda: [[{"address": 1 << 40, "size": 512, "live": True, "committed": True}]],
        "negative checkpoint": lambda: [[{"address": 1 << 40, "size": 0, "live": True, "committed": False}] * 3],
        "cyclic list": _cycle,
        "lying list": lambda: LyingList([1, 2]),
        "shared list": lambda: shared.extend([reentering(reenter, 1), 2, 3]) or shared,
        "shared lists": lambda: shared.extend([[reentering(reenter, 1), 2], [3, 4]]) or shared,
        "list of reentries": lambda: [reentering(reenter, 1), reentering(reenter, 2)],
        "set": lambda: {1, 2},
        "{}": dict,
        "{1: 1}": lambda: {1: 1},
        "{'a': 1}": lambda: {"a": 1},
        "{'alloc': 1}": lambda: {"alloc": 1, "oom": 7, "": 0},
        "dict of hostile text": lambda: {LyingText("alloc"): 1, "free": reentering(reenter, 3)},
        "dict with a reentering key": lambda: {reentering(reenter, 3): 1},
        "shared dict": lambda: shared_map.update({0: reentering(reenter, 3), 1: 1}) or shared_map,
        "object": object,
        "type": lambda: int,
        "Ellipsis": lambda: ...,
        "function": lambda: lambda *_, **__: None,
        "function that returns a number": lambda: lambda *_, **__: 3,
        "function that returns itself": lambda: hostile_method(5, reenter),
        "function that raises": lambda: _raise,
        "function that reenters": lambda: lambda *_, **__: reenter(next(_numbers)),
        "generator": lambda: (each for each in (1, 2, 3)),
        "used generator": lambda: _used(lambda: (each for each in ())),
        "iterator": lambda: iter([(1, 2), (3, 4)]),
        "raises": Raises,
        "reenters, 0": lambda: reentering(reenter, 0),
        "reenters, -1": lambda: reentering(reenter, -1),
        "reenters, 1 << 40": lambda: reentering(reenter, 1 << 40),
        "reenters, text": lambda: reentering(reenter, "a"),
        "lying number": lambda: LyingNumber(1),
        "context": Context,
        "reentering context": lambda: Context(reenter),
        "finalizer": lambda: Finalizer(reenter),
        "capsule": _capsule,
        "exception": lambda: KeyError("a"),
    }
    return made


def _capsule() -> Any:
    import unicodedata

    return unicodedata._ucnhash_CAPI  # type: ignore[attr-defined]
