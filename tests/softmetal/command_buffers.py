"""Command buffers: what is encoded, their states, and their execution on the queue's thread."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from . import constants as k
from .clocks import Clock, implied, merge, observe, observed, publish
from .control import WAIT_LIMIT, control
from .counters import MTLBlitPassDescriptor, MTLComputePassDescriptor, samples_of
from .events import Dispatcher, MTLEvent, call_block
from .faults import GPUFault
from .foundation import NSError
from .objects import Descriptor, Labeled, NSObject, autoreleased, instance, properties, unsigned, wait_uninterrupted
from .passes import PassRecord

DOMAIN = "MTLCommandBufferErrorDomain"
_dispatcher = Dispatcher("com.Metal.CompletionQueueDispatch")


@properties(errorOptions=0, retainedReferences=True, logState=None)
class MTLCommandBufferDescriptor(Descriptor):
    """The descriptor of a command buffer."""

    __slots__ = ()


class MTLCommandBufferEncoderInfo(NSObject):
    """The progress of an encoder's pass in a command buffer that ended with an error."""

    __slots__ = ("_label", "_state")

    def __init__(self, label: str | None, state: int) -> None:
        super().__init__()
        self._label, self._state = label, state

    def label(self) -> str:
        return self._label or ""

    def errorState(self) -> int:
        return self._state

    def debugSignposts(self) -> tuple[()]:
        return ()


class CommandRecord:
    """The part of a command buffer that its queue executes."""

    def __init__(self, error_options: int) -> None:
        self.error_options = error_options
        self.steps: list[Callable[[Any], None]] = []
        self.committed = False
        self.status = k.MTLCommandBufferStatusNotEnqueued
        self.error: NSError | None = None
        self.times = [0.0, 0.0, 0.0, 0.0]  # kernel start and end, GPU start and end
        self.scheduled: list[Callable[[Any], None]] = []
        self.completed: list[Callable[[Any], None]] = []
        self.changed = threading.Condition()
        self.scheduled_done = self.completed_done = False
        self.buffer: Any = None  # the queue retains the command buffer until it has completed
        self.retained: list[Any] = []
        self.handler_thread: int | None = None
        self.known: Clock = {}  # what the CPU had observed at the commit
        self.ended: Clock = {}  # what the end of this command buffer implies

    def become(self, status: int) -> None:
        with self.changed:
            self.status = status
            self.changed.notify_all()

    def execute(self, engine: Any) -> None:
        merge(engine.known, self.known)
        self.times[0] = control.clock()
        control.pass_gate()
        self.times[1] = control.clock()
        self.become(k.MTLCommandBufferStatusScheduled)
        _dispatcher.post(self._call_scheduled)
        self.times[2] = control.clock()
        executed = 0
        try:
            if (failure := control.buffer_error()) is not None:
                raise GPUFault(failure.code, failure.text)  # noqa: TRY301 - it ends as other faults do
            for step in self.steps:
                step(engine)
                executed += 1
        except GPUFault as fault:
            self.error = NSError(DOMAIN, fault.code, str(fault), self._info(executed))
        except Exception as error:  # noqa: BLE001 - a rule was broken: the record of it is in control.violations
            text = f"{type(error).__name__}: {error}"
            self.error = NSError(DOMAIN, k.MTLCommandBufferErrorInternal, text, self._info(executed))
        self.times[3] = control.clock()
        self.ended = {**engine.known, engine.number: engine.passes}
        self.steps.clear()
        self.retained.clear()

    def _info(self, executed: int) -> dict[str, Any]:
        """Return what an error says about the encoders."""
        if not self.error_options & k.MTLCommandBufferErrorOptionEncoderExecutionStatus:
            return {}
        found: list[MTLCommandBufferEncoderInfo] = []
        state = k.MTLCommandEncoderErrorStateFaulted
        for place, step in enumerate(self.steps):
            if not isinstance(step, PassRecord):
                continue
            if place < executed:
                found.append(MTLCommandBufferEncoderInfo(step.label, k.MTLCommandEncoderErrorStateCompleted))
            else:
                found.append(MTLCommandBufferEncoderInfo(step.label, state))
                state = k.MTLCommandEncoderErrorStatePending
        return {"MTLCommandBufferEncoderInfoErrorKey": tuple(found)}

    def finish(self) -> None:
        failed = self.error is not None
        self.become(k.MTLCommandBufferStatusError if failed else k.MTLCommandBufferStatusCompleted)
        _dispatcher.post(self._call_completed)

    def _call_scheduled(self) -> None:
        self._call(self.scheduled)
        with self.changed:
            self.scheduled_done = True
            self.changed.notify_all()

    def _call_completed(self) -> None:
        if self.completed:
            observe(self.ended)
        self._call(self.completed)
        self.buffer = None
        with self.changed:
            self.completed_done = True
            self.changed.notify_all()

    def _call(self, handlers: list[Callable[[Any], None]]) -> None:
        self.handler_thread = threading.get_ident()
        for handler in handlers:
            call_block(handler, self.buffer)
        handlers.clear()
        self.handler_thread = None


class MTLCommandBuffer(Labeled):
    """A list of passes and events."""

    __slots__ = ("_encoder", "_error_options", "_is_retained", "_queue", "_record")

    def __init__(self, queue: Any, *, retained: bool, error_options: int) -> None:
        super().__init__()
        self._queue = queue
        self._is_retained = retained
        self._error_options = error_options
        self._record = CommandRecord(error_options)
        self._encoder: Any = None  # the record of the open encoder

    def _die(self) -> None:
        if not self._record.committed:
            self._queue._engine.abandon(self._record)

    def device(self) -> Any:
        return self._queue._device

    def commandQueue(self) -> Any:
        return self._queue

    def retainedReferences(self) -> bool:
        return self._is_retained

    def errorOptions(self) -> int:
        return self._error_options

    def status(self) -> int:
        status = self._record.status
        if status >= k.MTLCommandBufferStatusCompleted:
            observe(self._record.ended)
        return status

    def error(self) -> NSError | None:
        done = self._record.status >= k.MTLCommandBufferStatusCompleted
        return self._record.error if done else None

    def kernelStartTime(self) -> float:
        return self._record.times[0] if self._record.status >= k.MTLCommandBufferStatusScheduled else 0.0

    def kernelEndTime(self) -> float:
        return self._record.times[1] if self._record.status >= k.MTLCommandBufferStatusScheduled else 0.0

    def GPUStartTime(self) -> float:
        return self._record.times[2] if self._record.status >= k.MTLCommandBufferStatusCompleted else 0.0

    def GPUEndTime(self) -> float:
        return self._record.times[3] if self._record.status >= k.MTLCommandBufferStatusCompleted else 0.0

    def logs(self) -> tuple[()]:
        return ()

    def addScheduledHandler_(self, handler: Callable[[Any], None]) -> None:
        self._handlers(handler, self._record.scheduled)

    def addCompletedHandler_(self, handler: Callable[[Any], None]) -> None:
        self._handlers(handler, self._record.completed)

    def _handlers(self, handler: Callable[[Any], None], handlers: list[Any]) -> None:
        if handler is None:
            control.violated("nil", "the handler is nil")
        if not callable(handler):
            raise TypeError("a handler is callable")
        if self._record.committed:
            control.violated("handler", "a handler is added to a committed command buffer")
        handlers.append(handler)

    def enqueue(self) -> None:
        if self._record.committed:
            control.violated("enqueue", "enqueue() after commit()")
        self._queue._engine.enqueue(self._record)
        self._record.become(k.MTLCommandBufferStatusEnqueued)

    def commit(self) -> None:
        record = self._record
        if record.committed:
            control.violated("commit-once", "commit() of a command buffer that was committed")
        if self._encoder is not None:
            control.violated("open-encoder", f"commit() while a {self._encoder.kind} encoder is open")
        record.buffer = self
        record.known = observed()
        record.become(k.MTLCommandBufferStatusCommitted)
        self._queue._engine.commit(record)

    def waitUntilScheduled(self) -> None:
        self._wait(lambda: self._record.scheduled_done, "waitUntilScheduled")

    def waitUntilCompleted(self) -> None:
        self._wait(lambda: self._record.completed_done, "waitUntilCompleted")
        observe(self._record.ended)

    def _wait(self, ready: Callable[[], bool], selector: str) -> None:
        record = self._record
        if not record.committed:
            control.violated("wait-uncommitted", f"{selector}() of a command buffer that was not committed")
        if record.handler_thread == threading.get_ident():
            control.violated("wait-in-handler", f"{selector}() in a handler of the command buffer")
        with record.changed:
            if not wait_uninterrupted(record.changed, ready, WAIT_LIMIT):
                raise TimeoutError(f"{selector}(): the command buffer did not complete in {WAIT_LIMIT} s")

    def encodeSignalEvent_value_(self, event: Any, value: int) -> None:
        state, value = self._event(event, value)
        self._record.steps.append(lambda engine: _signal(engine, state, value))
        self._retain(event)

    def encodeWaitForEvent_value_(self, event: Any, value: int) -> None:
        state, value = self._event(event, value)
        self._record.steps.append(lambda engine: _wait_for(engine, state, value))
        self._retain(event)

    def _event(self, event: Any, value: int) -> tuple[Any, int]:
        instance(event, MTLEvent, "event")
        self._encodable("an event")
        if type(event) is MTLEvent and event._device is not self._queue._device:
            control.violated("device", "the event belongs to another device")
        return event._state, unsigned(value, "value")

    def blitCommandEncoder(self) -> Any:
        from .blits import MTLBlitCommandEncoder

        self._encodable("a blit encoder")
        return autoreleased(MTLBlitCommandEncoder(self), "blitCommandEncoder")

    def blitCommandEncoderWithDescriptor_(self, descriptor: Any) -> Any:
        from .blits import MTLBlitCommandEncoder

        self._encodable("a blit encoder")
        encoder = MTLBlitCommandEncoder(self)
        encoder._pass.samples = samples_of(encoder, instance(descriptor, MTLBlitPassDescriptor, "descriptor"))
        return autoreleased(encoder, "blitCommandEncoderWithDescriptor_")

    def computeCommandEncoderWithDescriptor_(self, descriptor: Any) -> Any:
        from .compute import MTLComputeCommandEncoder

        values = instance(descriptor, MTLComputePassDescriptor, "descriptor")._values
        self._encodable("a compute encoder")
        encoder = MTLComputeCommandEncoder(self, values.get("dispatchType", k.MTLDispatchTypeSerial))
        encoder._pass.samples = samples_of(encoder, descriptor)
        return autoreleased(encoder, "computeCommandEncoderWithDescriptor_")

    def computeCommandEncoder(self) -> Any:
        return self._compute("computeCommandEncoder", k.MTLDispatchTypeSerial)

    def computeCommandEncoderWithDispatchType_(self, dispatch_type: int) -> Any:
        return self._compute("computeCommandEncoderWithDispatchType_", unsigned(dispatch_type, "dispatchType"))

    def _compute(self, selector: str, dispatch_type: int) -> Any:
        from .compute import MTLComputeCommandEncoder

        self._encodable("a compute encoder")
        return autoreleased(MTLComputeCommandEncoder(self, dispatch_type), selector)

    def pushDebugGroup_(self, name: str) -> None:
        """Metal's tools show the name."""

    def popDebugGroup(self) -> None:
        """End a group."""

    def _encodable(self, what: str) -> None:
        if self._record.committed:
            control.violated("committed", f"{what} is encoded into a committed command buffer")
        if self._encoder is not None:
            key = "event-open" if what == "an event" else "one-encoder"
            control.violated(key, f"{what} is encoded while a {self._encoder.kind} encoder is open")

    def _retain(self, resource: Any) -> None:
        if self._is_retained:
            self._record.retained.append(resource)


def _signal(engine: Any, state: Any, value: int) -> None:
    if value < state.value:
        control.note_violation("event-grows", f"the GPU signals {value}, but the value is {state.value}")
    publish(engine, state, value)
    state.reach(value)


def _wait_for(engine: Any, state: Any, value: int) -> None:
    with state.changed:
        if not state.changed.wait_for(lambda: state.value >= value, control.event_timeout):
            raise GPUFault(k.MTLCommandBufferErrorTimeout)
    merge(engine.known, implied(state, value))
