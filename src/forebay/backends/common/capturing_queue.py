"""Queues that can be captured: the methods of the ability `Captures`, and the class of a queue during a capture."""

from __future__ import annotations

from collections.abc import Callable, MutableMapping
from functools import cache
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


@cache
def capturing_class(queue_class: type[Any]) -> type[Any]:
    """Return the class that queues of a class have during a capture, so that others need not test for one.

    Its base is the class itself and not a mixin beside it: Python permits the assignment of `__class__` only between
    classes of one layout. Ticks from before the capture can still be queried and waited for.
    """

    class CapturingQueue(queue_class):  # type: ignore[misc]  # the class is a parameter
        __slots__ = ()

        recording: CaptureRecorder[Any]

        @property
        def capture(self) -> CaptureRecorder[Any]:
            return self.recording

        def copy(self, dst: int, src: int, nbytes: int) -> None:
            self.recording.record(self, "copy", recorded_work.copy(dst, src, nbytes))

        def fill(self, dst: int, byte: int, nbytes: int) -> None:
            self.recording.record(self, "fill", recorded_work.fill(dst, byte, nbytes))

        def draw(self, draw: Draw) -> None:
            self.recording.record(self, "draw", recorded_work.draw(draw))

        def copy_strided(self, copy: StridedCopy) -> None:
            self.recording.record(self, "strided", recorded_work.copy_strided(copy))

        def call(self, function: Callable[[], object]) -> None:
            self.recording.record(self, "call", recorded_work.call(function))

        def call_native(self, function: int, argument: int) -> None:
            self.recording.record(self, "native", recorded_work.native(function, argument))

        def signal(self) -> int:
            return self.recording.signal(self)

        def mark(self) -> CapturedMark:
            return CapturedMark(self.recording.signal(self))

        def idle(self) -> bool:
            raise self.recording.forbidden(self, "idle")

        def wait(self, tick: int) -> None:
            self.check_not_captured(integer_of(tick, "tick"))
            super().wait(tick)

        def wait_for(self, other: object, tick: int) -> None:
            wait_in_capture(self, self.same_kind(other), integer_of(tick, "tick"))

        def close(self, timeout: float | None = None) -> bool:
            self.abandon_capture()
            return bool(self.close(timeout))  # abandon_capture() has restored the class

    for name in _OPTIONAL:
        if not hasattr(queue_class, name):
            delattr(CapturingQueue, name)
    CapturingQueue.__name__ = CapturingQueue.__qualname__ = f"Capturing{queue_class.__name__}"
    return CapturingQueue
