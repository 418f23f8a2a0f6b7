"""Waits of a stream for native functions that block.

A host function of a stream must not block: the driver may run those of all streams on one thread. So a thread of this
process runs the functions, and the stream waits for a word of pinned memory, in which the thread then writes.
"""

from __future__ import annotations

import ctypes
import threading
import time
from collections import deque
from dataclasses import dataclass
from typing import Any

from forebay.backends.nvidia._memory import obtain
from forebay.backends.nvidia.calls import check
from forebay.backends.nvidia.context import PrimaryContext
from forebay.vendor import cuda_errors

__all__ = ["BlockingCalls"]

_Native = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)  # calls without the GIL
_MASK = (1 << 32) - 1
_WORD = 4  # bytes
_LIMIT, _POLL = 1.0, 0.0005  # seconds


@dataclass(slots=True)
class _Call:
    """A function, 0 after a failure; its argument and number; and what it needs."""

    function: int
    argument: int
    number: int
    owner: object


class BlockingCalls:
    """The native functions for which one stream waits, in the order of the stream."""

    def __init__(self, context: PrimaryContext, stream: int) -> None:
        self._context = context
        self._stream = stream
        self._order = threading.Lock()  # held while the driver may block; keeps the order of the stream
        self._lock = threading.RLock()  # of everything below; not held during a call of the driver
        self._calls = deque[_Call]()
        self._queued = 0  # number of the last call
        self._returned = 0  # number of the last call that returned
        self._address = 0  # of the word, which has that number
        self._running = False  # a thread runs the calls
        self._failure = 0  # code of the first call that failed

    def add(self, function: int, argument: int, owner: object) -> None:
        """Make later work of the stream wait until a native function has returned, which uses memory of `owner`."""
        try:
            self._add(function, argument, owner)
            self._start()
        except BaseException:  # also of a signal handler
            self._start()
            raise

    def _add(self, function: int, argument: int, owner: object) -> None:
        with self._order:
            if not self._address:
                self._address = self._new_word()
            call = _Call(function, argument, self._queued + 1, owner)
            try:
                with self._context.current() as api:
                    device = int(check(api.cuMemHostGetDevicePointer(self._address, 0), "cuMemHostGetDevicePointer"))
                    with self._lock:  # before the stream may wait for it
                        self._calls.append(call)
                        self._queued = call.number
                    flags = api.CUstreamWaitValue_flags.CU_STREAM_WAIT_VALUE_GEQ
                    result = api.cuStreamWaitValue32(self._stream, device, call.number & _MASK, flags)
                    check(result, "cuStreamWaitValue32", self._context.name)
            except BaseException:
                call.function, call.owner = 0, None  # the thread lets the stream continue
                raise

    def take_failure(self) -> int:
        """Return the first code with which a function failed since the last call, or 0."""
        with self._lock:
            code, self._failure = self._failure, 0
        return code

    def give_up(self) -> None:
        """Let the stream continue without the functions, which still run."""
        with self._lock:
            self._write(self._queued)

    def destroy(self) -> None:
        """Free the word, before the stream is destroyed. Errors are ignored: the device may be lost.

        The word remains if the stream is blocked by other work, and may still read it.
        """
        self.give_up()
        limit = time.monotonic() + _LIMIT
        with self._context.current() as api:
            while int(api.cuStreamQuery(self._stream)[0]) == cuda_errors.NOT_READY:
                if time.monotonic() >= limit:
                    return
                time.sleep(_POLL)
            self.free_word()

    def free_word(self) -> None:
        """Free the word, which the stream does not read any more. Errors are ignored, as in `destroy`."""
        with self._lock:
            address, self._address = self._address, 0
        if address:
            self._context.try_to_invoke("cuMemFreeHost", address)

    def _new_word(self) -> int:
        made: list[tuple[str, Any]] = []
        try:
            with self._context.current() as api:
                flags = api.CU_MEMHOSTALLOC_PORTABLE | api.CU_MEMHOSTALLOC_DEVICEMAP
                result = obtain(made, "cuMemFreeHost", api.cuMemHostAlloc, _WORD, flags)
            address = int(check(result, "cuMemHostAlloc", self._context.name))
            ctypes.c_uint32.from_address(address).value = 0
        except BaseException:  # also of a signal handler
            for each in made:
                self._context.try_to_invoke(*each)
            raise
        return address

    def _start(self) -> None:
        """Start a thread for the calls if there are some and no thread runs them."""
        if self._running or not self._calls:
            return
        try:
            threading.Thread(target=self._run, name="forebay shared event", daemon=True).start()
        except RuntimeError:  # no thread can be started: this one has to wait
            self._run()

    def _run(self) -> None:
        with self._lock:
            if self._running:
                return
            self._running = True
        while True:
            with self._lock:
                if not self._calls:
                    self._running = False
                    return
                call = self._calls.popleft()
            code = 0
            try:
                if call.function:
                    code = _Native(call.function)(call.argument)
            finally:
                call.owner = None
                with self._lock:
                    self._failure = self._failure or code
                    self._write(call.number)

    def _write(self, number: int) -> None:
        """Let the stream continue up to a call. The caller holds the lock."""
        self._returned = max(self._returned, number)  # `give_up` may have been here before
        if self._address:
            ctypes.c_uint32.from_address(self._address).value = self._returned & _MASK
