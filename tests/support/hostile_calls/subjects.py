"""Subjects of hostile calls: the names of a compiled module, and objects of its classes in many states.

Numbers that are addresses cannot be checked by anyone: where a function uses memory or a C function at an address, it
gets real ones, of the table `ADDRESSES`. So do tables of functions: a soft driver, whose functions all return 0.
"""

from __future__ import annotations

import ctypes
import importlib
import inspect
import types
from collections.abc import Callable, Iterator
from typing import Any

from support.hostile_calls.values import MEMORY, SMALL, Context, Reentry, hostile_method

__all__ = ["ADDRESSES", "TEMPLATES", "classes", "functions", "is_safe", "objects", "real_arguments"]

_libc = ctypes.CDLL(None)
_YIELD = ctypes.cast(_libc.sched_yield, ctypes.c_void_p).value or 0  # has no effect and returns 0, with any arguments
_AT = ctypes.addressof(MEMORY)
_TABLE = (ctypes.c_void_p * 200)(*[_YIELD] * 200)
_OBJECT = ctypes.c_void_p(ctypes.addressof(_TABLE) + 16)  # as of C++: its table follows two other words


def _soft(names: tuple[str, ...]) -> dict[str, int]:
    return dict.fromkeys(names, _YIELD)


# Functions that use addresses: valid arguments. Hostile calls of them have an argument that is no number, or these.
ADDRESSES: dict[str, Callable[[Any], tuple[Any, ...]]] = {
    "_core.Queue.copy": lambda _: (_AT, _AT + SMALL, SMALL),
    "_core.Queue.fill": lambda _: (_AT, 7, SMALL),
    "_core.Queue.call_native": lambda _: (_YIELD, _AT),
    "_stream.load": lambda module: (_soft(module.FUNCTIONS),),
    "_stream.load_cupti": lambda module: (_soft(module.CUPTI_FUNCTIONS),),
    "_stream.NativeHostCall.__init__": lambda module: (_open_stream(module), _YIELD, 1),
    "_stream.NativeHostCall": lambda module: (_open_stream(module), _YIELD, 1),
    "_stream.Stream.call_native": lambda _: (_YIELD, 1),
    "_memory.load": lambda module: (_soft(module.FUNCTIONS),),
    "_device_guard.make_object": lambda _: (ctypes.addressof(_OBJECT), {}),
}
# Their first argument is a pool whose blocks are real memory, as NumPy's arrays lie there.
_OWN_POOL = {"_core.NumpyHook", "_core.NumpyHook.__new__"}


def is_safe(name: str, arguments: list[Any]) -> bool:
    """Return False if a call would use an address that is not one."""
    if name in ADDRESSES:
        return not arguments or any(
            not hasattr(type(each), "__int__") and not hasattr(type(each), "__index__") and not isinstance(each, dict)
            for each in arguments[:2]
        )
    return name not in _OWN_POOL


def real_arguments(name: str, module: Any) -> list[Any] | None:
    """Return valid arguments of a function that uses addresses."""
    if name in _OWN_POOL:
        return [_RefillOnly.of(module), 0, 0]
    return list(ADDRESSES[name](module)) if name in ADDRESSES else None


# Valid arguments of functions with many parameters: hostile calls replace one or two of them.
TEMPLATES: dict[str, tuple[Any, ...]] = {
    "_core.make_dicts": ({"a": 1}, ["b", "c"], [[1, 2], [3, 4]], True),
    "_core.Pool.set_policy": ([0, 4] * 8, (1 << 64) - 1, 20 << 20, 20 << 20, False, True, True, 0, 0),
    "_core.Pool.adopt": (3 << 40, 2 << 20, 0, True, 5, 0),
    "_core.Pool.adopt_and_allocate": (1000, 3 << 40, 2 << 20, 0, 0),
    "_core.Pool.adopt_expandable": (3 << 40, 64 << 20, 2 << 20, 0, True, 0),
    "_core.Pool.allocate_at": (1 << 40, 1000, 0, 0),
    "_core.Pool.restore": (0, [[{"address": 1 << 41, "size": 2 << 20, "live": True, "committed": True}]]),
    "_core.Pool.record_history": (100, 16, True, True, 0, True, "/"),
    "_core.Pool.release_buffer": (1 << 40, 1024),
    "_core.Pool.meter": (1, True),
    "_dlpack.export_memory": (
        1 << 40, (2, 3), (3, 1), (2, 32), (2, 0), "owner", {"versioned": True, "read_only": False, "copied": False},
    ),
    "_segments.map_aligned": (SMALL, {"writable": True, "charged": False}),
    "_reservations.reserve_and_adopt": (Context(), lambda _: 1, 1, lambda _: None, 1000, 2 << 20, 0, 0),
    "_reservations.evict_into": ([], [1, 2], lambda *_: True, 0, iter(range(1 << 30))),
    "_reservations.release_entry": (Context(), [(1, 2)], (1, 2), lambda _: None),
    "_stream.Stream.launch_kernel": (1, (1, 1, 1), (1, 1, 1), 0, (b"12345678",)),
    "_stream.Stream.copy": (1 << 40, 1 << 41, SMALL),
    "_stream.Stream.fill": (1 << 40, 1, SMALL),
    "_memory.map_page": (_AT, 1 << 40, 2 << 20, []),
    "_memory.close_memory": ({1: 1}, 1),
    "_memory.free_addresses": (1 << 40, 2 << 20, []),
    "_memory.obtain": ([], "cuMemFree", lambda *_: (0, 1)),
    "_cache.PinnedCache.set_segment": (SMALL, 1 << 20, 1),
    "_history_reader.HistoryReader.read": (b"\x80\x02].", 0, 1 << 20),
    "_lifetimes.match": (bytes(96), bytes(40), bytes(80)),
    "_plain_pickle.load": (b"\x80\x02].", 1 << 20),
    "_plain_pickle._Builder": (b"\x80\x02].", 1 << 20),
    "_device_guard.set_callbacks": (lambda *_: 1,) * 9,
    "_torch_callbacks.connect": (Context(), {}),
    "_entries.Entries": (4, Context(), lambda _: False, False),
    "_device_context.DeviceArguments": ("cuda", {0: Context()}, Context()),
}  # fmt: skip


class _RefillOnly:
    """Maker of pools that never have memory, so that NumPy's arrays lie elsewhere."""

    @staticmethod
    def of(module: Any) -> Any:
        answers: Iterator[Any] = iter(range(1 << 30))

        def refill(self: Any, *_: Any) -> Any:
            number = next(answers) % 5
            if number == 0:
                return None
            if number == 1:
                return module.Block.__new__(module.Block)
            if number == 2:
                other = module.Pool()
                return other.adopt_and_allocate(512, 1 << 40, 2 << 20, 0)
            if number == 3:
                return 3
            raise MemoryError("none")

        return type("RefillOnly", (module.Pool,), {"_refill": refill})()


def _open_stream(module: Any) -> Any:
    module.load(_soft(module.FUNCTIONS))
    import os

    context = Context()
    context.process = os.getpid()
    return module.Stream(context, 1)


def functions(module: Any) -> dict[str, Callable[..., Any]]:
    """Return the functions of a module by name."""
    return {
        name: value
        for name, value in vars(module).items()
        if callable(value) and not isinstance(value, type) and getattr(value, "__module__", None) == module.__name__
    }


def classes(module: Any) -> dict[str, type]:
    """Return the classes of a module by name."""
    return {
        name: value
        for name, value in vars(module).items()
        if isinstance(value, type) and value.__module__ == module.__name__
    }


def _subclass(kind: type, number: int, reenter: Reentry) -> type | None:
    """Return a subclass some of whose methods are hostile; None if the class is final."""
    names = [name for name in vars(kind) if name in _HOOKS or not name.startswith("__")]
    chosen = {name for position, name in enumerate(names) if (number >> position % 8) & 1}
    body = {name: hostile_method(number + position, reenter) for position, name in enumerate(sorted(chosen))}
    try:
        return type(f"Hostile{kind.__name__}", (kind,), {**body, "charged": True, "name": "hostile", "kind": None})
    except TypeError:
        return None


_HOOKS = {"_refill", "_defer", "_route", "_process_pending_frees", "_annotation_id", "_export", "_complete"}
_CONSTRUCTORS: dict[str, Callable[[Any], tuple[Any, ...]]] = {
    "Entries": lambda _: (4, Context(), lambda _: False),
    "QueueTrack": lambda _: (3, Context(), None),
    "MemoryCounters": lambda _: (lambda number: number,),
    "HistoryReader": lambda _: (1, {"alloc": 1, "oom": 2}),
    "_Builder": lambda _: (b"\x80\x02].", 1 << 20),
    "HostBlock": lambda _: (SMALL, SMALL),
    "DriverMemory": lambda _: (Context(),),
    "Current": lambda _: (Context(), 1),
    "NumpyHook": lambda module: (_RefillOnly.of(module), 0, 0),
    "DeviceArguments": lambda _: ("cuda", {0: Context()}, Context()),
    "DeviceContext": lambda _: (0,),
    "ManagedTensor": lambda module: (
        module.export_memory(1 << 40, (2, 3), (3, 1), (2, 32), (2, 0), object(), versioned=True, read_only=False,
                             copied=False),
    ),
    "HostCall": lambda module: (_open_stream(module), lambda: None),
    "NativeHostCall": lambda module: (_open_stream(module), _YIELD, 1),
    "WorkTimes": lambda module: (module.load_cupti(_soft(module.CUPTI_FUNCTIONS)), _open_stream(module), 10)[1:],
    "StackRow": lambda _: (1,),
    "Rows": lambda _: (0, 3),
}  # fmt: skip


def _prepared(kind: type, found: Any, module: Any, state: int) -> Any:
    """Bring an object into another state: with memory and live blocks, closed, or half done."""
    name = kind.__name__
    if name == "Pool":
        return _pool(found, module, state)
    if name == "Queue" and state % 3:
        found.call(lambda: None)
        if state % 3 == 2:
            found.close_within(1_000_000)
    if name == "Entries" and state % 2:
        found.add(3, (1, 2))
        found.note(1, "what")
        found.close()
    if name == "HistoryReader" and state % 3:
        found.read(b"\x80\x02]q\x00}q\x01(X\x06\x00\x00\x00actionq\x02X\x05\x00\x00\x00allocq\x03ua.", 0, 1 << 20)
        if state % 3 == 2:
            found.value()
    if name == "PinnedCache" and state % 2:
        found.add(module.HostBlock(SMALL, SMALL), module.PinnedLease(), 1)
    return found


def _pool(found: Any, module: Any, state: int) -> Any:
    heaps = 256 if state % 4 == 3 else 0
    if state % 4:
        found.set_policy([0, 4] * 8, (1 << 64) - 1, 20 << 20, 20 << 20, state % 4 == 2, True, state % 8 == 1, heaps)
    if state % 4 == 2:
        found.adopt_expandable(1 << 40, 64 << 20, 2 << 20, 0, True)
        address, size = found.choose_pages(1000, 0)
        found.kept = [found.commit_done(address, 1000), size]
    else:
        found.adopt(1 << 41, 2 << 20, 0, True, 3)
        found.kept = [found.adopt_and_allocate(1000, 1 << 40, 2 << 20, 0), found.try_allocate(5000)]
    if state % 3 == 1:
        found.record_history(100, 16, True, True)
    if state % 5 == 1:
        found.create_pool(1, True, True)
    return found


def objects(module: Any, name: str, kind: type, number: int, reenter: Reentry) -> Any:
    """Return an object of a class: made by `__new__` alone, by its constructor, or of a hostile subclass.

    Parameters
    ----------
    module : module
        The module of the class.
    name : str
        The name of the class.
    kind : type
        The class.
    number : int
        Selects the state.
    reenter : Reentry
        What hostile methods call.

    Returns
    -------
    object
        The object; None if none can be made so.
    """
    actual: type | None = kind
    if number % 4 == 3:
        actual = _subclass(kind, number // 4, reenter)
    elif name == "Pool":
        actual = type("RoomyPool", (kind,), {"kept": None})  # has a dict
    if actual is None:
        return None
    constructor = _CONSTRUCTORS.get(name)
    try:
        if number % 4 == 0:
            return actual.__new__(actual)
        found = actual(*(constructor(module) if constructor else ()))
        return _prepared(kind, found, module, number // 4)
    except BaseException:  # noqa: BLE001 - final, or its state is impossible
        return _made_elsewhere(module, name, number)


def _made_elsewhere(module: Any, name: str, number: int) -> Any:
    """Return an object that only another object makes."""
    if name == "Block":
        return module.Pool().adopt_and_allocate(1000, 1 << 40, 2 << 20, 0)
    if name == "Mark" and hasattr(module, "Queue"):
        return module.Queue(number).mark()
    if name == "Mark":
        return _open_stream(module).mark()
    if name == "DeviceContext":
        return type("Cuda", (module.DeviceContext,), {"kind": module.DeviceArguments("cuda", {}, Context())})(0)
    if name == "CapturedStreams":
        return module.CapturedStreams()
    return None


def load(path: str) -> types.ModuleType:
    """Import a compiled module by its path in the package."""
    return importlib.import_module("forebay." + path.replace("/", "."))


def parameters(function: Any) -> int:
    """Return the number of positional parameters of a function, or 3."""
    try:
        return len(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        return 3
