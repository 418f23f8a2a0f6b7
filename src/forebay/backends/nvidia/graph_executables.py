"""Executable graphs of the driver: launches, and destruction where the driver may be called.

# Note [Destructors call no driver]
The last reference to a graph may be dropped by a function of the host, which runs on a thread of the driver: a call of
the driver there is an error, or never returns. It may also be dropped while another thread captures, where the call
would invalidate the capture. So destructors of graphs only set a flag of the context (`has_discarded`), and the context
has the handles of all graphs (`held`): those without an owner are destroyed by the next launch or capture, or when the
port is closed, and only when their last launch has ended. A handle whose destruction fails is tried once more.
Rejected: asking whether the current thread is the driver's, which no function tells.
Test: tests/backends/nvidia/test_capture.py::test_graph_deleted_by_a_host_function_calls_no_driver
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from forebay.backends.nvidia._memory import destroy_last, obtain
from forebay.backends.nvidia._stream import HostCall, NativeHostCall, Stream
from forebay.backends.nvidia.calls import check
from forebay.backends.nvidia.context import PrimaryContext
from forebay.errors import ForebayError
from forebay.spi import Queue
from forebay.vendor import Disposable

if TYPE_CHECKING:
    from forebay.backends.nvidia.queue import CudaQueue

__all__ = ["GraphExecutables", "HeldHandles", "Launch", "Part", "destroy_all", "destroy_discarded"]

Part = Any | Callable[[Queue], object]  # of a captured graph: a graph of the driver, or a function that a launch calls


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


class HeldHandles:
    """Handles that an object owns, such as graphs, with the functions of the driver that destroy them.

    The context keeps them until they are destroyed, so that no interrupt of a destructor loses one. A destructor may
    run on a thread of the driver, which must not call it: it only tells the context that an owner is gone.
    """

    __slots__ = ("_owner", "calls", "handles", "has_failed", "last")

    def __init__(self, context: PrimaryContext, owner: object) -> None:
        self.handles: list[tuple[str, Any]] = []
        self.calls: Sequence[HostCall | NativeHostCall] = ()  # which the last launch may still execute
        self.last: Launch | None = None  # that uses the calls or the memory
        self.has_failed: bool = False  # one attempt to destroy the handles
        self._owner: weakref.ref[Any] | None = weakref.ref(owner)
        context.held.add(self)

    def pass_to(self, owner: object) -> None:
        """Make another object the owner."""
        self._owner = weakref.ref(owner)

    def discard(self) -> None:
        """Let the owner go; it does not use the handles any more."""
        self._owner = None

    def is_owned(self) -> bool:
        """Return True if the owner still exists."""
        owner = self._owner
        return owner is not None and owner() is not None

    def is_in_use(self) -> bool:
        """Return True if a launch may still use the calls or the memory."""
        return self.last is not None and self.last.is_executing()


def destroy_discarded(context: PrimaryContext) -> None:
    """Destroy the handles of a context that no object owns any more. Raises no error of the driver."""
    context.has_discarded = False
    try:
        for held in tuple(context.held):
            if held.is_owned():
                continue
            if held.is_in_use() or not _destroy(context, held):
                context.has_discarded = True
            else:
                context.held.discard(held)
    except BaseException:  # of a signal handler
        context.has_discarded = True
        raise


def _destroy(context: PrimaryContext, held: HeldHandles) -> bool:
    """Destroy handles. Return False if that is to be attempted again."""
    try:
        with context.current():
            while (code := destroy_last(held.handles)) == 0:
                pass
    except ForebayError:  # the context cannot be current
        code = 1
    is_second, held.has_failed = held.has_failed, bool(code)
    return code is None or is_second


def destroy_all(context: PrimaryContext) -> None:
    """Destroy all graphs of a context, whose queues are closed."""
    for held in tuple(context.held):
        held.discard()
    for _ in range(2):
        destroy_discarded(context)


class GraphExecutables(Disposable):
    """The parts of one captured graph, instantiated.

    The handles are destroyed by the next launch or capture after this object, or when the port is closed.
    """

    def __init__(
        self,
        context: PrimaryContext,
        parts: Sequence[Part],
        held: HeldHandles,
        calls: Sequence[HostCall | NativeHostCall],
    ) -> None:
        self.parts: tuple[Part, ...] = tuple(parts)
        self._context = context
        self._calls = calls
        self._held = held  # has the graphs of the parts, then the executable ones
        self._executables: list[Any] = []  # of each part: the driver's handle, or the function
        held.calls = calls
        held.pass_to(self)
        for part in parts:
            self._executables.append(part if callable(part) else self._instantiate(part))

    def launch(self, queue: CudaQueue) -> None:
        """Launch the graphs and call the functions, in order and after earlier launches."""
        if self._context.has_discarded:
            destroy_discarded(self._context)
        is_split = len(self._executables) > 1
        if is_split and self._held.last is not None:
            self._held.last.precede(queue)
        if is_split or self._calls:
            self._held.last = Launch(queue, None)
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
            self._held.last = Launch(queue, Stream.signal(queue))

    def _dispose(self) -> None:
        if (context := vars(self).get("_context")) is not None:  # else `__init__` was interrupted
            context.has_discarded = True

    def _instantiate(self, part: Any) -> Any:
        with self._context.current() as api:
            made = obtain(self._held.handles, "cuGraphExecDestroy", api.cuGraphInstantiate, part, 0)
        return check(made, "cuGraphInstantiate", self._context.name)
