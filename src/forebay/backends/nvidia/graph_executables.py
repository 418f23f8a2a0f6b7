"""Executable graphs of the driver: launches, and destruction where the driver may be called."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from forebay.backends.nvidia._stream import HostCall, NativeHostCall, Stream
from forebay.backends.nvidia.calls import call_into, check, driver_api
from forebay.backends.nvidia.context import PrimaryContext
from forebay.errors import ForebayError

if TYPE_CHECKING:
    from forebay.backends.nvidia.queue import CudaQueue
    from forebay.backends.nvidia.stream_capture import Part

__all__ = ["Discarded", "GraphExecutables", "Launch", "destroy_all", "destroy_discarded", "destroy_graphs"]


class Launch(NamedTuple):
    """A launch: its queue, and the tick behind it, or None if that could not be signalled."""

    queue: CudaQueue
    tick: int | None

    def is_executing(self) -> bool:
        """Return True if the launch may not be complete, as if the driver fails before the queue is closed."""
        with suppress(ForebayError):
            if self.queue.closed:
                return False
            if self.tick is None:
                return self.queue.capture is not None or not self.queue.idle()
            return self.queue.reached() < self.tick
        return True

    def precede(self, queue: CudaQueue) -> None:
        """Make later work of a queue wait for the launch."""
        if self.queue is not queue and not self.queue.closed:
            queue.make_wait(self.queue, Stream.signal(self.queue) if self.tick is None else self.tick)


@dataclass(slots=True)
class Discarded:
    """Handles to destroy: functions of the driver and their arguments."""

    handles: list[tuple[str, Any]]
    calls: Sequence[HostCall | NativeHostCall] = ()  # which the last launch may still execute
    last: Launch | None = None
    has_failed: bool = False  # one attempt to destroy the handles

    def is_in_use(self) -> bool:
        """Return True if a launch may still use the calls or the memory."""
        return self.last is not None and self.last.is_executing()


def destroy_discarded(context: PrimaryContext) -> None:
    """Destroy the graphs of a context that no object uses any more. Never raises."""
    kept: list[Discarded] = []
    while context.discarded:
        try:
            discarded: Discarded = context.discarded.popleft()
        except IndexError:  # another thread destroys them, too
            break
        if discarded.is_in_use():
            kept.append(discarded)
            continue
        try:
            while discarded.handles:
                function, handle = discarded.handles[-1]
                check(context.invoke(getattr(driver_api(), function), handle), function, context.name)
                discarded.handles.pop()
        except ForebayError:
            if not discarded.has_failed:
                discarded.has_failed = True
                kept.append(discarded)
    context.discarded.extend(kept)


def destroy_graphs(context: PrimaryContext, parts: list[Part]) -> None:
    """Destroy graphs that were not instantiated, and clear the list. Never raises."""
    handles = [("cuGraphDestroy", part) for part in parts if not callable(part)]
    parts.clear()
    if handles:
        context.discarded.append(Discarded(handles))
        destroy_discarded(context)


def destroy_all(context: PrimaryContext) -> None:
    """Destroy all graphs of a context, whose queues are closed. Never raises."""
    for each in tuple(context.graphs):
        each.discard()
    for _ in range(2):
        destroy_discarded(context)


class GraphExecutables:
    """The parts of one captured graph, instantiated.

    A destructor may run on a thread of the driver, which must not call it. So the handles are passed to the context,
    and destroyed by the next launch or capture, or when the port is closed.
    """

    def __init__(self, context: PrimaryContext, parts: list[Part], calls: Sequence[HostCall | NativeHostCall]) -> None:
        self.parts: tuple[Part, ...] = ()
        self._context = context
        self._calls = calls
        self._executables: list[Any] = []  # of each part: the driver's handle, or the function
        self._last: Launch | None = None
        context.graphs.add(self)
        for part in parts:
            if callable(part):
                self._executables.append(part)
            else:
                self._instantiate(part)
        self.parts = tuple(parts)
        parts.clear()  # this object destroys them now

    def launch(self, queue: CudaQueue) -> None:
        """Launch the graphs and call the functions, in order and after earlier launches."""
        if self._context.discarded:
            destroy_discarded(self._context)
        is_split = len(self._executables) > 1
        if is_split and self._last is not None:
            self._last.precede(queue)
        if is_split or self._calls:
            self._last = Launch(queue, None)
        for call in self._calls:
            if isinstance(call, HostCall):
                call.stream = queue
            else:
                call.report_to(queue)
        for executable in self._executables:
            if callable(executable):
                executable(queue)
            else:
                Stream.launch_graph(queue, int(executable))
        if is_split or self._calls:
            self._last = Launch(queue, Stream.signal(queue))

    def discard(self) -> None:
        """Pass the handles to the context. The graph cannot be launched any more."""
        executables, self._executables = self._executables, []
        parts, self.parts = self.parts, ()
        handles = [("cuGraphDestroy", each) for each in parts if not callable(each)]
        handles += [("cuGraphExecDestroy", each) for each in executables if not callable(each)]
        if handles:
            self._context.discarded.append(Discarded(handles, self._calls, self._last if self._calls else None))

    def __del__(self) -> None:
        self.discard()

    def _instantiate(self, part: Any) -> None:
        made: list[Any] = []
        try:
            with self._context.current() as api:
                call_into(made, api.cuGraphInstantiate, part, 0)
        finally:  # also after an interrupt
            if made and not made[0][0]:
                self._executables.append(made[0][1])
        check(made[0], "cuGraphInstantiate", self._context.name)
