"""Queue of a CUDA device: a stream of its primary context."""

from __future__ import annotations

import math
import time
from collections.abc import MutableMapping
from contextlib import suppress
from operator import index
from typing import TYPE_CHECKING, Any, Protocol, Self

from forebay.backends.nvidia._memory import destroy_last, obtain
from forebay.backends.nvidia._stream import Stream
from forebay.backends.nvidia.blocking_calls import BlockingCalls
from forebay.backends.nvidia.calls import FATAL, check, known_losses
from forebay.backends.nvidia.context import PrimaryContext
from forebay.backends.nvidia.kernels.queue_work import KernelWork
from forebay.errors import DeviceError, ForebayError, warn_unraisable
from forebay.vendor import (
    CaptureMixin,
    CaptureRecorder,
    MemorySource,
    SharedEvent,
    accelerator_error,
    wait_in_capture,
)

__all__ = ["CudaQueue", "Owner"]

_SLICE = 50_000_000  # nanoseconds of a wait after which the interpreter runs signal handlers
_POLL = 0.0005  # seconds between queries while a queue is closed


class Owner(MemorySource, Protocol):
    """The part of a port that its queues use."""

    def new_graph(
        self, first: CudaQueue, mode: str, queues: MutableMapping[int, int]
    ) -> CaptureRecorder[CudaQueue]: ...


class CudaQueue(Stream, KernelWork, CaptureMixin[CaptureRecorder["CudaQueue"]]):
    """An in-order queue: a stream of the driver. The first one of a device is its default stream, with the handle 0."""

    if TYPE_CHECKING:

        @property
        def context(self) -> PrimaryContext: ...

    def __init__(
        self,
        owner: Owner,
        context: PrimaryContext,
        priority: int = 0,
        *,
        handle: int | None = None,
        made: list[Self] | None = None,
    ) -> None:
        """Create a stream, or use one that the driver or another library created and destroys.

        The queue is appended to the list `made`, which has it also if a signal handler raises in the caller.
        """
        self.owner: Owner = owner  # the port
        self._destroyed_here = handle is None
        self._blocking: BlockingCalls | None = None
        self._tick_of_calls: int | None = None  # behind the last blocking call of an external stream
        self._passed_calls = False
        self._created: list[tuple[str, Any]] = []  # the stream, until it is destroyed
        try:
            if handle is None:
                with context.current() as api:
                    flags = api.CUstream_flags.CU_STREAM_NON_BLOCKING
                    result = obtain(self._created, "cuStreamDestroy", api.cuStreamCreateWithPriority, flags, priority)
                handle = int(check(result, "cuStreamCreate", context.name))
            super().__init__(context, handle)
            if made is not None:
                made.append(self)
        except BaseException:  # also of a signal handler
            if not (made and made[-1] is self):
                self._destroy_stream(context)
            raise

    def wait(self, tick: int) -> None:
        number = index(tick)
        self.check_not_captured(number)
        while not self.wait_within(number, _SLICE):
            pass
        if (failure := self.take_failure()) is not None:
            raise self._work_error(failure) from (failure if isinstance(failure, BaseException) else None)

    def wait_for(self, other: object, tick: int) -> None:
        other, number = self.same_kind(other), index(tick)
        self.context.peers.enable(other.context)  # a copy between the devices may follow
        if number >= 0 or not wait_in_capture(self, other, number):
            self.make_wait(other, number)

    def same_kind(self, other: object) -> CudaQueue:
        """Return another queue of CUDA devices. Raises TypeError if it is none."""
        if not isinstance(other, CudaQueue):
            raise TypeError(f"a cuda queue can wait only for cuda queues, not for a {type(other).__name__}")
        return other

    def driver_error(self, code: int, call: str, note: str = "") -> DeviceError:
        """Return the error for a CUDA error code, with an additional line `note`."""
        return accelerator_error(code, kind=self.name.partition(":")[0], call=call, device=self.name, note=note)

    def call_blocking(self, function: int, argument: int, owner: object) -> None:
        """Make later work wait for a native function that may block, which `call_native` does not permit.

        The function may still run after the queue was closed with a time limit; `owner` is kept until it returns.
        """
        self.check_usable()
        if (recording := self.capture) is not None:
            raise recording.forbidden(self, "wait_for")
        if self._blocking is None:
            self._blocking = BlockingCalls(self.context, self.handle)
        self._blocking.add(function, argument, owner)
        if self._is_external():  # which cannot be queried when the queue is destroyed
            self._tick_of_calls = None
            self._tick_of_calls = Stream.signal(self)

    def take_failure(self) -> BaseException | int | None:
        failure = super().take_failure()
        if self._blocking is not None:
            failure = failure or self._blocking.take_failure() or None
        return failure

    def close(self, timeout: float | None = None) -> bool:
        """Complete the queued work, and destroy the events."""
        if self.closed or self.context.forked():
            return True
        done = self._complete(timeout)
        self.drop_calls()  # those that a device did not execute in time, or because it is lost
        if self._blocking is not None:
            self._blocking.give_up()
            self._passed_calls = self._has_passed_calls()
        failure = self.take_failure()
        if failure is not None:
            warn_unraisable(f"{self._work_error(failure)}; no wait reported it before the queue was closed")
        self.destroy_events()
        return done

    def destroy(self) -> None:
        """Destroy the stream, unless it is destroyed. Until then its handle is not reused."""
        if self._is_external():  # its creator may have destroyed it
            if self._blocking is not None and self._passed_calls:
                self._blocking.free_word()
            return
        if self._blocking is not None:
            with suppress(ForebayError):
                self._blocking.destroy()
        self._destroy_stream(self.context)

    def _destroy_stream(self, context: PrimaryContext) -> None:
        with suppress(ForebayError), context.current():
            if destroy_last(self._created):
                self._created.clear()  # the device is lost

    def _is_external(self) -> bool:
        return not self._destroyed_here and self.handle != 0

    def _complete(self, seconds: float | None) -> bool:
        """Wait for the queued work, at most for some time. Return False on timeout; warn if the driver fails."""
        limit = math.inf if seconds is None else time.monotonic() + max(seconds, 0.0)
        is_known = self.name in known_losses
        try:
            while not self._is_done():
                if time.monotonic() >= limit:
                    return False
                time.sleep(_POLL)
        except DeviceError as error:
            if not (is_known and error.code in FATAL):
                warn_unraisable(f"{error}; no wait reported it before the queue was closed")
        return True

    def _is_done(self) -> bool:
        """Return True if the queued work has completed; of an external stream that before the last tick."""
        return self.reached() >= self.last_tick if self._is_external() else self.idle()

    def _has_passed_calls(self) -> bool:
        """Return True if an external stream has reached the tick behind its blocking calls."""
        with suppress(ForebayError):
            return self._tick_of_calls is not None and self.reached() >= self._tick_of_calls
        return False

    def _work_error(self, failure: BaseException | int) -> DeviceError:
        name = self.name
        work = f"{name}: work of queue {self.handle:#x} failed"
        if failure == SharedEvent.ORPHANED:
            message = f"{work}: it waited for an event of another process, which ended before it reached the event"
            return DeviceError(message, code=SharedEvent.ORPHANED, call="wait_for", device=name)
        if isinstance(failure, int):
            return DeviceError(f"{work} with code {failure}", code=failure, call="call_native", device=name)
        return DeviceError(f"{work} with {type(failure).__name__}: {failure}", call="call", device=name)
