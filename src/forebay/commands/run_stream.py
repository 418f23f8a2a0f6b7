"""The state of a program under `forebay run`, written while it runs: Note [Unfinished snapshots]."""

from __future__ import annotations

import fcntl
import os
import time
from _thread import allocate_lock, start_new_thread
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from forebay._base.signal_mask import signals_blocked
from forebay._base.trusted_folders import make_folder
from forebay.snapshot.formats import unfinished

if TYPE_CHECKING:
    from forebay.runtime.devices.open_device import OpenDevice

__all__ = ["Stream"]

_LOOK = 0.1  # seconds between two looks at the reserved memory
_INTERVAL = 1.0  # seconds between two states, if the memory does not grow
_SHARE = 50  # a state is written in at most one of so many parts of the time
_GROWTH_BYTES, _GROWTH_SHARE = 16 << 20, 16  # a state is written early when so much more is reserved
_LOWEST = 230  # high, so that the descriptors of the program begin at 3


class Stream:
    """A thread that writes the state of a device to a file, from `start` to `stop`. It never raises.

    The thread is none of the threading module, which would name it, and join it, among those of the program.
    """

    def __init__(self, path: Path, opened: OpenDevice, notes: Mapping[str, Any]) -> None:
        self.path = path
        self._opened, self._notes = opened, notes
        self._fd = -1
        self._identity: tuple[int, int] | None = None
        self._offset = self._length = 0  # of the valid state
        self._seen: list[int] = []
        self._reserved = 0
        self._started = time.monotonic()
        self._wake, self._running = allocate_lock(), allocate_lock()

    def start(self, *, at_once: bool) -> None:
        """Start the thread. `at_once` creates the file, else the first state does."""
        if at_once:
            with suppress(OSError):
                self._open()
        self._wake.acquire()
        with suppress(RuntimeError), signals_blocked():  # the system permits no thread
            start_new_thread(self._run, ())

    def stop(self) -> None:
        """End the thread, once it has written the state at which it is. The file remains."""
        with suppress(RuntimeError):
            self._wake.release()
        self._running.acquire()
        self._close()
        if not self._length:  # there is no state in it: the disk may have been full from the start
            self.remove()

    def abandon(self) -> None:
        """Close the file in a forked child, in which the thread does not run, and `stop` has nothing to wait for."""
        self._close()
        self._running = allocate_lock()

    @property
    def has_file(self) -> bool:
        """True if the file of this process is where the snapshot of its report goes."""
        if self._identity is None:
            return False
        with suppress(OSError):
            found = self.path.stat()
            return (found.st_dev, found.st_ino) == self._identity
        return False

    def _run(self) -> None:
        with self._running, suppress(Exception):  # such as a full disk: the program runs without
            pool, due = self._opened.allocator, time.monotonic() + _LOOK
            from forebay.runtime.allocator.metrics import RESERVED_BYTES

            while not self._wake.acquire(timeout=_LOOK):
                now, reserved = time.monotonic(), pool.current(RESERVED_BYTES)
                grown = reserved - self._reserved
                if now >= due or grown >= max(_GROWTH_BYTES, self._reserved // _GROWTH_SHARE):
                    self._reserved = reserved
                    self._write()
                    due = time.monotonic() + max(_INTERVAL, _SHARE * (time.monotonic() - now))

    def _write(self) -> None:
        from forebay.runtime.allocator import statistics

        pool = self._opened.allocator
        seen = pool.counts()
        if seen == self._seen:
            return
        self._seen = seen
        segments, blocks, entries, lost, stacks = pool.tables()
        _, total = self._opened.port.memory_info()
        details = {
            "device": str(self._opened.device), "capacity": 0 if total >= 1 << 60 else total,
            "taken_at_ns": time.time_ns(), "lost": lost, "stats": statistics.flat_stats(pool),
            "notes": {**pool.snapshot_notes(), **self._notes}, "labels": pool.labels.table(), "pid": os.getpid(),
            "seconds": time.monotonic() - self._started,
        }  # fmt: skip
        self._put(unfinished.pack(details, (segments, blocks, entries), stacks))

    def _put(self, state: bytes) -> None:
        """Write a state beside the valid one, and make it the valid one."""
        if self._fd < 0:
            self._open()
        before = self._offset - unfinished.HEADER_BYTES
        offset = unfinished.HEADER_BYTES if before >= len(state) or not self._length else self._offset + self._length
        self._write_at(state, offset)
        self._write_at(unfinished.header(offset, len(state)), 0)
        self._offset, self._length = offset, len(state)

    def _write_at(self, data: bytes, offset: int) -> None:
        view = memoryview(data)
        while view:
            found = os.fstat(self._fd)
            if (found.st_dev, found.st_ino) != self._identity:  # the program has closed it, and opened another file
                self._fd = -1
                raise OSError
            written = os.pwrite(self._fd, view, offset)
            view, offset = view[written:], offset + written

    def _open(self) -> None:
        make_folder(self.path.parent)
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | getattr(os, "O_NOFOLLOW", 0)
        low = os.open(self.path, flags, 0o600)
        self._fd = low
        with suppress(OSError):  # the limit of descriptors is lower
            self._fd = fcntl.fcntl(low, fcntl.F_DUPFD_CLOEXEC, _LOWEST)
            os.close(low)
        found = os.fstat(self._fd)
        self._identity = (found.st_dev, found.st_ino)
        self._write_at(unfinished.header(0, 0), 0)

    def _close(self) -> None:
        with suppress(OSError):
            found = os.fstat(self._fd)
            if self._fd >= 0 and (found.st_dev, found.st_ino) == self._identity:
                os.close(self._fd)
        self._fd = -1

    def remove(self) -> None:
        """Remove the file, and the folder if nothing else is in it."""
        if self.has_file:
            self._identity = None  # the system may give the number of this file to the next one at its path
            with suppress(OSError):
                self.path.unlink()
                self.path.parent.rmdir()
