"""The driver's capture of streams: what other libraries launch on the same streams is captured, too."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any

from forebay.backends.nvidia._memory import destroy_last, obtain
from forebay.backends.nvidia.calls import FATAL, check, driver_api, error_of
from forebay.backends.nvidia.context import PrimaryContext
from forebay.backends.nvidia.graph_executables import HeldHandles, Part, destroy_discarded
from forebay.backends.nvidia.kernels.condition import launch_set_condition
from forebay.backends.nvidia.queue import CudaQueue
from forebay.errors import DeviceError, ForebayError, warn_unraisable
from forebay.spi import Queue
from forebay.vendor import CaptureRecorder, Disposable, cuda_errors

__all__ = ["StreamCapture"]

# Errors after which the stream is not captured any more.
_ENDED = (cuda_errors.CAPTURE_BROKEN, cuda_errors.CAPTURE_UNJOINED, cuda_errors.ILLEGAL_STATE)


class _BodyQueue(CudaQueue):
    """A stream that is captured into the body of a conditional node, in place of the queue that captures the body."""

    condition: int  # the driver's handle

    @property
    def capture(self) -> CaptureRecorder[CudaQueue] | None:
        return self.recording


class StreamCapture(Disposable):
    """A capture, which begins and ends on one stream.

    Functions between nodes split it: the driver's capture ends before the function and begins again after it, so that
    everything before the function precedes everything after it.
    """

    def __init__(self, first: CudaQueue, mode: str) -> None:
        self.parts: list[Part] = []
        self._first = first
        self.context: PrimaryContext = first.context
        self.held: HeldHandles = HeldHandles(first.context, self)  # the graphs of the parts
        self._mode: Any = getattr(driver_api().CUstreamCaptureMode, f"CU_STREAM_CAPTURE_MODE_{mode.upper()}")
        self._fronts: dict[int, frozenset[int]] = {}  # by stream: the nodes after the last operation of forebay
        self._ticks: dict[int, Any] = {}  # event of each tick of the part that is captured now
        self._events: list[tuple[str, Any]] = []  # of all parts
        self._bodies: dict[int, list[_BodyQueue]] = {}  # by stream: the open bodies
        self._active = False

    def begin(self) -> None:
        """Begin the driver's capture."""
        try:
            self._begin()
        except BaseException:  # such as an interrupt after the driver's capture began
            self.end()
            raise

    def target(self, queue: CudaQueue) -> CudaQueue:
        """Return the queue on which the work of a queue is captured: another one inside the body of a condition."""
        bodies = self._bodies.get(queue.handle)
        return bodies[-1] if bodies else queue

    def is_captured(self, queue: CudaQueue) -> bool:
        """Return True if a stream has joined the capture."""
        return self.target(queue).handle in self._fronts

    def begin_body(self, queue: CudaQueue, what: str, address: int) -> None:
        """Begin the body of a conditional node, "if" or "while", whose condition is a byte."""
        api, outer = driver_api(), self.target(queue)
        graph, _ = self._nodes_before(outer)
        context = api.CUcontext(self.context.handle)
        condition = self._call("cuGraphConditionalHandleCreate", graph, context, 0, 0)
        launch_set_condition(outer, int(condition), address)
        params = api.CUgraphNodeParams()
        params.type = api.CUgraphNodeType.CU_GRAPH_NODE_TYPE_CONDITIONAL
        params.conditional.handle, params.conditional.ctx, params.conditional.size = condition, context, 1
        params.conditional.type = getattr(api.CUgraphConditionalNodeType, f"CU_GRAPH_COND_TYPE_{what.upper()}")
        nodes = [api.CUgraphNode(node) for node in self._nodes_before(outer)[1]]
        node = self._call("cuGraphAddNode", graph, nodes, None, len(nodes), params)
        self._continue_after(outer, node)
        self.operated(queue)
        body = _BodyQueue(queue.owner, self.context, made=self._bodies.setdefault(queue.handle, []))
        body.condition, body.recording = int(condition), queue.recording
        bodies = params.conditional.phGraph_out
        self._call("cuStreamBeginCaptureToGraph", body.handle, bodies[0], [], None, 0, self._mode)

    def update_condition(self, queue: CudaQueue, address: int) -> None:
        """Set the condition of the innermost body again."""
        body = self._bodies[queue.handle][-1]
        launch_set_condition(body, body.condition, address)

    def end_body(self, queue: CudaQueue) -> None:
        """End the innermost body of a queue."""
        self._end_body(self._bodies[queue.handle])

    def _end_body(self, bodies: list[_BodyQueue]) -> None:
        """End the last body. After an interrupt, `end` ends it again."""
        body = bodies[-1]
        try:
            self._call("cuStreamEndCapture", body.handle)
        except ForebayError:
            self._destroy_body(bodies, body)
            raise
        self._destroy_body(bodies, body)

    def _destroy_body(self, bodies: list[_BodyQueue], body: _BodyQueue) -> None:
        self._fronts.pop(body.handle, None)
        body.destroy_events()
        body.destroy()
        vars(body).pop("recording", None)
        bodies.pop()

    def has_foreign_work(self, queue: CudaQueue) -> bool:
        """Return True if something else than forebay has queued work on a captured stream since `operated`."""
        queue = self.target(queue)
        known = self._fronts.get(queue.handle)
        return known is not None and self._nodes_before(queue)[1] != known

    def operated(self, queue: CudaQueue) -> None:
        """Note that forebay has queued work on a captured stream."""
        queue = self.target(queue)
        self._fronts[queue.handle] = self._nodes_before(queue)[1]

    def signal(self, queue: CudaQueue, tick: int) -> None:
        """Record an event behind the captured work of a stream, for `wait`."""
        self._ticks[tick] = self._record(self.target(queue))

    def wait(self, queue: CudaQueue, tick: int) -> None:
        """Make the later work of a stream, which joins the capture, depend on a tick."""
        queue = self.target(queue)
        event = self._ticks.get(tick)
        if event is None and queue.handle in self._fronts:
            return  # a function of the graph came between: everything before it precedes
        self._wait(queue, self._record(self._first) if event is None else event)
        self.operated(queue)

    def add_graph(self, queue: CudaQueue, graph: Any) -> None:
        """Add a copy of a graph behind the captured work of a stream."""
        queue = self.target(queue)
        captured, before = self._nodes_before(queue)
        nodes = [driver_api().CUgraphNode(node) for node in before]
        node = self._call("cuGraphAddChildGraphNode", captured, nodes, len(nodes), graph)
        self._continue_after(queue, node)
        self.operated(queue)

    def split(self, function: Callable[[Queue], object], members: Iterable[CudaQueue]) -> None:
        """Let each launch call a function between the work captured so far and all later work."""
        others = [queue for queue in members if queue is not self._first and queue.handle in self._fronts]
        for queue in others:
            self._wait(self._first, self._record(queue))
        self._end()
        self.parts.append(function)
        self._begin()
        for queue in others:
            self._wait(queue, self._record(self._first))
            self.operated(queue)

    def end(self) -> DeviceError | None:
        """End the capture, and return the driver's error, if any. Raises no error of the driver."""
        error: DeviceError | None = None
        for bodies in self._bodies.values():
            while bodies:
                with suppress(ForebayError):
                    self._end_body(bodies)
        while self._active and not self.context.forked():
            try:
                self._end()
            except DeviceError as raised:
                if error is not None or raised.code == cuda_errors.CAPTURE_OF_ANOTHER_THREAD:
                    self._active = False
                    if raised.code not in FATAL:  # `error` reports the lost device
                        warn_unraisable(f"the stream of queue {self._first.handle:#x} is still captured: {raised}")
                error = raised
        with suppress(ForebayError), self.context.current():
            while (code := destroy_last(self._events)) is not None:
                if code:  # the device is lost
                    self._events.pop()
        return error

    def destroy(self) -> None:
        """Destroy the captured graphs. Raises no error of the driver."""
        self.parts.clear()
        self.held.discard()
        destroy_discarded(self.context)

    def _dispose(self) -> None:
        if (context := vars(self).get("context")) is not None:  # else `__init__` was interrupted
            context.has_discarded = True

    def _begin(self) -> None:
        self._active = True  # before an interrupt can come
        try:
            self._call("cuStreamBeginCapture", self._first.handle, self._mode)
        except DeviceError:
            self._active = False
            raise
        self._fronts = {self._first.handle: frozenset()}

    def _end(self) -> None:
        with self.context.current() as api:
            ended = obtain(self.held.handles, "cuGraphDestroy", api.cuStreamEndCapture, self._first.handle)
        code = int(ended[0])  # after an interrupt before this line, a second attempt fails with one of `_ENDED`
        if code == 0 or code in _ENDED:
            self._active = False
            self._fronts = {}
            self._ticks = {}
        if code:
            raise error_of(code, "cuStreamEndCapture", self._first.name)
        self.parts.append(ended[1])

    def _nodes_before(self, queue: CudaQueue) -> tuple[Any, frozenset[int]]:
        """Return the graph of the capture, and the nodes on which the next operation of a stream depends."""
        status, _, graph, nodes, _, count = self._call("cuStreamGetCaptureInfo", queue.handle)
        if status != driver_api().CUstreamCaptureStatus.CU_STREAM_CAPTURE_STATUS_ACTIVE:
            raise error_of(cuda_errors.CAPTURE_BROKEN, "cuStreamGetCaptureInfo", queue.name)
        return graph, frozenset(int(node) for node in nodes[:count])

    def _continue_after(self, queue: CudaQueue, node: Any) -> None:
        """Make the next operation of a stream depend on one node only."""
        flag = driver_api().CUstreamUpdateCaptureDependencies_flags.CU_STREAM_SET_CAPTURE_DEPENDENCIES
        self._call("cuStreamUpdateCaptureDependencies", queue.handle, [node], None, 1, flag)

    def _record(self, queue: CudaQueue) -> Any:
        with self.context.current() as api:
            flags = api.CUevent_flags.CU_EVENT_DISABLE_TIMING
            made = obtain(self._events, "cuEventDestroy", api.cuEventCreate, flags)
        event = check(made, "cuEventCreate", self._first.name)
        self._call("cuEventRecord", event, queue.handle)
        return event

    def _wait(self, queue: CudaQueue, event: Any) -> None:
        self._call("cuStreamWaitEvent", queue.handle, event, 0)

    def _call(self, function: str, *arguments: Any) -> Any:
        return check(self.context.invoke(getattr(driver_api(), function), *arguments), function, self._first.name)
