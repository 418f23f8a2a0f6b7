"""The devices this process has opened: a port, its allocator and its queues. Opened on first use, once."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from forebay import backends
from forebay._core import Block
from forebay.backends.plugins.close_with_timeout import closed_if_it_fails
from forebay.device_spec import Device
from forebay.errors import DeviceError, ForebayError, Forked, Unsupported, WrongState, complain
from forebay.runtime.allocator import oom_observers, pluggable_allocator
from forebay.runtime.allocator.caching_allocator import Allocator
from forebay.runtime.allocator.heap_allocator import HeapAllocator
from forebay.runtime.allocator.pending_frees import Order
from forebay.runtime.allocator.private_pools import PoolId
from forebay.runtime.allocator.segment_allocator import SegmentAllocator
from forebay.runtime.allocator.torch_iteration_order import of_pools, of_streams
from forebay.runtime.allocator.uncached import UncachedBlock
from forebay.runtime.base import capture_state, lazy_init, observers
from forebay.runtime.devices import retired_devices
from forebay.runtime.devices.stream_pool import StreamPool
from forebay.runtime.history import recording
from forebay.runtime.pinned import registered_memory
from forebay.runtime.pinned.pinned_allocator import PinnedAllocator
from forebay.runtime.settings import process_settings
from forebay.runtime.settings.allocator_settings import DEFAULT, AllocatorSettings
from forebay.spi import PinnedHost, Port, Queue, Reopens, Resizable

if TYPE_CHECKING:
    from forebay.runtime.streams.stream import Stream

__all__ = [
    "Kept",
    "OpenDevice",
    "Opened",
    "abandon_in_child",
    "device_count",
    "end_kind",
    "open_device",
    "opened_if",
    "opened_indices",
    "opened_of",
    "pinned_if",
    "reopen",
]

_opened: dict[Device, OpenDevice] = {}
_pinned: dict[str, PinnedAllocator] = {}  # by kind, over the port of the device that was asked first
_listed: dict[str, Opened] = {}  # what `opened_of` gave; a new dict when a device comes or goes
_opening = threading.RLock()


@dataclass(eq=False, slots=True)
class Kept:
    """What queued work reads or writes; the work is done at the tick, 0 while it is not known."""

    objects: tuple[object, ...]
    tick: int = 0


class OpenDevice:
    """One device in use. Its queues live as long as it does: a stream that goes lends its queue to the next one."""

    def __init__(self, device: Device, port: Port, settings: AllocatorSettings = DEFAULT) -> None:
        self.device, self.port = device, port
        self.kind = device.kind  # of one that is gone: none
        self.gone = ""  # why it cannot be used any more: "forked", or "ended" with its emulation
        self._spare: dict[int, list[Queue]] = {}
        self.queues: dict[int, Queue] = {}
        self.default_queue = self.new_queue(0)
        self._kept: dict[int, deque[Kept]] = {}
        self.default_stream: Stream | None = None
        self.stream_pool = StreamPool.of(port.props, self.new_queue)
        self.allocator = self._allocator(settings)
        self._capacity: int | None = None  # if it was set
        self.plugged = pluggable_allocator.current(device.kind)  # who serves instead of the allocator
        self.raw: dict[int, Block | UncachedBlock] = {}  # by address: blocks that a program has only the address of

    def _allocator(self, settings: AllocatorSettings) -> Allocator:
        name, orders, heaps = str(self.device), self._orders(), self.port.props.heaps
        if heaps is not None:
            return HeapAllocator(name, self.port, heaps, self.queues, settings, orders)
        return SegmentAllocator(name, self.port, self.queues, settings, orders)

    def _orders(self) -> tuple[Callable[[], Order[int]], Callable[[], Order[PoolId]]]:
        pool = self.stream_pool
        if pool is None:
            return set[int], set[PoolId]
        return lambda: of_streams(self.device.index or 0, pool.id_of), of_pools

    @property
    def pinned(self) -> PinnedAllocator:
        """Pinned host memory, which the devices of a kind share. Raises Unsupported where they lend none."""
        found = _pinned.get(self.device.kind)
        if found is None:
            if not isinstance(self.port, PinnedHost):
                raise Unsupported(f"{self.device.kind} lends no pinned host memory", ability="PinnedHost")
            made = PinnedAllocator(str(self.device), self.port, process_settings.current)
            found = _pinned.setdefault(self.device.kind, made)
            if found is made:
                recording.follow_pinned(self.device.kind, made.history)
        return found

    def set_capacity(self, nbytes: int) -> None:
        if not isinstance(self.port, Resizable):
            raise Unsupported(f"the memory of {self.device} is what it is", ability="Resizable")
        self.port.set_capacity(nbytes)
        self._capacity = nbytes
        self.allocator.capacity_changed()

    def go(self, why: str) -> None:
        self.gone, self.kind = why, ""

    def abandon(self) -> None:
        """In a forked child, when it is gone: who holds its allocator goes on with other memory, as NumPy does."""
        port = self.port
        if isinstance(port, Reopens):
            port.abandon()
            port = backends.driver(self.device.kind).open(self.device.index or 0)
            if self._capacity is not None and isinstance(port, Resizable):
                port.set_capacity(self._capacity)
        self.allocator.abandon_queues(port)

    def check(self) -> None:
        """Forked in a child of the process that opened it, WrongState after the end of its emulation."""
        if not self.gone:
            return
        if self.gone == "ended":
            raise WrongState(f"the emulation that {self.device} belonged to has ended, and what was made there with it")
        lazy_init.of(self.device.kind).check_fork()
        remedy = f" or call forebay.reopen('{self.device}')" if isinstance(self.port, Reopens) else ""
        if _opened.get(self.device) is not self:
            remedy = "; it was reopened since, and what is of before stays unusable"
        raise Forked(
            f"{self.device} was opened before this process was forked, and its queues did not come along: "
            f"open devices after the fork, start processes with the 'spawn' method{remedy}"
        )

    def new_queue(self, priority: int) -> Queue:
        queue = self.port.queue(priority)
        self.queues[queue.handle] = queue
        for listener in observers.listeners:
            listener.stream_created(self, queue)
        return queue

    def borrow_queue(self, priority: int) -> Queue:
        """A queue that nobody else's stream has, or the next one of the pool."""
        if self.stream_pool is not None:
            return self.stream_pool.next(priority)
        try:
            return self._spare[priority].pop()
        except (KeyError, IndexError):
            return self.new_queue(priority)

    def return_queue(self, queue: Queue, priority: int) -> None:
        if self.stream_pool is None:
            self._spare.setdefault(priority, []).append(queue)

    @contextmanager
    def keeping(self, queue: Queue, *objects: object) -> Iterator[Kept]:
        """Keep what the work queued inside reads or writes alive until it is done, whatever interrupts us meanwhile.

        What a graph records may be done as long as there is the graph.
        """
        if capture_state.under_way and (capture := capture_state.capture_of(queue)) is not None:
            capture.recording.retain(*objects)
            yield Kept(objects)
            return
        self._drop_kept(queue)
        kept = Kept(objects)
        self._kept.setdefault(queue.handle, deque()).append(kept)
        try:
            yield kept
        finally:
            kept.tick = capture_state.signal(queue)

    def _drop_kept(self, queue: Queue) -> None:
        kept = self._kept.get(queue.handle)
        while kept:
            try:
                first = kept.popleft()
            except IndexError:  # another thread was quicker
                return
            if first.tick == 0 or queue.reached() < first.tick:
                kept.appendleft(first)
                return

    def wait(self, queue: Queue, tick: int | None = None) -> None:
        """The host waits, for the tick or for all that is queued; a failure of that work is raised, once.

        DeviceError where a capture minds that.
        """
        if capture_state.under_way:
            capture_state.forbid(self.device.kind, "synchronize")
        if tick is None:  # to signal an idle queue would start its thread, or find it closed
            tick = queue.reached() if queue.idle() else queue.signal()
        if observers.tracer is None:
            queue.wait(tick)
        else:
            observers.wait(queue, tick)
        self._drop_kept(queue)
        if (failure := self.allocator.failures.pop(queue.handle, None)) is not None:
            raise failure

    def synchronize(self) -> None:
        """Wait for all queues; of several failures the first is raised, with the others as its notes."""
        if capture_state.under_way:
            capture_state.forbid(self.device.kind, "synchronize")
        first: DeviceError | None = None
        for queue in tuple(self.queues.values()):
            try:
                self.wait(queue)
            except DeviceError as failure:
                if first is None:
                    first = failure
                else:
                    first.add_note(f"and {failure}")
        for listener in observers.listeners:
            listener.device_synchronized(self)
        if first is not None:
            raise first


def device_count(kind: str) -> int:
    """How many devices of the kind there are; 0 for an unknown kind. Opens nothing."""
    return 0 if (driver := backends.drivers().get(kind)) is None else driver.count()


def open_device(device: Device) -> OpenDevice:
    """The device, opened if it is not yet.

    Raises Forked in a child of the process that opened it, and ForebayError where there is no such device.
    """
    global _listed  # noqa: PLW0603 -- a new one after a change: what another thread lists meanwhile goes with the old one
    found = _opened.get(device)
    if found is None:
        _check_there(device)
        lazy_init.of(device.kind).ensure()  # no lock is held: what was queued may open devices
        with _opening:
            found = _opened.get(device)
            if found is None:  # a signal handler or a destructor may open it meanwhile
                try:
                    found = _opened.setdefault(device, _open(device))
                finally:  # Ctrl-C does not come first
                    _listed = {}
    if found.gone:
        found.check()
    return found


def opened_if(device: Device) -> OpenDevice | None:
    """The device, if this process has opened it."""
    found = _opened.get(device)
    return None if found is None or found.gone else found


def opened_indices(kind: str) -> list[int]:
    """Of the kind's devices, those that this process has opened."""
    return [opened.device.index or 0 for opened in opened_of(kind).devices]


def _check_there(device: Device) -> None:
    driver = backends.driver(device.kind)
    count = driver.count()
    if device.index is None or device.index >= count:
        there = f"{device.kind}:0" if count == 1 else f"{device.kind}:0 to {device.kind}:{count - 1}"
        raise ForebayError(f"no device {device}: {driver.why_not() or f'there is only {there}'}")


def _open(device: Device) -> OpenDevice:
    settings = process_settings.current()  # before the device is open, as it may be nonsense
    with closed_if_it_fails(backends.driver(device.kind).open(device.index or 0)) as port:
        opened = OpenDevice(device, port, settings)
        process_settings.follow(opened.allocator)
        recording.follow(device.kind, opened.allocator)
        oom_observers.follow(device.kind, opened.allocator)
    return opened


@dataclass(frozen=True, slots=True)
class Opened:
    """Devices that this process has opened, by index, and the allocators of those that no plugged one serves."""

    devices: tuple[OpenDevice, ...]
    native: tuple[Allocator, ...]


def opened_of(kind: str = "") -> Opened:
    """Those of the kind; of all kinds, if none is named."""
    listed = _listed
    try:
        return listed[kind]
    except KeyError:
        mine = (each for each in tuple(_opened.values()) if not each.gone and kind in ("", each.kind))
        devices = tuple(sorted(mine, key=lambda opened: opened.device.index or 0))
        found = Opened(devices, tuple(each.allocator for each in devices if each.plugged is None))
        return listed.setdefault(kind, found)


def pinned_if(kind: str) -> PinnedAllocator | None:
    """The kind's pinned allocator, if anybody has used it."""
    return _pinned.get(kind)


def end_kind(kind: str) -> None:
    """Nothing of the kind is open any more, and what was is unusable."""
    global _listed  # noqa: PLW0603 -- as above
    capture_state.abandon(kind)
    with _opening:
        try:
            ended = [_opened.pop(device) for device in tuple(_opened) if device.kind == kind]
        finally:  # as above
            _listed = {}
        pinned = _pinned.pop(kind, None)
    registered_memory.end_kind(kind)
    with ExitStack() as steps:  # each of them, though the wait for one was interrupted
        if pinned is not None:
            steps.callback(pinned.close)
        for opened in reversed(ended):
            steps.callback(retired_devices.end, opened)


def _reopening() -> frozenset[str]:
    """The kinds of which every open device can be opened again in a forked child."""
    stay = {device.kind for device, opened in _opened.items() if not isinstance(opened.port, Reopens)}
    return frozenset({device.kind for device in _opened} - stay)


def reopen(device: Device) -> None:
    """Forget a device of before the fork, so that its next use opens it."""
    global _listed  # noqa: PLW0603 -- as above
    with _opening:
        found = _opened.get(device)
        if found is None or not found.gone:
            return
        if not isinstance(found.port, Reopens):
            raise Forked(f"{device} cannot be opened again in a forked process: use the 'spawn' method")
        del _opened[device]
        _listed = {}


def abandon_in_child() -> None:
    """For the fork handler: no queue thread came along, so nothing of what was open may be waited for."""
    global _opening, _listed  # noqa: PLW0603 -- another thread of the parent may have held the old one
    _opening = threading.RLock()
    capture_state.forget_in_child()
    for pinned in _pinned.values():
        pinned.abandon()
    _pinned.clear()
    registered_memory.forget_in_child()
    retired_devices.forget_in_child()
    observers.forget_in_child()
    for device in _opened.values():
        device.go("forked")
    _listed = {}
    lazy_init.forget_in_child(_reopening())
    for device in _opened.values():
        try:
            device.abandon()
        except Exception as error:  # noqa: BLE001 -- a fork handler has nobody to raise to
            complain(f"the forked process could not let go of {device.device}: {error}")
