"""Open devices of this process: port, allocator and queues. Each device is opened once, on first use."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from forebay import backends
from forebay._base.device_spec import Device, canonical
from forebay._core import Block
from forebay.backends.common._disposal import move_all
from forebay.backends.common.cuda_errors import INVALID_DEVICE, accelerator_error
from forebay.backends.plugins.close_with_timeout import close_on_error
from forebay.errors import DeviceError, ForebayError, Forked, Unsupported, ended_error, warn_unraisable
from forebay.runtime.allocator import oom_observers, pluggable_allocator
from forebay.runtime.allocator.caching_allocator import UNORDERED, Allocator, IterationOrders
from forebay.runtime.allocator.heap_allocator import HeapAllocator
from forebay.runtime.allocator.metrics import RESERVED_BYTES
from forebay.runtime.allocator.segment_allocator import SegmentAllocator
from forebay.runtime.allocator.torch_iteration_order import pool_set, stream_set
from forebay.runtime.allocator.uncached import UncachedBlock
from forebay.runtime.base import capture_state, lazy_init, observers
from forebay.runtime.base.deferred_frees import DeferredFrees, KeepAlive
from forebay.runtime.devices.idle_release import IdleRelease
from forebay.runtime.devices.stream_pool import StreamPool
from forebay.runtime.history import recording
from forebay.runtime.pinned import history as pinned_history
from forebay.runtime.pinned import registered_memory
from forebay.runtime.pinned.pinned_allocator import PinnedAllocator
from forebay.runtime.settings import process_settings
from forebay.runtime.settings.allocator_settings import DEFAULT, AllocatorSettings
from forebay.spi import ExternalQueues, PinnedHost, Port, Queue, ReportsIdle, Resizable, SurvivesFork

if TYPE_CHECKING:
    from forebay.runtime.streams.stream import Stream

__all__ = [
    "BEFORE_OPENING",
    "WHEN_OPENED",
    "OpenDevice",
    "OpenDevices",
    "after_fork_in_child",
    "before_fork",
    "count_emptied",
    "device_count",
    "emptied",
    "get_open_device",
    "get_pinned_allocator",
    "named_devices",
    "open_device",
    "open_device_indices",
    "open_devices",
    "pinned_allocator",
    "pinned_allocators",
    "remove_kind",
]

BEFORE_OPENING: list[Callable[[], object]] = []  # called before each device is opened
WHEN_OPENED: list[Callable[[OpenDevice], object]] = []  # called with each device that was opened, before its first use

_opened: dict[Device, OpenDevice] = {}
_pinned: dict[str, PinnedAllocator] = {}  # by kind; uses the port of the device that asked first
_emptied: dict[Device, int] = {}  # calls of `count_emptied` for devices that are not open
_early_ports: dict[Device, Port] = {}  # of devices that are not open, but whose port has pinned memory
_named: dict[str, dict[int | str, OpenDevice]] = {}  # by kind; see `named_devices`
_listed: dict[str, OpenDevices] = {}  # results of `open_devices` by kind; replaced when a device is opened or retired
_opening = threading.RLock()


class OpenDevice:
    """One open device. Its queues live as long as it does: a destroyed stream's queue is reused by a new stream."""

    device: Device
    port: Port

    def __init__(self, device: Device, port: Port, settings: AllocatorSettings = DEFAULT) -> None:
        self.device, self.port = device, port
        self.kind: str = device.kind  # "" once the device is unusable
        self.unusable: str = ""  # why the device is unusable: "forked", or "ended" with its emulation; "" while usable
        self._spare: dict[int, list[Queue]] = {}
        self.queues: dict[int, Queue] = {}  # that forebay created, by handle
        self.external_queues: dict[int, Queue] = {}  # that other libraries created and may destroy, by handle
        self._external: ExternalQueues | None = port if isinstance(port, ExternalQueues) else None
        self.default_queue: Queue = self.new_queue(0)
        self._all_settled: Callable[[], bool] = port.settled if isinstance(port, ReportsIdle) else lambda: False
        self._kept_alive = DeferredFrees[tuple[object, ...]]()
        self.default_stream: Stream | None = None
        self.own_pinned: PinnedAllocator | None = None  # the kind's pinned allocator, if it uses this port
        self.stream_pool: StreamPool | None = StreamPool.for_device(port.props, self.new_queue)
        self.allocator: Allocator = self._make_allocator(settings)
        self._failures: dict[int, DeviceError] = self.allocator.failures  # attributes of the native class are slow
        self.allocator.external_queues = self.external_queues
        self.idle_release: IdleRelease | None = self._watch_idle_memory()
        self.pluggable: pluggable_allocator.AllocatorFunctions | None = pluggable_allocator.current(
            device.kind
        )  # replaces the allocator, if any
        self.raw_blocks: dict[
            int, Block | UncachedBlock
        ] = {}  # by address: blocks that the program knows only by address

    def _make_allocator(self, settings: AllocatorSettings) -> Allocator:
        name, orders, heaps = str(self.device), self._iteration_orders(), self.port.props.heaps
        if heaps is not None:
            return HeapAllocator(name, self.port, heaps, self.queues, settings, orders)
        return SegmentAllocator(name, self.port, self.queues, settings, orders)

    def _watch_idle_memory(self) -> IdleRelease | None:
        idle = self.allocator.idle
        if idle is None:
            return None
        release = IdleRelease(idle)
        idle.watch = release.start
        return release

    def _iteration_orders(self) -> IterationOrders:
        pool = self.stream_pool
        if pool is None:  # the handles are not PyTorch's: Note [Order of iteration]
            return UNORDERED
        return lambda: stream_set(self.device.index or 0, pool.stream_id_of), pool_set

    @property
    def pinned(self) -> PinnedAllocator:
        """The pinned host memory allocator that all devices of the kind share. Raises Unsupported if there is none."""
        found = _pinned.get(self.device.kind)
        if found is None:
            found, own = _make_pinned(self.device, self.port)
            self.own_pinned = found if own else None
        return found

    def has_memory_in_use(self) -> bool:
        """Return True if memory of the port is reserved for the device, or is pinned memory in use."""
        if self.allocator.current(RESERVED_BYTES):
            return True
        return self.own_pinned is not None and self.own_pinned.in_use()

    def set_capacity(self, nbytes: int) -> None:
        """Set the device's memory capacity in bytes. Raises Unsupported if the port is not Resizable."""
        if not isinstance(self.port, Resizable):
            raise Unsupported(f"{self.device}: memory capacity cannot be changed", ability="Resizable")
        self.port.set_capacity(nbytes)
        self.allocator.capacity_changed()

    def mark_unusable(self, reason: str) -> None:
        self.unusable, self.kind = reason, ""

    def after_fork_in_child(self) -> None:
        """Continue in a forked child if the port does, with a new pinned allocator. Otherwise become unusable."""
        self.own_pinned = None
        if self.idle_release is not None:
            self.idle_release.after_fork_in_child()
        if not isinstance(self.port, SurvivesFork):
            self.mark_unusable("forked")
        else:
            try:
                self.port.after_fork_in_child()
            except BaseException:
                self.mark_unusable("forked")
                raise
        self.allocator.after_fork_in_child(usable=not self.unusable)

    def check(self) -> None:
        """Raise Forked in a child of the process that opened the device, WrongState after its emulation has ended."""
        if not self.unusable:
            return
        if self.unusable == "ended":
            raise ended_error(str(self.device))
        lazy_init.get(self.device.kind).check_fork()
        raise Forked(
            f"{self.device} was opened before this process was forked and cannot be used in the child process: "
            "open devices after the fork or use the 'spawn' start method"
        )

    def new_queue(self, priority: int) -> Queue:
        """Create a queue."""
        queue = self.port.queue(priority)
        self.queues[queue.handle] = queue
        for listener in observers.registered:
            listener.stream_created(self, queue)
        return queue

    def queue_with_handle(self, handle: int) -> Queue | None:
        """Return the known queue with the driver's handle, or None."""
        found = self.queues.get(handle)
        return self.external_queues.get(handle) if found is None else found

    def wrap_queue(self, handle: int) -> Queue | None:
        """Return the queue with the driver's handle, also one that another library created; None if it cannot exist.

        Raises DeviceError if the handle is not that of a queue of this device.
        """
        own = self.queues.get(handle)
        if own is not None or self._external is None:
            return own
        found = self.external_queues[handle] = self._external.external_queue(handle)
        return found

    def borrow_queue(self, priority: int) -> Queue:
        """Return an unused queue for a new stream of a device without a stream pool."""
        try:
            return self._spare[priority].pop()
        except (KeyError, IndexError):
            return self.new_queue(priority)

    def return_queue(self, queue: list[Queue], priority: int) -> None:
        """Make the queue of a destroyed stream available to new streams, and empty the list. Repeatable."""
        move_all(queue, self._spare.setdefault(priority, []))

    def keep_alive(self, queue: Queue, *objects: object) -> AbstractContextManager[KeepAlive]:
        """Keep the objects alive until the work queued in the context has completed, even if an exception interrupts.

        If the queue is being captured, the graph keeps them alive instead.
        """
        if capture_state.active and (capture := capture_state.capture_of(queue)) is not None:
            capture.recording.retain(*objects)
            return nullcontext(KeepAlive(objects, queue))
        self._kept_alive.discard_reached(queue)
        return self._kept_alive.keep_alive(queue, objects)

    def wait(self, queue: Queue, tick: int | None = None) -> None:
        """Make the host wait for the tick, or for all queued work. Raises each failure of the queue's work once.

        Raises DeviceError (code 900) if an active graph capture forbids waiting.
        """
        if capture_state.active:
            capture_state.forbid(self.device.kind, "synchronize")
        if tick is None:  # signalling an idle queue would start its thread, or fail if it is closed
            tick = queue.reached() if queue.idle() else queue.signal()
        if observers.tracer is None:
            queue.wait(tick)
        else:
            observers.wait(queue, tick)
        if self._kept_alive.fifos:
            self._kept_alive.discard_reached(queue)
        if self._failures and (failure := self._failures.pop(queue.handle, None)) is not None:
            raise failure

    def synchronize(self) -> None:
        """Wait for all queues, and for the work of other libraries unless work is being captured.

        Raises the first failure, with the others attached as notes.
        """
        if capture_state.active:
            capture_state.forbid(self.device.kind, "synchronize")
        first: DeviceError | None = None
        if self._external or self._kept_alive or self._failures or observers.tracer or not self._all_settled():
            first = self._wait_for_all()
        for listener in observers.registered:
            listener.device_synchronized(self)
        if first is not None:
            raise first

    def _wait_for_all(self) -> DeviceError | None:
        """Wait as `synchronize`. Return the first failure, with the others attached as notes."""
        waits: list[Callable[[], None]] = [partial(self.wait, queue) for queue in tuple(self.queues.values())]
        if self._external is not None and not capture_state.is_under_way(self.device.kind):  # which it would break
            waits.append(self._external.synchronize)
            waits += [partial(self._take_failure, queue) for queue in tuple(self.external_queues.values())]
        first: DeviceError | None = None
        for wait in waits:
            try:
                wait()
            except DeviceError as failure:
                if first is None:
                    first = failure
                else:
                    first.add_note(f"and {failure}")
        return first

    def _take_failure(self, queue: Queue) -> None:
        """Raise the failure of a queue's work, if any, without waiting: its stream may not exist any more."""
        self.wait(queue, queue.reached())


def _make_pinned(device: Device, port: Port) -> tuple[PinnedAllocator, bool]:
    """Return the kind's pinned allocator, a new one that uses the port if there is none; True if it is new."""
    if not isinstance(port, PinnedHost):
        raise Unsupported(f"{device.kind} does not provide pinned host memory", ability="PinnedHost")
    made = PinnedAllocator(str(device), port, partial(process_settings.current, common_first=True))
    found = _pinned.setdefault(device.kind, made)
    if found is made:
        pinned_history.start_default(device.kind, made.history)
    return found, found is made


def device_count(kind: str) -> int:
    """Return the number of devices of a kind; 0 for an unknown kind.

    Does not open a device.

    Parameters
    ----------
    kind : str
        The device kind, such as "cpu" or "cuda".

    Examples
    --------
    >>> import forebay
    >>> forebay.device_count("unknown")
    0
    """
    return 0 if (driver := backends.drivers().get(kind)) is None else driver.count()


def open_device(device: Device) -> OpenDevice:
    """Return the device, opening it on first use.

    Raises Forked in a child of the process that opened the device, DeviceError if the device does not exist,
    ForebayError if the kind has no device.
    """
    global _listed  # noqa: PLW0603 -- replaced, not cleared: another thread may be adding to the old dict
    found = _opened.get(device)
    if found is None:
        device = canonical(device)
        found = _opened.get(device)
    if found is None:
        _check_exists(device)
        for prepare in BEFORE_OPENING:
            prepare()
        lazy_init.get(device.kind).ensure()  # without the lock: deferred calls may open devices
        with _opening:
            found = _opened.get(device)
            if found is None:  # a signal handler or destructor of this thread may open it during `_open`
                try:
                    found = _opened.setdefault(device, _open(device))
                    named_devices(device.kind).update({device.index or 0: found, str(device): found})
                finally:  # also on KeyboardInterrupt
                    _listed = {}
    if found.unusable:
        found.check()
    return found


def get_open_device(device: Device) -> OpenDevice | None:
    """Return the device if this process has opened it and it is usable, else None."""
    found = _opened.get(canonical(device))
    return None if found is None or found.unusable else found


def named_devices(kind: str) -> dict[int | str, OpenDevice]:
    """Return the open devices of the kind by index and by name, for fast lookups. In a child they may be unusable."""
    return _named.setdefault(kind, {})


def open_device_indices(kind: str) -> list[int]:
    """Return the indices of the kind's devices that this process has opened."""
    return [opened.device.index or 0 for opened in open_devices(kind).devices]


def _check_exists(device: Device) -> None:
    driver = backends.driver(device.kind)
    count = driver.count()
    if (device.index or 0) >= count:
        if not count:
            raise ForebayError(driver.why_not())
        existing = f"{device.kind}:0" if count == 1 else f"{device.kind}:0 to {device.kind}:{count - 1}"
        note = f"No device {device}: there is only {existing}."
        raise accelerator_error(INVALID_DEVICE, kind=device.kind, call="open", device=str(device), note=note)


def _open(device: Device) -> OpenDevice:
    settings = process_settings.for_devices()  # parsed before the device is opened: it may be invalid
    early = _early_ports.pop(device, None)
    with close_on_error(backends.driver(device.kind).open(device.index or 0) if early is None else early) as port:
        opened = OpenDevice(device, port, process_settings.at_first_use(device.kind))
        opened.allocator.apply_settings(settings)
        opened.allocator.num_sync_all_streams = emptied(device, reset=True)
        opened.own_pinned = None if early is None else _pinned.get(device.kind)
        process_settings.subscribe(opened.allocator)
        recording.start_default(device.kind, opened.allocator)
        oom_observers.attach_all(device.kind, opened.allocator)
        for act in tuple(WHEN_OPENED):
            act(opened)
    return opened


@dataclass(frozen=True, slots=True)
class OpenDevices:
    """Open devices ordered by index, and the native allocators of those without a pluggable allocator."""

    devices: tuple[OpenDevice, ...]
    native: tuple[Allocator, ...]


def open_devices(kind: str = "") -> OpenDevices:
    """Return the open, usable devices of the kind, or of all kinds by default."""
    listed = _listed
    try:
        return listed[kind]
    except KeyError:
        usable = (each for each in tuple(_opened.values()) if not each.unusable and kind in ("", each.kind))
        devices = tuple(sorted(usable, key=lambda opened: opened.device.index or 0))
        found = OpenDevices(devices, tuple(each.allocator for each in devices if each.pluggable is None))
        return listed.setdefault(kind, found)


def count_emptied(kind: str, count: int) -> None:
    """Count an emptying of the caches of all `count` devices for those that are not open and so have no cache."""
    for device in (canonical(Device(kind, index)) for index in range(count)):
        if device not in _opened:
            _emptied[device] = _emptied.get(device, 0) + 1


def emptied(device: Device, *, reset: bool = False) -> int:
    """Return how often `count_emptied` counted the device."""
    return _emptied.pop(device, 0) if reset else _emptied.get(device, 0)


def pinned_allocator(device: Device) -> PinnedAllocator:
    """Return the pinned allocator of the device's kind. Pinning memory does not initialise the kind, as in PyTorch."""
    found = _pinned.get(device.kind)
    if found is not None:
        return found
    opened = _opened.get(device)
    if opened is not None or lazy_init.get(device.kind).bad_fork:
        return open_device(device).pinned
    _check_exists(device)
    with _opening:
        if (opened := _opened.get(device)) is not None:
            return opened.pinned
        port = _early_ports.get(device)
        if port is None:
            port = _early_ports[device] = backends.driver(device.kind).open(device.index or 0)
        return _make_pinned(device, port)[0]


def pinned_allocators() -> tuple[PinnedAllocator, ...]:
    """Return the pinned allocators of all kinds."""
    return tuple(_pinned.values())


def get_pinned_allocator(kind: str) -> PinnedAllocator | None:
    """Return the kind's pinned host memory allocator if it has been created, else None."""
    return _pinned.get(kind)


def remove_kind(kind: str) -> tuple[list[OpenDevice], PinnedAllocator | None]:
    """Remove the open devices of the kind and its pinned allocator from the tables, and return them."""
    global _listed  # noqa: PLW0603 -- as above
    with _opening:
        try:
            for device in [device for device in _early_ports if device.kind == kind]:
                _opened[device] = opened = OpenDevice(device, _early_ports.pop(device))
                opened.own_pinned = _pinned.get(kind)  # its memory may be in use
            ended = [_opened.pop(device) for device in tuple(_opened) if device.kind == kind]
            for device in [device for device in tuple(_emptied) if device.kind == kind]:
                emptied(device, reset=True)
        finally:  # also on KeyboardInterrupt
            _listed = {}
            named_devices(kind).clear()
        return ended, _pinned.pop(kind, None)


def before_fork(seconds: float) -> None:
    """Wait, at most for some time, until the work of the devices that a forked child continues to use has completed."""
    end = time.monotonic() + seconds
    for opened in open_devices().devices:
        if isinstance(opened.port, SurvivesFork):
            opened.port.before_fork(max(end - time.monotonic(), 0.0))


def after_fork_in_child() -> None:
    """Make the devices that do not survive a fork unusable in a forked child, which has no queue threads."""
    global _opening, _listed  # noqa: PLW0603 -- another thread of the parent may have held the old lock
    _opening = threading.RLock()
    capture_state.after_fork_in_child()
    for pinned in _pinned.values():
        pinned.after_fork_in_child()
    _pinned.clear()
    _early_ports.clear()
    registered_memory.after_fork_in_child()
    observers.after_fork_in_child()
    _listed = {}
    for opened in _opened.values():
        try:
            opened.after_fork_in_child()
        except Exception as error:  # noqa: BLE001 -- a fork handler must not raise
            warn_unraisable(f"{opened.device} is unusable in the forked child process: {error}")
    unusable = {device.kind for device, opened in _opened.items() if opened.unusable}
    lazy_init.after_fork_in_child(frozenset({device.kind for device in _opened} - unusable))
