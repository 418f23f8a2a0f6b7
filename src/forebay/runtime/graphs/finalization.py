"""Graph finalization: callbacks and releases that run once, on `reset` or when the graph object is destroyed."""

from __future__ import annotations

import atexit
import os
import weakref
from collections.abc import Callable
from functools import cache, partial
from typing import TYPE_CHECKING, Any

from forebay.backends.common._disposal import Disposable, call_taken, interrupts
from forebay.errors import ForebayError, warn_unraisable
from forebay.runtime.graphs import annotations as graphs_annotations
from forebay.runtime.graphs.removable_hooks import HookList, HookTable, RemovableHandle

if TYPE_CHECKING:
    from forebay.runtime.streams.stream import Stream

__all__ = ["GraphFinalizer", "destroyed"]

destroyed: HookList[set[int]] = HookList()  # called with the ids of each destroyed graph


_live: dict[int, weakref.ref[GraphFinalizer]] = {}  # by identity, in the order of creation


@cache
def _register_exit() -> None:
    """Run the finalizers of the graphs that exist at exit, before the queues are closed: the last handler is first."""
    atexit.register(_run_all)


def _run_all() -> None:
    for reference in reversed(tuple(_live.values())):
        if (finalizer := reference()) is not None:
            finalizer.run()


class GraphFinalizer(Disposable):
    """Callbacks, objects and streams of one capture, which ends with the graph, its only owner.

    Not part of the graph: it also ends if a program derives a class with a destructor from Graph.
    """

    def __init__(self, ids: set[int]) -> None:
        self.callbacks: HookTable[Callable[[], object]] = HookTable()
        self.objects: HookTable[object] = HookTable()
        self.streams: set[Stream] = set()  # the streams of the graph's replays
        self.synchronizes: bool = False  # wait for `streams` before the callbacks
        self._ids = ids
        self._hooks: list[Callable[[], object]] | None = None  # still to be called; None before `run`
        self._process = os.getpid()
        _register_exit()
        _live[id(self)] = weakref.ref(self, partial(_live.pop, id(self)))

    def call(self, callback: Callable[[], object], *, synchronizes: bool) -> RemovableHandle:
        return self._register(self.callbacks, callback, synchronizes)

    def retain(self, obj: object, *, synchronizes: bool) -> RemovableHandle:
        return self._register(self.objects, obj, synchronizes)

    def _register(self, table: HookTable[Any], value: object, synchronizes: bool) -> RemovableHandle:
        self.synchronizes |= synchronizes
        handle = RemovableHandle(table)
        table[handle.id] = value
        return handle

    def run(self) -> None:
        """Run the callbacks and release everything, each once. Failures become warnings: a destructor calls this.

        In a forked child nothing is called: the graph is the parent's. An interrupted call is continued by the next
        one: it calls the remaining callbacks, as those of a program need not be repeatable.
        """
        if self._process == os.getpid():
            self._call_all()
        self.callbacks.clear()
        self.objects.clear()

    def _dispose(self) -> None:
        if hasattr(self, "_process"):  # else `__init__` was interrupted
            self.run()

    def _call_all(self) -> None:
        for stream in self.streams if self.synchronizes else ():
            try:
                stream.synchronize()
            except ForebayError as error:
                warn_unraisable(
                    f"{error}; the error was not reported before a graph replayed on that stream was destroyed"
                )
        self.streams.clear()
        graphs_annotations.discard(self._ids)
        if self._hooks is None:
            self._hooks = [partial(hook, self._ids) for hook in destroyed]
        while self._hooks:
            _call(self._hooks.pop, "a hook", 0)
        for key in tuple(self.callbacks):
            _call(self.callbacks.pop, "a graph's destroy callback", key, None)


def _call(take: Callable[..., Callable[[], object] | None], what: str, *arguments: Any) -> None:
    try:
        call_taken(take, *arguments)
    except Exception as error:
        if interrupts(error):  # also a subclass of Exception, such as an alarm
            raise
        warn_unraisable(f"{what} failed with {type(error).__name__}: {error}")
