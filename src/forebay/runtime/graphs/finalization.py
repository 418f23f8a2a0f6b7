"""What is done, and what is let go of, when a graph ends: once, by `reset` or by the end of the object."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from forebay.errors import ForebayError, complain
from forebay.runtime.graphs import annotations as graphs_annotations
from forebay.runtime.graphs.removable_hooks import Hooks, RemovableHandle, Table

if TYPE_CHECKING:
    from forebay.runtime.streams.stream import Stream

__all__ = ["GraphEnd", "destroyed"]

destroyed: Hooks[set[int]] = Hooks()  # told the numbers of each graph that was


class GraphEnd:
    """Of one capture. It does not know the graph, or the graph could never end."""

    def __init__(self, ids: set[int]) -> None:
        self.callbacks: Table[Callable[[], object]] = Table()
        self.objects: Table[object] = Table()
        self.streams: set[Stream] = set()  # where it was replayed
        self.waits = False  # for them, first
        self._ids = ids
        self._process = os.getpid()
        self._done = False

    def call(self, callback: Callable[[], object], *, waits: bool) -> RemovableHandle:
        return self._keep(self.callbacks, callback, waits)

    def retain(self, kept: object, *, waits: bool) -> RemovableHandle:
        return self._keep(self.objects, kept, waits)

    def _keep(self, table: Table[Any], kept: object, waits: bool) -> RemovableHandle:
        self.waits |= waits
        handle = RemovableHandle(table)
        table[handle.id] = kept
        return handle

    def come(self) -> None:
        """A destructor calls it: what fails becomes a warning. In a forked child it is not ours."""
        if self._done:
            return
        self._done = True
        if self._process == os.getpid():
            self._tell()
        self.callbacks.clear()
        self.objects.clear()
        self.streams.clear()

    def _tell(self) -> None:
        for stream in self.streams if self.waits else ():
            try:
                stream.synchronize()
            except ForebayError as error:
                complain(f"{error}; nobody had waited for it when a graph that was replayed there ended")
        graphs_annotations.forget(self._ids)
        destroyed.tell(self._ids)
        for callback in tuple(self.callbacks.values()):
            try:
                callback()
            except Exception as error:  # noqa: BLE001 -- a destructor has nobody to raise to
                complain(f"a callback at a graph's end failed with {type(error).__name__}: {error}")
