"""The host device's queue: a native thread that speaks in forebay's exceptions."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable, MutableMapping
from operator import index
from typing import TYPE_CHECKING, Protocol, Self

from forebay import _core
from forebay.backends.common.arguments import address_of, byte_of, index_of, size_of
from forebay.backends.common.capture_recorder import Records, recorded_wait
from forebay.backends.common.cuda_errors import accelerator_error
from forebay.backends.common.draw_encoding import packed
from forebay.backends.common.shared_slots import ORPHANED, SLICE
from forebay.backends.host.queue_log import HostLog
from forebay.errors import DeviceError, ForebayError, Forked, WrongState, complain
from forebay.spi import Draw, Mark

if TYPE_CHECKING:
    from forebay.backends.host.capture import HostRecording

__all__ = ["HostQueue", "Owner"]

_native = _core.Queue
_core_functions = ctypes.CDLL(_core.__file__)
_core_functions.forebay_pause.argtypes = [ctypes.c_void_p, ctypes.c_int64]
_core_functions.forebay_resume.argtypes = [ctypes.c_void_p]
_REFUSED = (ValueError, TypeError, OverflowError, RuntimeError)  # the last one: no thread could be started


class Owner(Protocol):
    """What a queue knows of its port."""

    @property
    def name(self) -> str: ...
    def forked(self) -> bool: ...  # is it another process's?
    def forget(self, handle: int) -> None: ...  # the queue has ended
    @property
    def losses(self) -> int: ...  # of its memory: see forebay.backends.host.footprint
    def memory(self) -> Iterable[tuple[int, int]]: ...


class HostQueue(_core.Queue, Records["HostRecording"]):
    """Does what is queued, in order; its thread starts with the first work.

    A failure that nobody waited for is told by a warning when the queue is closed.
    """

    __slots__ = ("owner", "recording")

    owner: Owner
    recording: HostRecording  # there while the queue takes part in one: it is a RecordingQueue then

    def __new__(cls, owner: Owner, handle: int, priority: int, watch: int = 0) -> Self:
        self = super().__new__(cls, handle, priority, watch)
        self.owner = owner
        return self

    # This is the fast path of every stream: each method tries first, and looks for the reason when it was refused.

    def copy(self, dst: int, src: int, nbytes: int) -> None:
        refused: Exception | None = None
        try:
            # What is too large, negative or no int at all does not pass the shift.
            if dst and src and nbytes and not (dst | src | nbytes) >> 63:
                return _native.copy(self, dst, src, nbytes)
        except _REFUSED as error:
            refused = error
        address_of(dst, "dst")
        address_of(src, "src")
        size_of(nbytes)
        raise self._refusal(refused)

    def fill(self, dst: int, byte: int, nbytes: int) -> None:
        refused: Exception | None = None
        try:
            if dst and nbytes and byte < 256 and not (dst | byte | nbytes) >> 63:
                return _native.fill(self, dst, byte, nbytes)
        except _REFUSED as error:
            refused = error
        address_of(dst, "dst")
        byte_of(byte)
        size_of(nbytes)
        raise self._refusal(refused)

    def draw(self, draw: Draw) -> None:
        try:
            _native.draw_packed(self, packed(draw))
        except _REFUSED as error:
            raise self._refusal(error) from None

    def expect_programs(self, programs: Iterable[bytes]) -> None:
        """These are going to run, all or none of them: whoever cannot have that refuses now."""

    def call(self, function: Callable[[], object]) -> None:
        if not callable(function):
            raise TypeError(f"function must be callable, not {type(function).__name__}")
        try:
            _native.call(self, function)
        except _REFUSED as error:
            raise self._refusal(error) from None

    def call_native(self, function: int, argument: int) -> None:
        address_of(function, "function")
        index_of(argument, "argument")
        try:
            _native.call_native(self, function, argument)
        except _REFUSED as error:
            raise self._refusal(error) from None

    def signal(self) -> int:
        try:
            return _native.signal(self)
        except _REFUSED as error:
            raise self._refusal(error) from None

    def mark(self) -> _core.Mark:
        try:
            return _native.mark(self)
        except _REFUSED as error:
            raise self._refusal(error) from None

    def elapsed_ms(self, start: Mark, end: Mark) -> float:
        since = self._reached(start, "start").nanoseconds
        return (self._reached(end, "end").nanoseconds - since) / 1e6

    def log(self, most: int) -> HostLog:
        self.check_usable()
        return HostLog(self, most)

    def _reached(self, mark: Mark, name: str) -> _core.Mark:
        if not isinstance(mark, _core.Mark):
            raise TypeError(f"{name} must be a mark of a host queue, not {type(mark).__name__}")
        if not mark.nanoseconds:
            raise WrongState(f"{self.owner.name}: the {name} mark is not reached yet: wait for its tick first")
        return mark

    def wait(self, tick: int) -> None:
        try:
            while not self.wait_within(index(tick), SLICE):
                pass
        except (ValueError, TypeError, OverflowError) as error:
            self.check_recorded(index(tick))
            raise self._refusal(error) from None
        if (failure := self.take_failure()) is not None:
            raise self._told(failure) from (failure if isinstance(failure, BaseException) else None)

    def wait_for(self, other: object, tick: int) -> None:
        if not isinstance(other, _core.Queue):
            raise TypeError(f"a host queue waits for host queues, not for a {type(other).__name__}")
        try:
            _native.wait_for(self, other, index(tick))
        except _REFUSED as error:
            if index(tick) < 0 and isinstance(other, HostQueue):
                recorded_wait(self, other, index(tick))
                return
            raise self._refusal(error) from None

    @property
    def capture(self) -> HostRecording | None:
        return None

    def new_recording(self, mode: str, queues: MutableMapping[int, int]) -> HostRecording:
        from forebay.backends.host.capture import HostRecording

        return HostRecording(self, mode, queues)

    def check_usable(self) -> None:
        """Forked or WrongState where it takes no work."""
        if self.owner.forked() or self.closed:
            raise self._refusal(ValueError(f"queue {self.handle} was closed"))

    def refused(self, code: int, call: str, note: str = "") -> DeviceError:
        """CUDA's error of that number, in its words, and our own line."""
        name = self.owner.name
        return accelerator_error(code, kind=name.partition(":")[0], call=call, device=name, note=note)

    def close(self, timeout: float | None = None) -> bool:
        if timeout is not None:
            done = self.close_within(int(min(max(timeout, 0.0), 1e9) * 1e9))  # 30 years are as good as for ever
        else:
            done = self._finish()
        if done:  # else its thread may still run, and the port's memory has to stay
            self.owner.forget(self.handle)
        if (failure := self.take_failure()) is not None:
            complain(f"{self._told(failure)}; nobody had waited for it when the queue was closed")
        return done

    def pause_within(self, nanoseconds: int) -> bool:
        """Begin nothing until `resume`, which is due either way; False: it was still at something when time was up."""
        return bool(_core_functions.forebay_pause(self.native(), nanoseconds))

    def resume(self) -> None:
        _core_functions.forebay_resume(self.native())

    def _finish(self) -> bool:
        while (done := self.finish_within(SLICE)) is False:
            pass
        return bool(done)

    def _refusal(self, reason: Exception | None) -> ForebayError:
        name = self.owner.name
        if self.owner.forked():
            return Forked(f"{name} was opened before this process was forked, so its queues are gone")
        if isinstance(reason, RuntimeError):
            return DeviceError(f"{name}: queue {self.handle} got no thread: {reason}", call="thread", device=name)
        return WrongState(f"{name}: {reason}")

    def _told(self, failure: BaseException | int) -> DeviceError:
        name = self.owner.name
        work = f"{name}: work of queue {self.handle} failed"
        if failure == 0:
            return DeviceError(
                f"{work}: it waited for another queue, which was closed before it got there",
                call="wait_for",
                device=name,
            )
        if failure == ORPHANED:
            return DeviceError(
                f"{work}: it waited for an event of another process, which ended before it got there",
                code=ORPHANED,
                call="wait_for",
                device=name,
            )
        if isinstance(failure, int):
            return DeviceError(f"{work} with code {failure}", code=failure, call="call_native", device=name)
        return DeviceError(f"{work} with {type(failure).__name__}: {failure}", call="call", device=name)
