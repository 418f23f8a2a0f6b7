"""The devices this process has opened: a port, its allocator and its queues. Opened on first use, once."""

from __future__ import annotations

import threading
import time
from collections import deque
from typing import TYPE_CHECKING

from penstock import backends
from penstock.device import Device
from penstock.errors import Forked, PenstockError
from penstock.runtime.allocator import Allocator
from penstock.spi import Port, Queue, Reopens

if TYPE_CHECKING:
    from penstock.runtime.stream import Stream

__all__ = ["OpenDevice", "device_count", "open_device", "opened", "reopen"]

_opened: dict[Device, OpenDevice] = {}
_opening = threading.RLock()


class OpenDevice:
    """One device in use. Its queues live as long as it does: a stream that goes lends its queue to the next one."""

    def __init__(self, device: Device, port: Port) -> None:
        self.device = device
        self.port = port
        self.forked = False
        self._spare: dict[int, list[Queue]] = {}
        self.queues: dict[int, Queue] = {}
        self.default_queue = self._new_queue(0)
        self._kept: dict[int, deque[tuple[int, object]]] = {}
        self.default_stream: Stream | None = None
        self.allocator = Allocator(str(device), port, self.queues)

    def _new_queue(self, priority: int) -> Queue:
        queue = self.port.queue(priority)
        self.queues[queue.handle] = queue
        return queue

    def borrow_queue(self, priority: int) -> Queue:
        try:
            return self._spare[priority].pop()
        except (KeyError, IndexError):
            return self._new_queue(priority)

    def return_queue(self, queue: Queue, priority: int) -> None:
        self._spare.setdefault(priority, []).append(queue)

    def keep(self, queue: Queue, objects: object) -> None:
        """Keep what work just queued reads or writes alive until that work is done."""
        self.drop_kept(queue)
        self._kept.setdefault(queue.handle, deque()).append((queue.signal(), objects))

    def drop_kept(self, queue: Queue) -> None:
        kept = self._kept.get(queue.handle)
        while kept and queue.reached() >= kept[0][0]:
            kept.popleft()

    def synchronize(self) -> None:
        for queue in tuple(self.queues.values()):
            if not queue.idle():
                queue.wait(queue.signal())
            self.drop_kept(queue)


def device_count(kind: str) -> int:
    """How many devices of the kind there are; 0 for an unknown kind. Opens nothing."""
    driver = backends.drivers().get(kind)
    return 0 if driver is None else driver.count()


def open_device(device: Device) -> OpenDevice:
    """The device, opened if it is not yet.

    Raises Forked in a child of the process that opened it, and PenstockError where there is no such device.
    """
    found = _opened.get(device)
    if found is None:
        with _opening:
            found = _opened.get(device)
            if found is None:
                found = _opened[device] = _open(device)
    if found.forked:
        remedy = f" or call penstock.reopen('{device}')" if isinstance(found.port, Reopens) else ""
        raise Forked(
            f"{device} was opened before this process was forked, and its queues did not come along: "
            f"open devices after the fork, start processes with the 'spawn' method{remedy}"
        )
    return found


def _open(device: Device) -> OpenDevice:
    driver = backends.driver(device.kind)
    count = driver.count()
    if device.index is None or device.index >= count:
        reason = driver.why_not() or f"there is only host:0 to host:{count - 1}".replace("host", device.kind)
        raise PenstockError(f"no device {device}: {reason}")
    return OpenDevice(device, driver.open(device.index))


def reopen(device: Device) -> None:
    """Forget a device of before the fork, so that its next use opens it."""
    with _opening:
        found = _opened.get(device)
        if found is None or not found.forked:
            return
        if not isinstance(found.port, Reopens):
            raise Forked(f"{device} cannot be opened again in a forked process: start processes with the 'spawn' method")
        del _opened[device]


def opened() -> tuple[OpenDevice, ...]:
    return tuple(_opened.values())


def abandon_in_child() -> None:
    """For the fork handler: no queue thread came along, so nothing of what was open may be waited for."""
    global _opening
    _opening = threading.RLock()  # another thread of the parent may have held it
    for device in _opened.values():
        device.forked = True
        if isinstance(device.port, Reopens):
            device.port.abandon()


def close_queues(seconds: float) -> int:
    """For the exit handler: let queued work finish while Python still runs. Gives how many queues could not.

    Memory stays: arrays may outlive us.
    """
    end = time.monotonic() + seconds
    queues = [queue for device in _opened.values() if not device.forked for queue in device.queues.values()]
    return sum(not queue.close(max(end - time.monotonic(), 0.0)) for queue in queues)
