"""Comparison of a simulated device with its model under the same operations.

An operation is a tuple that remains valid when earlier operations are removed, so that a failing program can be
minimised: blocks, pools and graphs are identified by the number of the operation that created them, and operations on
objects that do not exist are skipped.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

from forebay.errors import OutOfMemory
from forebay.simulate import Device
from support.model import ModelDevice

__all__ = ["Different", "Operation", "SideBySide", "run"]

Operation = tuple[Any, ...]

_ERRORS = (OutOfMemory, ValueError, RuntimeError)
_ENTRY_FIELDS = (
    "action",
    "addr",
    "device_free",
    "size",
    "stream",
    "pool_id",
)  # all that the model has


class Different(AssertionError):
    """Raised when the device and the model differ."""


class SideBySide:
    """Both devices and their live objects. Every result is compared at once."""

    def __init__(self, total_memory: int, settings: str = "", other_used: int = 0) -> None:
        self.device = Device(total_memory, settings, other_used)
        self.model = ModelDevice(total_memory, settings, other_used)
        self.live: dict[int, int] = {}  # addresses
        self.pools: dict[int, tuple[int, int]] = {}  # of live MemPools and graphs
        self.mem_pools: set[int] = set()
        self.graphs: dict[int, int] = {}  # graph to pool
        self.capture: int | None = None
        self.entered: dict[int, list[AbstractContextManager[None]]] = {}
        self.done = 0
        self._both: tuple[Any, Any] = self.device, self.model

    def do(self, operation: Operation) -> Any:
        """Run an operation on both. Return the common result; an error is represented by its type and first line."""
        number, self.done = self.done, self.done + 1
        if not operation:
            return None
        name, *arguments = operation
        return getattr(self, f"_{name}", self._call(name))(number, *arguments)

    def check(self) -> None:
        """Compare statistics, segments, blocks and history, and check the device's invariants."""
        self.check_stats()
        if (fault := self.device.broken()) is not None:
            raise Different(fault)
        snapshots = [side.snapshot() for side in self._both]
        _compare("what is at", *(_rows(snapshot["segments"]) for snapshot in snapshots))
        traces = [map(_entry_fields, snapshot["device_traces"][0]) for snapshot in snapshots]
        _compare("the history, entry", *(dict(enumerate(trace)) for trace in traces))

    def check_stats(self) -> None:
        _compare("the statistics", *(side.stats() for side in self._both))
        if self.device.device_used != self.model.device_used:
            raise Different(f"device used: {self.device.device_used} and in the model {self.model.device_used}")

    def _call(self, name: str) -> Callable[..., Any]:
        """Return a function that calls the method of both and returns the common result."""

        def call_both(_: int, *arguments: Any, **options: Any) -> Any:
            native, model = (_outcome(partial(getattr(side, name), *arguments, **options)) for side in self._both)
            if native != model:
                raise Different(f"{name}{arguments}: {native!r} and in the model {model!r}")
            return native

        return call_both

    def _allocate(self, number: int, nbytes: int, stream: int = 0) -> Any:
        address = self._call("allocate")(number, nbytes, stream)
        if isinstance(address, int):
            self.live[number] = address
        return address

    def _free(self, _: int, block: int) -> Any:
        return self._call("free")(0, self.live.pop(block)) if block in self.live else None

    def _record_stream(self, _: int, block: int, stream: int) -> Any:
        return self._call("record_stream")(0, self.live[block], stream) if block in self.live else None

    def _record_history(self, _: int, options: dict[str, Any]) -> Any:
        return self._call("record_history")(0, **options)

    def _new_pool(self, number: int, options: dict[str, bool]) -> Any:
        self.pools[number] = self._call("new_pool")(number, **options)
        self.mem_pools.add(number)

    def _enter(self, _: int, pool: int) -> Any:
        """Enter a pool. Both sides reject a pool that is already entered."""
        if pool not in self.pools:
            return None
        entering = [side.use_pool(self.pools[pool]) for side in self._both]
        results = [_outcome(each.__enter__) for each in entering]
        if results[0] != results[1]:
            raise Different(f"use_pool: {results[0]} and in the model {results[1]}")
        if results[0] is None:
            self.entered[pool] = entering
        return results[0]

    def _leave(self, _: int, pool: int) -> None:
        for each in self.entered.pop(pool, ()):
            each.__exit__(None, None, None)

    def _release_pool(self, _: int, pool: int) -> Any:
        if pool not in self.mem_pools:
            return None
        self.mem_pools.remove(pool)
        result = self._call("release_pool")(0, self.pools[pool])
        self._drop_pool(pool)
        return result

    def _begin_capture(self, number: int, stream: int, pool: int | None = None) -> Any:
        """Begin a capture in the pool of a MemPool or another graph, or in a new one."""
        if self.capture is not None or (pool is not None and (pool not in self.pools or pool in self.entered)):
            return None
        made = self._call("begin_capture")(0, stream, None if pool is None else self.pools[pool])
        if pool is None:
            self.pools[number] = made
        self.graphs[number] = number if pool is None else pool
        self.capture = number
        return made

    def _end_capture(self, _: int) -> Any:
        if self.capture is None:
            return None
        self.capture = None
        return self._call("end_capture")(0)

    def _release_capture(self, _: int, graph: int) -> Any:
        if graph not in self.graphs or graph == self.capture:
            return None
        pool = self.graphs.pop(graph)
        result = self._call("release_capture")(0, self.pools[pool])
        self._drop_pool(pool)
        return result

    def _drop_pool(self, pool: int) -> None:
        """Drop a pool that no MemPool or graph uses any more."""
        if pool not in self.mem_pools and pool not in self.graphs.values():
            del self.pools[pool]


def run(total_memory: int, settings: str, program: Sequence[Operation], *, every: int = 1) -> None:
    """Run a program on a new device and model; compare them after each `every` operations and at the end."""
    both = SideBySide(total_memory, settings)
    for number, operation in enumerate(program, 1):
        both.do(operation)
        if number % every == 0:
            both.check()
    both.check()


def _compare(what: str, native: dict[Any, Any], model: dict[Any, Any]) -> None:
    if native == model:
        return
    for key in sorted({*native, *model}):
        if native.get(key) != model.get(key):
            raise Different(f"{what}, {key}: {native.get(key)} and in the model {model.get(key)}")


def _outcome(act: Callable[[], Any]) -> Any:
    """Return the result, or the error as a string."""
    try:
        return act()
    except _ERRORS as error:
        kind = next(kind for kind in _ERRORS if isinstance(error, kind))
        return f"{kind.__name__}: {error}".partition("\n")[0]


def _rows(segments: list[dict[str, Any]]) -> dict[int, list[Any]]:
    """Return segments and blocks by address, with the fields that both sides have."""
    rows: dict[int, list[Any]] = {}
    for segment in segments:
        for row in (segment, *segment["blocks"]):
            fields = {key: value for key, value in row.items() if key not in ("blocks", "frames")}
            rows.setdefault(row["address"], []).append(fields)
    return rows


def _entry_fields(entry: dict[str, Any]) -> list[Any]:
    return [entry.get(key) for key in _ENTRY_FIELDS]
