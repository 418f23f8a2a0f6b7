"""Queue of the CPU device: the native queue thread, with forebay's exceptions."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable, MutableMapping
from contextlib import suppress
from operator import index
from typing import Protocol, Self

from forebay import _core
from forebay.backends.common._releases import ReleaseLog
from forebay.backends.common.arguments import address_of, byte_of, index_of, size_of
from forebay.backends.common.capture_recorder import CaptureRecorder, wait_in_capture
from forebay.backends.common.capturing_queue import CaptureMixin
from forebay.backends.common.cuda_errors import accelerator_error
from forebay.backends.common.draw_encoding import pack_draw
from forebay.backends.common.shared_slots import ORPHANED, SLICE
from forebay.backends.common.strided_copy_encoding import pack_strided_copy
from forebay.backends.host.queue_log import HostLog
from forebay.errors import DeviceError, ForebayError, Forked, WrongState, warn_unraisable
from forebay.spi import Draw, Mark, StridedCopy

__all__ = ["NATIVE_ERRORS", "HostQueue", "Owner"]

_native = _core.Queue
_elapsed_ms = _core.Mark.elapsed_ms
_core_functions = ctypes.CDLL(_core.__file__)
_core_functions.forebay_pause.argtypes = [ctypes.c_void_p, ctypes.c_int64]
_core_functions.forebay_resume.argtypes = [ctypes.c_void_p]
_LOST_WORK = 125  # failure code of work that was pending in the parent process at a fork
NATIVE_ERRORS = (ValueError, TypeError, OverflowError, RuntimeError)  # RuntimeError: no thread could be started


class Owner(Protocol):
    """The part of a port that its queues use."""

    @property
    def name(self) -> str: ...
    def forked(self) -> bool: ...  # True if a parent process opened the port
    def remove_queue(self, handle: int) -> None: ...  # called when the queue is closed
    @property
    def releases(self) -> ReleaseLog: ...  # see `common.captured_memory.MemorySource`
    def memory(self) -> Iterable[tuple[int, int]]: ...
    def peers(self) -> Iterable[Owner]: ...  # all owners of the process, with this one
    @property
    def visitors(self) -> set[HostQueue]: ...  # of other owners, whose work uses the memory
    def new_graph(
        self, first: HostQueue, mode: str, queues: MutableMapping[int, int]
    ) -> CaptureRecorder[HostQueue]: ...


class HostQueue(_core.Queue, CaptureMixin[CaptureRecorder["HostQueue"]]):
    """An in-order queue on a native thread, which starts with the first work.

    Closing the queue emits a warning if queued work has failed since the last wait.
    """

    __slots__ = ("owner", "recording")

    owner: Owner

    def __new__(cls, owner: Owner, handle: int, priority: int, checks: int = 0) -> Self:
        self = super().__new__(cls, handle, priority, checks)
        self.owner = owner
        return self

    # Fast path of every stream: each method calls the native one first and looks for the reason only after an error.

    def copy(self, dst: int, src: int, nbytes: int) -> None:
        failure: Exception | None = None
        try:
            # The shift rejects values that are too large, negative or not ints.
            if dst and src and nbytes and not (dst | src | nbytes) >> 63:
                return _native.copy(self, dst, src, nbytes)
        except NATIVE_ERRORS as error:
            failure = error
        address_of(dst, "dst")
        address_of(src, "src")
        size_of(nbytes)
        raise self._error(failure)

    def fill(self, dst: int, byte: int, nbytes: int) -> None:
        failure: Exception | None = None
        try:
            if dst and nbytes and byte < 256 and not (dst | byte | nbytes) >> 63:
                return _native.fill(self, dst, byte, nbytes)
        except NATIVE_ERRORS as error:
            failure = error
        address_of(dst, "dst")
        byte_of(byte)
        size_of(nbytes)
        raise self._error(failure)

    def draw(self, draw: Draw) -> None:
        try:
            _native.draw_packed(self, pack_draw(draw))
        except NATIVE_ERRORS as error:
            raise self._error(error) from None

    def copy_strided(self, copy: StridedCopy) -> None:
        encoded = pack_strided_copy(copy)
        try:
            _native.copy_packed(self, encoded)
        except NATIVE_ERRORS as error:
            raise self._error(error) from None

    def ensure_programs_backed(self, programs: Iterable[bytes]) -> None:
        """Ensure that the memory of all programs of a launch is backed; called before any of them is queued."""

    def call(self, function: Callable[[], object]) -> None:
        if not callable(function):
            raise TypeError(f"function must be callable, not {type(function).__name__}")
        try:
            _native.call(self, function)
        except NATIVE_ERRORS as error:
            raise self._error(error) from None

    def call_native(self, function: int, argument: int) -> None:
        address_of(function, "function")
        index_of(argument, "argument")
        try:
            _native.call_native(self, function, argument)
        except NATIVE_ERRORS as error:
            raise self._error(error) from None

    def signal(self) -> int:
        try:
            return _native.signal(self)
        except NATIVE_ERRORS as error:
            raise self._error(error) from None

    def mark(self) -> _core.Mark:
        try:
            return _native.mark(self)
        except NATIVE_ERRORS as error:
            raise self._error(error) from None

    def elapsed_ms(self, start: Mark, end: Mark) -> float:
        try:
            if (elapsed := _elapsed_ms(start, end)) is not None:  # type: ignore[arg-type]  # checked there
                return elapsed
        except TypeError:
            pass
        since = self._checked_mark(start, "start").nanoseconds
        return (self._checked_mark(end, "end").nanoseconds - since) / 1e6

    def log(self, most: int) -> HostLog:
        self.check_usable()
        return HostLog(self, most)

    def _checked_mark(self, mark: Mark, name: str) -> _core.Mark:
        if not isinstance(mark, _core.Mark):
            raise TypeError(f"{name} must be a mark of a host queue, not {type(mark).__name__}")
        if not mark.nanoseconds:
            raise WrongState(f"{self.owner.name}: the {name} mark is not reached yet: wait for its tick first")
        return mark

    def wait(self, tick: int) -> None:
        try:
            if self.settled(tick):
                return
            while not self.wait_within(index(tick), SLICE):
                pass
        except (ValueError, TypeError, OverflowError) as error:
            self.check_not_captured(index(tick))
            raise self._error(error) from None
        if (failure := self.take_failure()) is not None:
            raise self._work_error(failure) from (failure if isinstance(failure, BaseException) else None)

    def wait_for(self, other: object, tick: int) -> None:
        try:
            _native.wait_for(self, other, tick)  # type: ignore[arg-type]  # checked there
        except NATIVE_ERRORS as error:
            if isinstance(other, _core.Queue) and index(tick) >= 0:
                raise self._error(error) from None
        else:
            return
        wait_in_capture(self, self.same_kind(other), index(tick))

    def same_kind(self, other: object) -> HostQueue:
        """Return another host queue. Raises TypeError if it is none."""
        if not isinstance(other, HostQueue):
            raise TypeError(f"a host queue can wait only for host queues, not for a {type(other).__name__}")
        return other

    def check_usable(self) -> None:
        """Raise Forked or WrongState if the queue accepts no work."""
        if self.owner.forked() or self.closed:
            raise self._error(ValueError(f"queue {self.handle} was closed"))

    def driver_error(self, code: int, call: str, note: str = "") -> DeviceError:
        """Return the error for a CUDA error code, with CUDA's text and an additional line `note`."""
        name = self.owner.name
        return accelerator_error(code, kind=name.partition(":")[0], call=call, device=name, note=note)

    def close(self, timeout: float | None = None) -> bool:
        if timeout is not None:
            done = self.close_within(int(min(max(timeout, 0.0), 1e9) * 1e9))  # at most 30 years, which fit in 64 bits
        else:
            done = self._finish()
        if done:  # else the thread may still run, and the port must keep its memory mapped
            self.owner.remove_queue(self.handle)
        failure = self.take_failure()
        if failure is not None and failure != _LOST_WORK:
            warn_unraisable(f"{self._work_error(failure)}; no wait reported it before the queue was closed")
        return done

    def drain(self) -> None:
        """Wait until the work that is queued now has completed, also that from before a capture of the queue.

        Its failure is left for `wait`. Raises WrongState on the queue's own thread, or if work was dropped that may
        still be running.
        """
        if _native.idle(self):
            return
        done: bool | None = False
        try:
            if not self.closed:
                tick = _native.signal(self)
                while not self.wait_within(tick, SLICE):
                    pass
                return
        except NATIVE_ERRORS as error:
            if not self.closed:
                raise self._error(error) from None
        while done is False:  # its closing completes the work
            done = self.finish_within(SLICE)
        if done is None:
            raise self._error(ValueError(f"queue {self.handle} was closed while its work was running"))

    def complete_within(self, seconds: float) -> None:
        """Wait until the queued work has completed, at most for some time; not at all on the queue's own thread."""
        if not _native.idle(self):
            with suppress(*NATIVE_ERRORS):
                self.wait_within(_native.signal(self), int(seconds * 1e9))

    def pause_within(self, nanoseconds: int) -> bool:
        """Start no further work until `resume`, which is required in any case.

        Return False if work was still running on timeout.
        """
        return bool(_core_functions.forebay_pause(self.native(), nanoseconds))

    def resume(self) -> None:
        _core_functions.forebay_resume(self.native())

    def _finish(self) -> bool:
        while (done := self.finish_within(SLICE)) is False:
            pass
        return bool(done)

    def _error(self, reason: Exception | None) -> ForebayError:
        name = self.owner.name
        if self.owner.forked():
            return Forked(f"{name} was opened before this process was forked, so its queues do not exist here")
        if isinstance(reason, RuntimeError):
            message = f"{name}: the thread of queue {self.handle} could not be started: {reason}"
            return DeviceError(message, call="thread", device=name)
        return WrongState(f"{name}: {reason}")

    def _work_error(self, failure: BaseException | int) -> DeviceError:
        name = self.owner.name
        work = f"{name}: work of queue {self.handle} failed"
        if failure == 0:
            return DeviceError(
                f"{work}: it waited for another queue, which was closed before it reached the tick",
                call="wait_for",
                device=name,
            )
        if failure == ORPHANED:
            return DeviceError(
                f"{work}: it waited for an event of another process, which ended before it reached the event",
                code=ORPHANED,
                call="wait_for",
                device=name,
            )
        if failure == _LOST_WORK:
            return DeviceError(
                f"{name}: work of queue {self.handle} was pending when this process was forked, and is not done in it: "
                "synchronize before the fork",
                code=_LOST_WORK,
                call="fork",
                device=name,
            )
        if isinstance(failure, int):
            return DeviceError(f"{work} with code {failure}", code=failure, call="call_native", device=name)
        return DeviceError(f"{work} with {type(failure).__name__}: {failure}", call="call", device=name)
