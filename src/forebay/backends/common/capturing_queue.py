"""Queues that can be captured: the methods of the ability `Captures`, and the class of a queue during a capture.

# Note [Calls when a capture ends]
Threads may share a stream. One has looked up a method of the class of captures when another ends the capture: the queue
is of its own class again, `recording` is deleted, and `super()` refuses it. The capture is therefore read once, and
without one the queue's own method is called by its class. A recorder refuses work after its end, under the lock under
which it ends, as a complete graph must not get more nodes. Rejected: a lock for each call of a queue, which all calls
outside captures would pay for.
Test: tests/backends/common/test_capturing_queue.py::test_call_that_began_in_a_capture_is_executed_after_its_end
"""

from __future__ import annotations

from collections.abc import Callable, MutableMapping
from functools import cache, partial, wraps
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

from forebay.backends.common import recorded_work
from forebay.backends.common.arguments import integer_of
from forebay.backends.common.capture_recorder import CapturedMark, CaptureRecorder, wait_in_capture
from forebay.backends.common.cuda_errors import CAPTURED_EVENT, ILLEGAL_STATE
from forebay.errors import DeviceError
from forebay.spi import Draw, StridedCopy

__all__ = ["CaptureMixin", "capturing_class"]

_OPTIONAL = ("draw", "copy_strided", "call", "call_native", "mark")  # methods that a queue may lack

_R = TypeVar("_R", bound=CaptureRecorder[Any])


class CaptureMixin(Generic[_R]):
    """Mixin that gives a queue the methods of `Captures`.

    The queue class supplies `owner`, its port, whose `new_graph(queue, mode, queues)` makes a graph of the backend's
    class; `same_kind(other)`, which returns another queue of this backend and raises TypeError for anything else;
    `driver_error(code, call)`, which makes the error for CUDA's error code in this kind's words; and `check_usable()`.
    """

    __slots__ = ()

    if TYPE_CHECKING:  # supplied by the queue class, `recording` only if it has slots
        owner: Any
        recording: _R  # set only during a capture; see `capturing_class`

        def same_kind(self, other: object) -> Self: ...
        def driver_error(self, code: int, call: str) -> DeviceError: ...

    @property
    def capture(self) -> _R | None:
        """The graph that captures the queue's work, or None."""
        return None

    def new_graph(self, mode: str, queues: MutableMapping[int, int]) -> _R:
        """Return a graph of the port's class, which begins to capture this queue.

        Parameters
        ----------
        mode : str
            "global", "thread_local" or "relaxed".
        queues : mutable mapping of int to int
            Mapping to use as the `queues` of the graph.
        """
        made: _R = self.owner.new_graph(self, mode, queues)
        return made

    def enter_capture(self, recording: _R) -> None:
        """Let a graph capture the work from now on; `CaptureRecorder.attach` calls this.

        Parameters
        ----------
        recording : CaptureRecorder
            The graph.
        """
        executing: Any = self.__class__
        capturing = capturing_class(executing)
        self.recording = recording  # type: ignore[misc]  # a slot of the queue class, or not slotted
        self.__class__ = capturing  # no call comes between both, after which a signal handler could raise

    def exit_capture(self) -> None:
        """Execute the work again from now on; `CaptureRecorder.detach` calls this."""
        capturing: Any = self.__class__
        self.__class__ = capturing.__base__
        del self.recording

    def check_not_captured(self, tick: int) -> None:
        """Check that a tick is not one of a capture, for which the host cannot wait; `wait` calls this.

        Parameters
        ----------
        tick : int
            The tick.

        Raises
        ------
        DeviceError
            If the tick belongs to a capture: code 900 if the queue is capturing, else 907.
        """
        if tick < 0:
            recording = self.capture
            raise self.driver_error(CAPTURED_EVENT, "wait") if recording is None else recording.forbidden(self, "wait")

    def begin_capture(self, mode: str = "global", queues: MutableMapping[int, int] | None = None) -> _R:
        """Begin to capture; see `spi.Captures.begin_capture`.

        Parameters
        ----------
        mode : str, default "global"
            "global", "thread_local" or "relaxed".
        queues : mutable mapping of int to int, optional
            Mapping to use as the `queues` of the graph.

        Raises
        ------
        DeviceError
            If the queue is capturing already: code 401.
        """
        if self.capture is not None:
            raise self.driver_error(ILLEGAL_STATE, "begin_capture")
        return self.new_graph(mode, {} if queues is None else queues)

    def end_capture(self) -> _R:
        """End the capture; see `spi.Captures.end_capture`.

        Raises
        ------
        DeviceError
            If the queue is not capturing, code 401, or the capture is invalid.
        """
        if (recording := self.capture) is None:
            raise self.driver_error(ILLEGAL_STATE, "end_capture")
        recording.end(self)
        return recording

    def break_capture(self) -> None:
        """Invalidate the capture, if any."""
        if (recording := self.capture) is not None:
            recording.invalidate()

    def abandon_capture(self) -> None:
        """Discard the capture, if any."""
        if (recording := self.capture) is not None:
            recording.invalidate()
            recording.detach_all()


def _captured(queue_class: type[Any], method: Callable[..., Any]) -> Callable[..., Any]:
    """Return a method that gives the capture to `method`, or executes the call if another thread ended the capture."""

    @wraps(method)
    def call(self: Any, *arguments: Any, **options: Any) -> Any:
        if (recording := self.capture) is None:
            return getattr(queue_class, method.__name__)(self, *arguments, **options)
        return method(self, recording, *arguments, **options)

    return call


@cache
def capturing_class(queue_class: type[Any]) -> type[Any]:
    """Return the class that queues of a class have during a capture, so that others need not test for one.

    Its base is the class itself and not a mixin beside it: Python permits the assignment of `__class__` only between
    classes of one layout. Ticks from before the capture can still be queried and waited for.
    """
    captured = partial(_captured, queue_class)

    class CapturingQueue(queue_class):  # type: ignore[misc]  # the class is a parameter
        __slots__ = ()

        recording: CaptureRecorder[Any]

        @property
        def capture(self) -> CaptureRecorder[Any] | None:
            return getattr(self, "recording", None)  # Note [Calls when a capture ends]

        @captured
        def copy(self, recording: CaptureRecorder[Any], dst: int, src: int, nbytes: int) -> None:
            recording.record(self, "copy", recorded_work.copy(dst, src, nbytes))

        @captured
        def fill(self, recording: CaptureRecorder[Any], dst: int, byte: int, nbytes: int) -> None:
            recording.record(self, "fill", recorded_work.fill(dst, byte, nbytes))

        @captured
        def draw(self, recording: CaptureRecorder[Any], draw: Draw) -> None:
            recording.record(self, "draw", recorded_work.draw(draw))

        @captured
        def copy_strided(self, recording: CaptureRecorder[Any], copy: StridedCopy) -> None:
            recording.record(self, "strided", recorded_work.copy_strided(copy))

        @captured
        def call(self, recording: CaptureRecorder[Any], function: Callable[[], object]) -> None:
            recording.record(self, "call", recorded_work.call(function))

        @captured
        def call_native(self, recording: CaptureRecorder[Any], function: int, argument: int) -> None:
            recording.record(self, "native", recorded_work.native(function, argument))

        @captured
        def signal(self, recording: CaptureRecorder[Any]) -> int:
            return recording.signal(self)

        @captured
        def mark(self, recording: CaptureRecorder[Any]) -> CapturedMark:
            return CapturedMark(recording.signal(self))

        @captured
        def idle(self, recording: CaptureRecorder[Any]) -> bool:
            raise recording.forbidden(self, "idle")

        @captured
        def wait(self, _: CaptureRecorder[Any], tick: int) -> None:
            self.check_not_captured(integer_of(tick, "tick"))
            queue_class.wait(self, tick)

        @captured
        def wait_for(self, _: CaptureRecorder[Any], other: object, tick: int) -> None:
            if not wait_in_capture(self, self.same_kind(other), integer_of(tick, "tick")):
                queue_class.wait_for(self, other, tick)

        def close(self, timeout: float | None = None) -> bool:
            self.abandon_capture()
            return bool(self.close(timeout))  # abandon_capture() has restored the class

    for name in _OPTIONAL:
        if not hasattr(queue_class, name):
            delattr(CapturingQueue, name)
    CapturingQueue.__name__ = CapturingQueue.__qualname__ = f"Capturing{queue_class.__name__}"
    return CapturingQueue
