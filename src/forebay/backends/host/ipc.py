"""Sharing of memory between processes: segments that other processes open, and segments of other processes.

A segment becomes shared on the first request and keeps its address: its content is copied to a memory file, which is
then mapped in its place. The port's queues start no work in between.
"""

from __future__ import annotations

import ctypes
import errno
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from forebay.backends.common.arguments import integer_of
from forebay.backends.common.cuda_errors import INVALID_CONTEXT
from forebay.backends.common.mmap import map_memory, move_mapping, touched_ranges
from forebay.backends.common.shared_file import Handle, SharedFile
from forebay.backends.common.shared_slots import SLICE, SharedEvent
from forebay.errors import DeviceError, Unsupported, warn_unraisable

if TYPE_CHECKING:
    from forebay.backends.host.memory_owner import MemoryOwner
    from forebay.backends.host.queue import HostQueue

__all__ = ["IpcMemory"]

_PURPOSE = b"psMm"


class IpcMemory:
    """The shared memory of a port; implements `spi.Shares`."""

    def __init__(self, port: MemoryOwner) -> None:
        self._port = port
        self._files: dict[int, SharedFile] = {}  # of own segments, by address
        self._opened: dict[int, SharedFile] = {}  # of other processes, by address
        self._closing: set[int] = set()  # addresses of those that are unmapped next
        self._moves = 0  # number of segments being moved; new queues are paused this many times
        self._paused: list[HostQueue] = []  # the new queues, once per pause
        self._move_lock = threading.RLock()
        self._pause_lock = threading.RLock()  # of `_moves` and `_paused`

    def share(self, address: int) -> tuple[bytes, int]:
        address = integer_of(address, "address")
        with self._port.locked():
            pass
        found = self._port.segment_at(address)
        if found is None and self._port.is_expandable(address):
            message = f"{self._port.name}: memory of expandable segments cannot be shared"
            raise Unsupported(message, ability="Growable")
        if found is None:
            message = f"{self._port.name}: {address:#x} is not in memory that `reserve` returned"
            raise DeviceError(message, code=errno.EINVAL, call="share", device=self._port.name)
        start, nbytes = found
        file = self._files.get(start)
        if file is None:
            with self._move_lock:
                file = self._files.get(start)
                if file is None:
                    file = self._files[start] = self._move(start, nbytes)
        return file.handle(_PURPOSE), address - start

    def open(self, data: bytes) -> tuple[int, int]:
        with self._port.locked():
            pass
        handle = Handle.parse(data, _PURPOSE, self._port.name)
        if any(file.name == handle.name for file in tuple(self._files.values())):
            message = "invalid device context: the memory is shared by this process, which cannot open it"
            raise DeviceError(message, code=INVALID_CONTEXT, call="open_shared", device=self._port.name)
        file = SharedFile.open(handle, self._port.name)
        self._opened[file.address] = file
        return file.address, file.nbytes

    def close(self, address: int) -> None:
        address = integer_of(address, "address")
        file = self._opened.get(address)
        if file is None:
            message = f"{self._port.name}: {address:#x} is not an address that `open_shared` returned"
            raise DeviceError(message, code=errno.EINVAL, call="close_shared", device=self._port.name)
        # Note [Decommit protocol] (runtime/allocator/expandable_segments.py)
        self._port.releases.note(file.address, file.nbytes)  # a capture that ends before the second one knows it
        self._closing.add(address)
        self._port.releases.note(file.address, file.nbytes)
        try:
            self._port.drain()
        except BaseException:
            self._closing.discard(address)
            raise
        file.unmap()
        if self._opened.get(address) is file:  # at the end: an interrupted call may be repeated
            del self._opened[address]
        self._closing.discard(address)

    def opened(self) -> list[tuple[int, int]]:
        """Return address and size of each segment of another process that is open and not being closed."""
        opened = tuple(self._opened.values())
        return [(file.address, file.nbytes) for file in opened if file.address not in self._closing]

    def make_mark(self) -> SharedEvent:
        with self._port.locked():
            pass
        return SharedEvent.create()

    def open_mark(self, handle: bytes) -> SharedEvent:
        with self._port.locked():
            pass
        return SharedEvent.open(handle, self._port.name)

    # ---- For the port

    def on_release(self, address: int) -> None:
        """Stop sharing a released segment; processes that have opened it keep its memory."""
        if (file := self._files.pop(address, None)) is not None:
            file.close()

    def on_new_queue(self, queue: HostQueue) -> None:
        """Pause a new queue while segments are being moved. The caller holds the port's lock."""
        with self._pause_lock:
            for _ in range(self._moves):
                queue.pause_within(0)
                self._paused.append(queue)

    def close_all(self) -> None:
        """Stop sharing all own segments and close those of other processes."""
        for address in tuple(self._files):
            self.on_release(address)
        for address in tuple(self._opened):
            self.close(address)

    def after_fork_in_child(self) -> None:
        """Replace the shared segments in a forked child by private copies, as all other memory is."""
        files, self._files = self._files, {}
        self._move_lock, self._pause_lock = threading.RLock(), threading.RLock()
        self._moves, self._paused = 0, []
        for address, file in files.items():
            file.close()
            try:
                _replace(address, file.nbytes, map_memory(file.nbytes))
            except OSError as error:
                warn_unraisable(f"the forked process still shares memory with its parent: {error}")

    def _move(self, address: int, nbytes: int) -> SharedFile:
        try:
            file = SharedFile.create(nbytes)
        except OSError as error:
            raise self._port.device_error(error, "the memory cannot be shared") from None
        try:
            with self._queues_paused(), self._port.host_accessible(address, nbytes):
                _replace(address, nbytes, file.address)
        except BaseException as error:
            file.close()
            file.unmap()
            if isinstance(error, OSError):
                raise self._port.device_error(error, "the memory cannot be shared") from None
            raise
        return file

    @contextmanager
    def _queues_paused(self) -> Iterator[None]:
        """Pause all queues of the port and wait until none of them is running work."""
        with ExitStack() as resumed:
            with self._port.locked():
                self._moves += 1
                resumed.callback(self._resume_new)
                queues = self._port.queues()
                for queue in queues:
                    resumed.callback(queue.resume)
                    queue.pause_within(0)
            for queue in queues:
                while not queue.pause_within(SLICE):
                    queue.resume()
                queue.resume()  # one of the two pauses remains
            yield

    def _resume_new(self) -> None:
        with self._pause_lock:  # otherwise a queue created now could stay paused forever
            self._moves -= 1
            paused, self._paused = self._paused, []
        for queue in paused:
            queue.resume()


def _replace(target: int, nbytes: int, source: int) -> None:
    """Copy the content of `target` to the mapping at `source` and move that mapping to `target`.

    memmove holds the GIL, so no Python thread writes to a range while it is copied.
    """
    for address, size in touched_ranges(target, nbytes):
        ctypes.memmove(source + address - target, address, min(size, target + nbytes - address))
    move_mapping(source, nbytes, target)
