"""A simulated device and its model, given the same operations: whatever one of them does otherwise is told at once.

An operation is a tuple that stays the same when others before it are left out, so that a program which ends in a
difference can be cut down: blocks, pools and graphs are named by the numbers of the operations that made them, and what
names something that is not there (any more) is passed over.
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

_KINDS = (OutOfMemory, ValueError, RuntimeError)
_TOLD = ("action", "addr", "device_free", "size", "stream", "pool_id")  # of an entry; the model keeps no more


class Different(AssertionError):
    """The two did not agree."""


class SideBySide:
    """Both devices, and the names of what is alive on them. Every result is compared at once."""

    def __init__(self, total_memory: int, settings: str = "", other_used: int = 0) -> None:
        self.device = Device(total_memory, settings, other_used)
        self.model = ModelDevice(total_memory, settings, other_used)
        self.live: dict[int, int] = {}  # addresses
        self.pools: dict[int, tuple[int, int]] = {}  # which some MemPool or graph still has
        self.mem_pools: set[int] = set()
        self.graphs: dict[int, int] = {}  # each one's pool
        self.capture: int | None = None
        self.entered: dict[int, list[AbstractContextManager[None]]] = {}
        self.done = 0
        self._both: tuple[Any, Any] = self.device, self.model

    def do(self, operation: Operation) -> Any:
        """The result, which both had; an error is its kind and the first line of its text."""
        number, self.done = self.done, self.done + 1
        if not operation:
            return None
        name, *arguments = operation
        return getattr(self, f"_{name}", self._ask(name))(number, *arguments)

    def check(self) -> None:
        """Statistics, and segments with their blocks; and that the device's own tables hold."""
        self.check_stats()
        if (fault := self.device.broken()) is not None:
            raise Different(fault)
        pictures = [side.snapshot() for side in self._both]
        _compare("what is at", *(_rows(picture["segments"]) for picture in pictures))
        traces = [map(_told, picture["device_traces"][0]) for picture in pictures]
        _compare("the history, entry", *(dict(enumerate(trace)) for trace in traces))

    def check_stats(self) -> None:
        _compare("the statistics", *(side.stats() for side in self._both))
        if self.device.device_used != self.model.device_used:
            raise Different(
                f"{self.device.device_used} bytes were handed out, and {self.model.device_used} in the model"
            )

    def _ask(self, name: str) -> Callable[..., Any]:
        """The method of that name of both, by what the two give and raise."""

        def asked(_: int, *arguments: Any, **options: Any) -> Any:
            native, model = (_outcome(partial(getattr(side, name), *arguments, **options)) for side in self._both)
            if native != model:
                raise Different(f"{name}{arguments}: {native!r} and in the model {model!r}")
            return native

        return asked

    def _allocate(self, number: int, nbytes: int, stream: int = 0) -> Any:
        given = self._ask("allocate")(number, nbytes, stream)
        if isinstance(given, int):
            self.live[number] = given
        return given

    def _free(self, _: int, block: int) -> Any:
        return self._ask("free")(0, self.live.pop(block)) if block in self.live else None

    def _record_stream(self, _: int, block: int, stream: int) -> Any:
        return self._ask("record_stream")(0, self.live[block], stream) if block in self.live else None

    def _record_history(self, _: int, options: dict[str, Any]) -> Any:
        return self._ask("record_history")(0, **options)

    def _new_pool(self, number: int, options: dict[str, bool]) -> Any:
        self.pools[number] = self._ask("new_pool")(number, **options)
        self.mem_pools.add(number)

    def _enter(self, _: int, pool: int) -> Any:
        """Of one that is entered already, too, which both refuse."""
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
        result = self._ask("release_pool")(0, self.pools[pool])
        self._forget_pool(pool)
        return result

    def _begin_capture(self, number: int, stream: int, pool: int | None = None) -> Any:
        """In the pool of a MemPool or of another graph, or in one of its own."""
        if self.capture is not None or (pool is not None and (pool not in self.pools or pool in self.entered)):
            return None
        made = self._ask("begin_capture")(0, stream, None if pool is None else self.pools[pool])
        if pool is None:
            self.pools[number] = made
        self.graphs[number] = number if pool is None else pool
        self.capture = number
        return made

    def _end_capture(self, _: int) -> Any:
        if self.capture is None:
            return None
        self.capture = None
        return self._ask("end_capture")(0)

    def _release_capture(self, _: int, graph: int) -> Any:
        if graph not in self.graphs or graph == self.capture:
            return None
        pool = self.graphs.pop(graph)
        result = self._ask("release_capture")(0, self.pools[pool])
        self._forget_pool(pool)
        return result

    def _forget_pool(self, pool: int) -> None:
        """Nobody may go there again once neither a MemPool nor a graph has it."""
        if pool not in self.mem_pools and pool not in self.graphs.values():
            del self.pools[pool]


def run(total_memory: int, settings: str, program: Sequence[Operation], *, every: int = 1) -> None:
    """The whole program on two new devices, which are compared after each `every` operations and at the end."""
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
    """What it gave, or the error in words."""
    try:
        return act()
    except _KINDS as error:
        kind = next(kind for kind in _KINDS if isinstance(error, kind))
        return f"{kind.__name__}: {error}".partition("\n")[0]


def _rows(segments: list[dict[str, Any]]) -> dict[int, list[Any]]:
    """Segments and blocks by address; of what both keep alike."""
    rows: dict[int, list[Any]] = {}
    for segment in segments:
        for row in (segment, *segment["blocks"]):
            told = {key: value for key, value in row.items() if key not in ("blocks", "frames")}
            rows.setdefault(row["address"], []).append(told)
    return rows


def _told(entry: dict[str, Any]) -> list[Any]:
    return [entry.get(key) for key in _TOLD]
