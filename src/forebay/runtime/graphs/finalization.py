"""Graph finalization: callbacks and releases that run once, on `reset` or when the graph object is destroyed."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from forebay.errors import ForebayError, warn_unraisable
from forebay.runtime.graphs import annotations as graphs_annotations
from forebay.runtime.graphs.removable_hooks import HookList, HookTable, RemovableHandle

if TYPE_CHECKING:
    from forebay.runtime.streams.stream import Stream

__all__ = ["GraphFinalizer", "destroyed"]

destroyed: HookList[set[int]] = HookList()  # called with the ids of each destroyed graph


class GraphFinalizer:
    """Callbacks, objects and streams of one capture. Must not reference the graph, which would then never be freed."""

    def __init__(self, ids: set[int]) -> None:
        self.callbacks: HookTable[Callable[[], object]] = HookTable()
        self.objects: HookTable[object] = HookTable()
        self.streams: set[Stream] = set()  # the streams of the graph's replays
        self.synchronizes: bool = False  # wait for `streams` before the callbacks
        self._ids = ids
        self._process = os.getpid()
        self._done = False

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
        """Run the callbacks and release everything, once. Failures become warnings: a destructor calls this.

        In a forked child nothing is called: the graph is the parent's.
        """
        if self._done:
            return
        self._done = True
        if self._process == os.getpid():
            self._call_all()
        self.callbacks.clear()
        self.objects.clear()
        self.streams.clear()

    def _call_all(self) -> None:
        for stream in self.streams if self.synchronizes else ():
            try:
                stream.synchronize()
            except ForebayError as error:
                warn_unraisable(
                    f"{error}; the error was not reported before a graph replayed on that stream was destroyed"
                )
        graphs_annotations.discard(self._ids)
        destroyed.notify(self._ids)
        for callback in tuple(self.callbacks.values()):
            try:
                callback()
            except Exception as error:  # noqa: BLE001 -- a destructor must not raise
                warn_unraisable(f"a graph's destroy callback failed with {type(error).__name__}: {error}")
