"""Queue of a Metal device: a command queue, whose ticks are the values of a shared event.

# Note [Work of a Metal queue]
Work is kept as commands (`commands`) until it is encoded into a command buffer, which one call into C commits: a signal
handler may raise anywhere before, and encoding is then repeated from the beginning, with a new buffer. A queue without
work of the GPU commits at once. Otherwise up to `MOST_IN_FLIGHT` command buffers are committed, and more work is added
to one buffer until one of them is complete: Metal blocks the host when a command queue has 64 uncompleted buffers. The
GPU never waits for the host: work behind a function of the host is committed when the function has ended, as Metal
aborts command buffers that wait for longer than some seconds. Rejected: encoding each call at once, which an interrupt
would leave half encoded.
Test: tests/backends/metal/test_queue.py::test_interrupts_during_calls_of_metal_lose_nothing,
  tests/backends/metal/test_queue.py::test_more_ticks_than_metal_permits_command_buffers_do_not_block,
  tests/backends/metal/test_queue.py::test_gpu_never_waits_for_a_host_function

Work that fails while it is encoded is like work that fails on the GPU: its ticks are reached, and the next wait raises
the error.
"""

from __future__ import annotations

import ctypes
import math
import threading
import time
from collections import deque
from collections.abc import Callable, MutableMapping
from functools import partial
from operator import index
from typing import Any, Protocol
from weakref import WeakSet

from forebay.backends.metal import transfers
from forebay.backends.metal.calls import autorelease_pool, device_error, hold, invoke, new
from forebay.backends.metal.commands import Batch, Command, HostCall, Mark, Piece, Signal, Wait, encode, raise_event
from forebay.backends.metal.host_lane import HostLane, await_value
from forebay.backends.metal.kernels.library import Kernels
from forebay.backends.metal.memory import Region, Regions
from forebay.backends.metal.work_log import WorkLog, WorkTimes
from forebay.errors import DeviceError, Forked, WrongState, warn_unraisable, without_frames
from forebay.spi import Draw, StridedCopy
from forebay.spi import Mark as AnyMark
from forebay.vendor import (
    CaptureMixin,
    CaptureRecorder,
    MemorySource,
    accelerator_error,
    address_of,
    byte_of,
    index_of,
    size_of,
    wait_in_capture,
)

__all__ = ["MOST_IN_FLIGHT", "MetalQueue", "Owner"]

MOST_IN_FLIGHT = 16  # command buffers: Note [Work of a Metal queue]
_SLICE = 50  # milliseconds of a wait, after which the interpreter runs signal handlers
_RELEASE_LIMIT, _RELEASE_SLICE = 1.0, 0.001  # seconds for Metal to release handlers; time between two looks
_NATIVE = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)


class Owner(MemorySource, Protocol):
    """The part of a port that its queues use."""

    device: Any  # an MTLDevice
    name: str
    regions: Regions
    kernels: Kernels

    def forked(self) -> bool: ...
    def scratch(self, nbytes: int) -> Region: ...
    def note_busy(self, begin: float, end: float) -> None: ...
    def new_graph(
        self, first: MetalQueue, mode: str, queues: MutableMapping[int, int]
    ) -> CaptureRecorder[MetalQueue]: ...


class MetalQueue(CaptureMixin[CaptureRecorder["MetalQueue"]]):
    """An in-order queue: a command queue of the device and, for host functions, a thread."""

    event: Any  # an MTLSharedEvent, of ticks
    last_tick: int

    def __init__(self, owner: Owner, handle: int) -> None:
        self.owner: Owner = owner
        self.handle: int = handle
        self.closed: bool = False
        self._finished = False  # `close` has done its work
        self.lock: threading.RLock = threading.RLock()
        self._changed = threading.Condition(self.lock)  # notified when work has ended
        with autorelease_pool():
            self._queue = self._made("newCommandQueue")
            self.event = self._made("newSharedEvent")
            self._host_event = self._made("newSharedEvent")  # of the work of the GPU before host functions
        self._lane = HostLane(f"forebay {owner.name} queue {handle}", self._host_step)
        self._inner: MetalQueue | None = None
        self._log = WorkLog()
        self.last_tick = 0
        self._committed_tick = 0
        self._host_value = 0  # the last value of `_host_event` that was given to a command
        self._pending: list[Command] = []
        self._in_flight = deque[Batch]()
        self._handlers = WeakSet[Callable[[Any], None]]()  # that Metal will call, or has not released yet
        self._encoding: Batch | None = None
        self._flushing = False
        self._failure: BaseException | int | None = None
        self._last_end = 0.0  # seconds

    # ---- Work

    def copy(self, dst: int, src: int, nbytes: int) -> None:
        dst, src, nbytes = address_of(dst, "dst"), address_of(src, "src"), size_of(nbytes)
        self.check_usable()
        transfers.copy(self, dst, src, nbytes)

    def fill(self, dst: int, byte: int, nbytes: int) -> None:
        dst, byte, nbytes = address_of(dst, "dst"), byte_of(byte), size_of(nbytes)
        self.check_usable()
        transfers.fill(self, dst, byte, nbytes)

    def draw(self, draw: Draw) -> None:
        from forebay.backends.metal.kernels.draws import launch_draw

        launch_draw(self, draw)

    def copy_strided(self, copy: StridedCopy) -> None:
        from forebay.backends.metal.kernels.strided import launch_strided_copy

        launch_strided_copy(self, copy)

    def call(self, function: Callable[[], object]) -> None:
        if not callable(function):
            raise TypeError(f"function must be callable, not {type(function).__name__}")
        self.check_usable()
        self.add_host_call(function)

    def call_native(self, function: int, argument: int) -> None:
        native, argument = _NATIVE(address_of(function, "function")), index_of(argument, "argument")
        self.check_usable()
        self.add_host_call(partial(_call_native, native, argument))

    def signal(self) -> int:
        self.check_usable()
        with self.lock:
            tick = self.last_tick = self.last_tick + 1
            self._signal(tick, None)
        return tick

    def mark(self) -> Mark:
        self.check_usable()
        with self.lock:
            tick = self.last_tick = self.last_tick + 1
            mark = Mark(tick)
            self._signal(tick, mark)
        return mark

    def _signal(self, tick: int, mark: Mark | None) -> None:
        if self.is_quiet():
            with autorelease_pool():
                invoke(self.owner.name, self.event.setSignaledValue_, tick)
            if mark is not None:
                mark.seconds = max(time.monotonic(), self._last_end)
            return
        self._add(Signal(self.event, tick, mark))

    def elapsed_ms(self, start: AnyMark, end: AnyMark) -> float:
        since = self._seconds_of(start, "start")
        return (self._seconds_of(end, "end") - since) * 1000

    def _seconds_of(self, mark: AnyMark, name: str) -> float:
        if not isinstance(mark, Mark):
            raise TypeError(f"{name} must be a mark of a Metal queue, not {type(mark).__name__}")
        if mark.seconds is None:
            raise WrongState(f"{self.owner.name}: the {name} mark is not reached yet: wait for its tick first")
        return mark.seconds

    def last_work_number(self) -> int:
        return self._log.last

    def log(self, most: int) -> WorkTimes:
        self.check_usable()
        return self._log.view(most)

    # ---- Ticks

    def reached(self) -> int:
        self._check_process()
        with autorelease_pool():
            reached = self.signalled()
        if reached < self.last_tick:
            self.flush()
        return reached

    def idle(self) -> bool:
        self._check_process()
        with self.lock:
            if self._pending:
                self.flush()
            return not self._pending and self._lane.idle() and self._gpu_idle()

    def settled(self) -> bool:
        """Return True if a wait would return at once and not raise."""
        with self.lock:
            return self.is_quiet() and self._failure is None

    def is_quiet(self) -> bool:
        """Return True if no work is left, and the outcome of all work is known. The caller holds the lock."""
        if self._pending or not self._lane.idle():
            return False
        if self._in_flight:
            self._harvest()
        return not self._in_flight

    def wait(self, tick: int) -> None:
        number = index(tick)
        self.check_not_captured(number)
        self._check_process()
        if number > self.last_tick:
            raise WrongState(f"{self.owner.name}: tick {number} of queue {self.handle} was not signalled")
        with autorelease_pool():
            if self.signalled() < number:
                self._block_until(number)
            self._settle(number)
        with self.lock:
            failure, self._failure = self._failure, None
        if failure is not None:
            raise self._work_error(failure) from (failure if isinstance(failure, BaseException) else None)

    def signalled(self) -> int:
        """Return the value of the event of ticks."""
        return int(invoke(self.owner.name, self.event.signaledValue))

    def _block_until(self, tick: int) -> None:
        if self._lane.is_current():
            raise WrongState(f"{self.owner.name}: a function of queue {self.handle} cannot wait for the queue itself")
        self.flush()
        while not invoke(self.owner.name, self.event.waitUntilSignaledValue_timeoutMS_, tick, _SLICE):
            self.flush()

    def _settle(self, tick: int) -> None:
        """Wait until the outcome of the command buffers up to a reached tick is known, which takes microseconds."""
        with self._changed:
            self._harvest()
            while self._is_unsettled(tick) and not self._lane.is_current():
                self._changed.wait(_SLICE / 1000)
                self._harvest()

    def _is_unsettled(self, tick: int) -> bool:
        """Return True if a command buffer up to a tick is in flight, other than one with work behind the tick."""
        up_to = [batch for batch in self._in_flight if 0 < batch.first_tick <= tick]
        return bool(up_to) and (up_to[0] is not self._in_flight[0] or len(up_to) > 1 or up_to[0].ends_with(tick))

    def wait_for(self, other: object, tick: int) -> None:
        other, number = self.same_kind(other), index(tick)
        self.check_usable()
        if wait_in_capture(self, other, number):
            return
        if number > other.last_tick:
            raise WrongState(f"{other.owner.name}: tick {number} of queue {other.handle} was not signalled")
        if other is self:
            return
        with autorelease_pool():
            if other.signalled() >= number:
                return
        other.flush()
        if other.has_committed(number):
            self._add(Wait(other.event, number, other))
        else:
            self._add_call(partial(other.await_tick, number), 0)

    def has_committed(self, tick: int) -> bool:
        """Return True if the GPU will signal a tick, without a function of the host before it."""
        return tick <= self._committed_tick

    def await_tick(self, tick: int) -> None:
        """Wait for a tick on the thread of another queue. Raises the first failure of Metal."""
        failures: list[BaseException] = []
        await_value(self.event, tick, failures)
        if failures:
            raise failures[0]

    # ---- Adding work

    def add_piece(self, encoder: str, encode: Callable[[Any], object]) -> None:
        """Add work of the GPU."""
        with self.lock:
            self._add(Piece(encoder, encode, self._log.next_number()))

    def add_host_call(self, function: Callable[[], object], *, here: bool = False) -> None:
        """Add a function of the host; with `here`, run it at once if there is no work before it."""
        with self.lock:
            number = self._log.next_number()
            if here and self.is_quiet():
                begin = time.perf_counter_ns()
                try:
                    function()
                except Exception as error:  # noqa: BLE001 -- the next wait raises it, as if the thread had run it
                    self._note_failure(error)
                self._log.note(number, begin, max(time.perf_counter_ns(), begin + 1))
                return
            self._add_call(function, number)

    def _add_call(self, function: Callable[[], object], number: int) -> None:
        with self.lock:
            follows_gpu = bool(self._in_flight) and self._lane.idle()
            if self._pending:
                follows_gpu = not isinstance(self._pending[-1], HostCall)
            after = 0
            if follows_gpu:
                after = self._host_value = self._host_value + 1
            self._pending.append(HostCall(function, self._host_event, after, number))
            self.flush()

    def _add(self, command: Command) -> None:
        with self.lock:
            self._pending.append(command)
            if not self._in_flight or isinstance(command, Signal):
                self.flush()

    # ---- Execution

    def flush(self) -> None:
        """Commit the work that was added, as far as the queue may have more command buffers. Never raises."""
        with self.lock:
            if self._flushing:
                return
            try:
                self._flushing = True
                with autorelease_pool():
                    self._after_interrupt()
                    while self._pending and self._advance():
                        pass
            finally:
                self._flushing = False

    def _advance(self) -> bool:
        """Give the next work to the GPU or the host. Return False if the GPU has enough, or the host must end first."""
        first = self._pending[0]
        if isinstance(first, HostCall) and not first.after:
            self._lane.put(first)
            del self._pending[0]
            return True
        if not self._lane.idle():  # Metal aborts a command buffer that waits for longer than some seconds
            return False
        if len(self._in_flight) >= MOST_IN_FLIGHT:
            self._harvest()
            if len(self._in_flight) >= MOST_IN_FLIGHT:
                return False
        batch = self._encoding = Batch(self._next_commands())
        for with_work in (True, False):  # events are signalled, and waits kept, even if the work cannot be encoded
            if self._commit(batch, with_work=with_work):
                break
        else:
            batch.fail(None)
            self._in_flight.append(batch)
        self._after_commit(batch)
        self._encoding = None
        if batch.done:
            self._harvest()
        return True

    def _commit(self, batch: Batch, *, with_work: bool) -> bool:
        """Encode and commit a batch. Return False if that fails, which the next wait will report."""
        commands = batch.commands if with_work else [each for each in batch.commands if not isinstance(each, Piece)]
        try:
            batch.buffer = self._new_buffer()
            encode(batch.buffer, commands, self.owner.name)
            handler = lambda _buffer: self._completed()  # noqa: E731 -- PyObjC looks at its signature
            self._handlers.add(handler)
            batch.buffer.addCompletedHandler_(handler)
            batch.submitted = time.monotonic()
            self._in_flight.append(batch)
            hold(batch.committed, batch.buffer.commit)
        except Exception as error:  # noqa: BLE001 -- PyObjC's are of several types
            self._note_failure(error)
            if not batch.committed:
                self._take_back(batch)
        return bool(batch.committed)

    def _new_buffer(self) -> Any:
        # The commands keep what they use alive until they are complete. A command buffer would keep it for longer, so
        # that memory that was released would still count.
        buffer = self._queue.commandBufferWithUnretainedReferences()
        if buffer is None:
            name = "commandBufferWithUnretainedReferences"
            raise device_error(None, "work could not be queued", name, self.owner.name)
        return buffer

    def _next_commands(self) -> list[Command]:
        """Return the commands of the next command buffer. A mark, a host function or a logged piece is its last one."""
        pending = self._pending
        logged = self._log.active
        for at, command in enumerate(pending):
            if isinstance(command, HostCall) or (isinstance(command, Signal) and command.mark is not None):
                return pending[: at + 1]
            if logged and isinstance(command, Piece):
                return pending[: at + 1]
        return pending[:]

    def _after_commit(self, batch: Batch) -> None:
        """Remove committed commands from the list. Doing so twice has no effect."""
        commands = batch.commands
        if self._pending and self._pending[0] is commands[0]:
            if isinstance(last := commands[-1], HostCall):
                self._lane.put(last)
            ticks = [each.value for each in commands if isinstance(each, Signal)]
            self._committed_tick = max(ticks, default=self._committed_tick)
            del self._pending[: len(commands)]

    def _after_interrupt(self) -> None:
        """Finish or undo the commit that an exception of a signal handler interrupted."""
        if (batch := self._encoding) is not None:
            if batch.committed or batch.done:
                self._after_commit(batch)
            else:
                self._take_back(batch)
            self._encoding = None

    def _take_back(self, batch: Batch) -> None:
        """Forget a batch that was not committed."""
        batch.buffer = None  # Metal releases only handlers that it has called
        if batch in self._in_flight:
            self._in_flight.remove(batch)

    def _completed(self) -> None:
        """Handle the completion of a command buffer, on a thread of Metal."""
        with autorelease_pool(), self._changed:
            self._continue()

    def _continue(self) -> None:
        """Read outcomes and commit what waits, on a thread that no exception may end. The caller holds the lock."""
        try:
            self._harvest()
            if self._pending:
                self.flush()
        except Exception as error:  # noqa: BLE001 -- the next wait raises it
            self._note_failure(error)
        self._changed.notify_all()

    def _harvest(self) -> None:
        """Read the outcome of completed command buffers, in order. The caller holds the lock."""
        if self._in_flight:
            with autorelease_pool():
                while self._in_flight and self._harvest_first(self._in_flight[0]):
                    self._in_flight.popleft()

    def _harvest_first(self, batch: Batch) -> bool:
        """Read the outcome of a command buffer. Return False if it is not complete."""
        if not batch.done and not batch.finish(self.owner.name):
            return False
        if batch.failure is not None:
            self._note_failure(batch.failure)
        self._note_times(batch)
        if batch.dropped:
            for command in batch.commands:  # what the GPU has not signalled
                if isinstance(command, Signal):
                    raise_event(command.event, command.value)
                elif isinstance(command, HostCall):
                    raise_event(command.event, command.after)
        return True

    def _note_times(self, batch: Batch) -> None:
        self._last_end = max(batch.end, batch.submitted, self._last_end)
        for command in batch.commands:
            if isinstance(command, Signal) and command.mark is not None:
                command.mark.seconds = self._last_end
            elif isinstance(command, Piece):
                begin = int(batch.begin * 1e9)
                self._log.note(command.number, begin, max(int(batch.end * 1e9), begin + 1))
                self.owner.note_busy(batch.begin, batch.end)

    def _gpu_idle(self) -> bool:
        """Return True if the GPU has reached the end of all command buffers."""
        self._harvest()
        if not self._in_flight:
            return True
        last = self._in_flight[-1].commands[-1]
        if not isinstance(last, Signal):
            return False
        with autorelease_pool():
            return self.signalled() >= last.value

    def _host_step(self, call: HostCall, begin: int, end: int, failure: BaseException | None) -> None:
        """Handle the begin (then `end` is 0) or the end of a host function, on the queue's thread."""
        with self._changed:
            if failure is not None:
                self._note_failure(failure)
            self._log.note(call.number, begin, end)
            if end:
                call.ended = True
                self._continue()

    def _note_failure(self, failure: BaseException) -> None:
        if self._failure is None:
            code = failure.code if isinstance(failure, _NativeFailure) else 0
            self._failure = code or without_frames(failure)

    # ---- Life

    def inner_queue(self) -> MetalQueue:
        """Return a queue for work that a function of this queue does and waits for."""
        if self._inner is None:
            self._inner = MetalQueue(self.owner, self.handle)
        return self._inner

    def same_kind(self, other: object) -> MetalQueue:
        """Return another Metal queue. Raises TypeError if it is none."""
        if not isinstance(other, MetalQueue):
            raise TypeError(f"a Metal queue can wait only for Metal queues, not for a {type(other).__name__}")
        return other

    def driver_error(self, code: int, call: str, note: str = "") -> DeviceError:
        """Return the error for a CUDA error code, with an additional line `note`."""
        name = self.owner.name
        return accelerator_error(code, kind=name.partition(":")[0], call=call, device=name, note=note)

    def check_usable(self) -> None:
        """Raise Forked or WrongState if the queue accepts no work."""
        self._check_process()
        if self.closed:
            raise WrongState(f"{self.owner.name}: queue {self.handle} was closed")

    def _check_process(self) -> None:
        if self.owner.forked():
            raise Forked(f"{self.owner.name} was opened before this process was forked: Metal does not survive a fork")

    def close(self, timeout: float | None = None) -> bool:
        if self._finished or self.owner.forked():
            return True
        self.closed = True  # a call that is interrupted can be repeated
        done = self._complete(timeout)
        if not done:
            self._abandon()
        self._lane.stop(wait=done)
        if self._inner is not None:
            self._inner.close(timeout if done else 0.0)
        self._finished = True
        with self.lock:
            failure, self._failure = self._failure, None
        if failure is not None:
            warn_unraisable(f"{self._work_error(failure)}; no wait reported it before the queue was closed")
        return done

    def _complete(self, seconds: float | None) -> bool:
        """Wait for all work, at most for some time; not at all on the queue's own thread.

        Then wait until Metal has released its handlers: at exit, a thread of Metal that still needs the interpreter
        would end the process.
        """
        limit = math.inf if seconds is None else time.monotonic() + max(seconds, 0.0)
        slice_seconds = _SLICE / 1000
        with self._changed:
            while True:
                self.flush()
                if quiet := self.is_quiet():
                    limit, slice_seconds = min(limit, time.monotonic() + _RELEASE_LIMIT), _RELEASE_SLICE
                left = limit - time.monotonic()
                if (quiet and not self._handlers) or left <= 0 or self._lane.is_current():
                    return quiet
                self._changed.wait(min(left, slice_seconds))

    def _abandon(self) -> None:
        """Drop the work that was not committed. What waits for its ticks continues after the committed work."""
        with self.lock:
            self._lane.abandoned = True
            dropped, self._pending = self._pending, []
            for command in dropped:
                if isinstance(command, HostCall):
                    command.function, command.ended = None, True
            batch = Batch(dropped)
            batch.fail(None)
            self._in_flight.append(batch)
            self._harvest()

    def _made(self, function: str) -> Any:
        made = invoke(self.owner.name, new, getattr(self.owner.device, function))
        if made is None:
            raise device_error(None, "a queue could not be created", function, self.owner.name)
        return made

    def _work_error(self, failure: BaseException | int) -> DeviceError:
        name = self.owner.name
        if isinstance(failure, DeviceError):
            return DeviceError(str(failure), code=failure.code, call=failure.call, device=name)
        work = f"{name}: work of queue {self.handle} failed"
        if isinstance(failure, int):
            return DeviceError(f"{work} with code {failure}", code=failure, call="call_native", device=name)
        return DeviceError(f"{work} with {type(failure).__name__}: {failure}", call="call", device=name)


class _NativeFailure(Exception):
    """The code that a native function has returned."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


def _call_native(function: Callable[[int], int], argument: int) -> None:
    if code := function(argument):
        raise _NativeFailure(code)
