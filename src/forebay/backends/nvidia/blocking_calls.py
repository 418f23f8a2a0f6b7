"""Waits of a stream for native functions that block.

A host function of a stream must not block: the driver may run those of all streams on one thread. So a thread of this
process runs the functions, and the stream waits for a word of pinned memory, in which the thread then writes.
"""

from __future__ import annotations

import ctypes
import threading
import time
from collections import deque

from forebay.backends.common.cuda_errors import NOT_READY
from forebay.backends.nvidia.calls import check
from forebay.backends.nvidia.context import PrimaryContext

__all__ = ["BlockingCalls"]

_Native = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)  # calls without the GIL
_MASK = (1 << 32) - 1
_WORD = 4  # bytes
_LIMIT, _POLL = 1.0, 0.0005  # seconds


class BlockingCalls:
    """The native functions for which one stream waits, in the order of the stream."""

    def __init__(self, context: PrimaryContext, stream: int) -> None:
        self._context = context
        self._stream = stream
        self._order = threading.Lock()  # held while the driver may block; keeps the order of the stream
        self._lock = threading.RLock()  # of everything below; not held during a call of the driver
        self._calls = deque[tuple[int, int, int, object]]()  # functions, arguments, numbers, what they need
        self._queued = 0  # number of the last call
        self._returned = 0  # number of the last call that returned
        self._address = 0  # of the word, which has that number
        self._running = False  # a thread runs the calls
        self._failure = 0  # code of the first call that failed

    def add(self, function: int, argument: int, owner: object) -> None:
        """Make later work of the stream wait until a native function has returned, which uses memory of `owner`."""
        with self._order:
            if not self._address:
                self._address = self._new_word()
            number = self._queued + 1
            with self._context.current() as api:
                device = int(check(api.cuMemHostGetDevicePointer(self._address, 0), "cuMemHostGetDevicePointer"))
                flags = api.CUstreamWaitValue_flags.CU_STREAM_WAIT_VALUE_GEQ
                result = api.cuStreamWaitValue32(self._stream, device, number & _MASK, flags)
                check(result, "cuStreamWaitValue32", self._context.name)
            with self._lock:
                self._queued = number  # from here on only `_run` lets the stream continue
                self._calls.append((function, argument, number, owner))
                starts, self._running = not self._running, True
        if starts:
            self._start()

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
            while int(api.cuStreamQuery(self._stream)[0]) == NOT_READY:
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
        with self._context.current() as api:
            flags = api.CU_MEMHOSTALLOC_PORTABLE | api.CU_MEMHOSTALLOC_DEVICEMAP
            address = int(check(api.cuMemHostAlloc(_WORD, flags), "cuMemHostAlloc", self._context.name))
        ctypes.c_uint32.from_address(address).value = 0
        return address

    def _start(self) -> None:
        try:
            threading.Thread(target=self._run, name="forebay shared event", daemon=True).start()
        except RuntimeError:  # no thread can be started: this one has to wait
            self._run()

    def _run(self) -> None:
        while True:
            with self._lock:
                if not self._calls:
                    self._running = False
                    return
                function, argument, number, owner = self._calls.popleft()
            code = 0
            try:
                code = _Native(function)(argument)
            finally:
                del owner
                with self._lock:
                    self._failure = self._failure or code
                    self._write(number)

    def _write(self, number: int) -> None:
        """Let the stream continue up to a call. The caller holds the lock."""
        self._returned = max(self._returned, number)  # `give_up` may have been here before
        if self._address:
            ctypes.c_uint32.from_address(self._address).value = self._returned & _MASK
