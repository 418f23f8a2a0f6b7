"""A machine's segments as memory of several processes, and what others share.

A segment becomes shared when it is asked for the first time, and keeps its address: what is in it is copied to a file
without a name, which is then mapped in its place. The port's queues begin nothing meanwhile.
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
from forebay.backends.common.mmap import map_memory, put_in_place, touched_runs
from forebay.backends.common.shared_file import Handle, SharedFile
from forebay.backends.common.shared_slots import SLICE, SharedEvent
from forebay.errors import DeviceError, Unsupported, complain

if TYPE_CHECKING:
    from forebay.backends.host.port import MachinePort
    from forebay.backends.host.queue import HostQueue

__all__ = ["MachineSharing"]

_PURPOSE = b"psMm"


class MachineSharing:
    """What a MachinePort has of it."""

    def __init__(self, port: MachinePort) -> None:
        self._port = port
        self._files: dict[int, SharedFile] = {}  # of own segments, by address
        self._opened: dict[int, SharedFile] = {}  # other processes', by address
        self._held = 0  # new queues are paused: so many segments move
        self._paused: list[HostQueue] = []  # those, as far as they are new
        self._moving = threading.RLock()
        self._holding = threading.RLock()  # of what is held and paused

    def share(self, address: int) -> tuple[bytes, int]:
        address = integer_of(address, "address")
        with self._port.locked():
            pass
        found = self._port.segment_at(address)
        if found is None and self._port.grows_at(address):
            message = f"{self._port.name}: memory whose pages come and go cannot be shared"
            raise Unsupported(message, ability="Growable")
        if found is None:
            message = f"{self._port.name}: {address:#x} is not in memory that `reserve` gave"
            raise DeviceError(message, code=errno.EINVAL, call="share", device=self._port.name)
        start, nbytes = found
        file = self._files.get(start)
        if file is None:
            with self._moving:
                file = self._files.get(start)
                if file is None:
                    file = self._files[start] = self._move(start, nbytes)
        return file.handle(_PURPOSE), address - start

    def open(self, data: bytes) -> tuple[int, int]:
        with self._port.locked():
            pass
        handle = Handle.read(data, _PURPOSE, self._port.name)
        if any(file.name == handle.name for file in tuple(self._files.values())):
            message = "invalid device context: this process shares the memory itself, and has no need of a handle"
            raise DeviceError(message, code=INVALID_CONTEXT, call="open_shared", device=self._port.name)
        file = SharedFile.opened(handle, self._port.name)
        self._opened[file.address] = file
        return file.address, file.nbytes

    def close(self, address: int) -> None:
        address = integer_of(address, "address")
        file = self._opened.pop(address, None)
        if file is None:
            message = f"{self._port.name}: {address:#x} is not an address that `open_shared` gave"
            raise DeviceError(message, code=errno.EINVAL, call="close_shared", device=self._port.name)
        file.unmap()

    def opened(self) -> list[tuple[int, int]]:
        """Addresses and sizes of other processes' memory that is open here."""
        return [(file.address, file.nbytes) for file in tuple(self._opened.values())]

    def make_mark(self) -> SharedEvent:
        with self._port.locked():
            pass
        return SharedEvent.made()

    def open_mark(self, handle: bytes) -> SharedEvent:
        with self._port.locked():
            pass
        return SharedEvent.opened(handle, self._port.name)

    # For the port

    def forget(self, address: int) -> None:
        """The segment went back; who has opened it keeps its memory."""
        if (file := self._files.pop(address, None)) is not None:
            file.close()

    def hold(self, queue: HostQueue) -> None:
        """For a new queue, with the port locked: while a segment moves, it begins nothing."""
        with self._holding:
            for _ in range(self._held):
                queue.pause_within(0)
                self._paused.append(queue)

    def end(self) -> None:
        """Nothing is shared any more, neither way."""
        for address in tuple(self._files):
            self.forget(address)
        for address in tuple(self._opened):
            self.close(address)

    def abandon(self) -> None:
        """In a forked child: its memory is its own again, as all of a child's is."""
        files, self._files = self._files, {}
        self._moving, self._holding = threading.RLock(), threading.RLock()
        self._held, self._paused = 0, []
        for address, file in files.items():
            file.close()
            try:
                _replace(address, file.nbytes, map_memory(file.nbytes))
            except OSError as error:
                complain(f"the forked process still shares memory with its parent: {error}")

    def _move(self, address: int, nbytes: int) -> SharedFile:
        try:
            file = SharedFile.made(nbytes)
        except OSError as error:
            raise self._port.refusal(error, "the memory cannot be shared") from None
        try:
            with self._at_rest(), self._port.laid_open(address, nbytes):
                _replace(address, nbytes, file.address)
        except BaseException as error:
            file.close()
            file.unmap()
            if isinstance(error, OSError):
                raise self._port.refusal(error, "the memory cannot be shared") from None
            raise
        return file

    @contextmanager
    def _at_rest(self) -> Iterator[None]:
        """With no queue of the port at anything that touches memory."""
        with ExitStack() as resumed:
            with self._port.locked():
                self._held += 1
                resumed.callback(self._resume_new)
                queues = self._port.queues()
                for queue in queues:
                    resumed.callback(queue.resume)
                    queue.pause_within(0)
            for queue in queues:
                while not queue.pause_within(SLICE):
                    queue.resume()
                queue.resume()  # of the two pauses one remains
            yield

    def _resume_new(self) -> None:
        with self._holding:  # else a queue that is made just now could be paused for ever
            self._held -= 1
            paused, self._paused = self._paused, []
        for queue in paused:
            queue.resume()


def _replace(target: int, nbytes: int, source: int) -> None:
    """The mapping at `source` moves to the target, with what is there. Python's threads stand still for each piece."""
    for address, size in touched_runs(target, nbytes):
        ctypes.memmove(source + address - target, address, min(size, target + nbytes - address))
    put_in_place(source, nbytes, target)
