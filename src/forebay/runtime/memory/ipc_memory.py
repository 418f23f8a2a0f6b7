"""Device memory shared between processes: sending, receiving, and releasing what was returned.

Each send creates a lease: the sender keeps the memory allocated until the receiver returns the lease or exits. The
lease has an event, for which the receiver's stream waits. (torch/csrc/CudaIPCTypes.h)
"""

from __future__ import annotations

import os
from collections import OrderedDict
from typing import Any, NamedTuple
from weakref import WeakValueDictionary

from forebay._base.device_spec import Device
from forebay.backends.common._disposal import Disposable
from forebay.backends.common.shared_slots import Lease
from forebay.errors import DeviceError, ForebayError, Unsupported, WrongState, warn_unraisable
from forebay.runtime.base import capture_state
from forebay.runtime.devices import current
from forebay.runtime.devices.open_device import OpenDevice
from forebay.runtime.devices.sharing_port import sharing_port
from forebay.runtime.memory.storage import Storage, StreamOrderedOwner
from forebay.runtime.streams.stream import current_stream_for
from forebay.spi import Queue, Shares

__all__ = [
    "StorageHandle",
    "after_fork_in_child",
    "collect",
    "outstanding_count",
    "receive",
    "reset_kind",
    "send",
    "was_received",
]

_EXPANDABLE_ERROR = (
    "Tensors allocated with expandable_segments:True cannot be shared between processes. "
    "Consider using expandable_segments:False in data loading workers via "
    "forebay.memory.set_allocator_settings('expandable_segments:False')"
)
_RECEIVED_ERROR = (
    "Attempted to send {kind} tensor received from another process; this is not currently supported. "
    "Consider cloning before sending."
)
_MIN_COLLECT_THRESHOLD = 64  # outstanding leases before a send looks for returned ones
_MAX_CACHED_MAPPINGS = 8  # of received segments, also unused ones: the next tensor is likely to be in one


class StorageHandle(NamedTuple):
    """Handle of sent memory, for `receive` in another process (PyTorch: `storage._share_cuda_()`)."""

    device: Device
    handle: bytes | None  # of the segment; None for an empty storage
    nbytes: int
    offset: int  # bytes from the start of the segment
    lease: bytes | None
    event: int  # the record of the lease's event that the receiver's stream waits for
    event_sync_required: bool


_outstanding: dict[Lease, Storage] = {}  # sent and not returned yet
_collect_threshold = _MIN_COLLECT_THRESHOLD


def send(storage: Storage) -> StorageHandle:
    """Return a handle with which one other process can receive the memory, once.

    The receiver's stream waits for the work queued on this thread's current stream and on the stream that allocated
    the memory. The first send of a segment waits until the segment's pending work is done. Raises Unsupported if the
    memory cannot be shared.
    """
    opened = storage.opened
    opened.check()
    if storage.nbytes == 0:
        return StorageHandle(opened.device, None, 0, 0, None, 0, False)
    if was_received(storage):
        raise ForebayError(_RECEIVED_ERROR.format(kind=opened.device.kind.upper()))
    port = sharing_port(opened)
    if storage.block is None:
        raise Unsupported(f"memory that {opened.device} does not own cannot be shared", ability="Shares")
    if len(_outstanding) >= _collect_threshold:
        _release_returned()
    queue = _queue_to_wait_for(opened, storage)
    try:
        handle, offset = port.share(storage.address)
    except Unsupported as error:
        if error.ability == "Growable":
            raise Unsupported(_EXPANDABLE_ERROR, ability="Shares") from None
        raise
    lease = Lease.create()
    event = 0
    if queue is not None:
        with opened.keep_alive(queue, lease):
            event = lease.record(queue)
    _outstanding[lease] = storage
    if _release_returned not in opened.allocator.free_memory_callbacks:
        opened.allocator.free_memory_callbacks.append(_release_returned)
    return StorageHandle(opened.device, handle, storage.nbytes, offset, lease.handle, event, event > 0)


def _queue_to_wait_for(opened: OpenDevice, storage: Storage) -> Queue | None:
    """Return the queue after whose pending work the memory has the sender's data; None if no work is pending.

    The allocating stream counts too, as a multiprocessing.Queue sends from a thread with another current stream.
    """
    queue = current_stream_for(opened).queue
    block = storage.block
    allocated_on = None if block is None else opened.queue_with_handle(block.queue)
    allocating = queue if allocated_on is None else allocated_on
    for used in (queue, allocating):
        capture_state.forbid_on(used, opened.device.kind, "send")
    if allocating is queue or allocating.idle():
        return None if queue.idle() else queue
    if not queue.idle():
        allocating.wait_for(queue, queue.signal())
    return allocating


def collect() -> None:
    """Release leases that were returned or whose receiver exited, and unmap received segments that are unused.

    Does not block. Keeps memory that was sent but not received yet. (`torch.cuda.ipc_collect`)
    """
    _release_returned()
    _mappings.clear()


def _release_returned() -> bool:
    """Release the leases that are over; also an out-of-memory callback. Return True if there were any."""
    global _collect_threshold  # noqa: PLW0603 -- grows with the outstanding leases, so that checking them costs O(1) per send
    over = [lease for lease in tuple(_outstanding) if lease.is_over()]
    for lease in over:
        _outstanding.pop(lease, None)
    _collect_threshold = max(_MIN_COLLECT_THRESHOLD, 2 * len(_outstanding))
    return bool(over)


def reset_kind(kind: str) -> None:
    """Drop the kind's leases and all cached mappings when its devices are closed; receivers keep their memory."""
    for lease, storage in tuple(_outstanding.items()):
        if storage.opened.device.kind == kind:
            _outstanding.pop(lease, None)
    _mappings.clear()


def was_received(storage: Storage) -> bool:
    """Return True if the memory belongs to another process."""
    return isinstance(storage.owner, _ReceivedMemory)


def outstanding_count() -> int:
    """Return the number of sends that, as far as is known, were not returned yet."""
    return len(_outstanding)


class _Mapping(Disposable):
    """A mapped segment of another process, unmapped by the destructor."""

    def __init__(self, port: Shares, handle: bytes) -> None:
        self.process = 0
        self._port = port
        self.address, self.nbytes = port.open_shared(handle)
        self.process = os.getpid()
        self.page: object = None  # of the last lease, kept mapped: the next lease is likely to be on it

    def _dispose(self) -> None:
        if self.process == os.getpid():
            try:
                self._port.close_shared(self.address)
            except (WrongState, DeviceError):
                pass  # closing the port has unmapped the segment, or an interrupted call of this function
            except ForebayError as error:
                warn_unraisable(f"memory of another process could not be unmapped: {error}")
            self.process = 0


_mappings: OrderedDict[tuple[int, bytes], _Mapping] = OrderedDict()  # least recently used first
# Of devices whose segments must be closed before their owner releases them: these are not kept while unused.
_used_mappings: WeakValueDictionary[tuple[int, bytes], _Mapping] = WeakValueDictionary()


def _get_mapping(opened: OpenDevice, handle: bytes) -> _Mapping:
    key = id(opened), handle
    if opened.port.props.closes_before_release:
        used = _used_mappings.get(key)
        if used is None:
            used = _used_mappings[key] = _Mapping(sharing_port(opened), handle)
        return used
    mapping = _mappings.pop(key, None)
    if mapping is None:
        mapping = _Mapping(sharing_port(opened), handle)
    _mappings[key] = mapping
    while len(_mappings) > _MAX_CACHED_MAPPINGS:
        try:
            _mappings.popitem(last=False)
        except KeyError:  # another thread was faster
            break
    return mapping


class _Closing(Disposable):
    """A mapping that is closed, and then its lease returned, by the destructor."""

    def __init__(self, mapping: _Mapping, lease: Lease) -> None:
        self._process = os.getpid()
        self._mapping: _Mapping | None = mapping
        self._lease = lease

    def _dispose(self) -> None:
        if hasattr(self, "_lease") and self._process == os.getpid():
            self._mapping = None
            self._lease.return_memory()


class _ReceivedMemory(StreamOrderedOwner, Disposable):
    """Owner of received memory. Its destructor returns the lease after the pending work of the streams that use it.

    The sender also detects when this process exits.
    """

    def __init__(self, opened: OpenDevice, mapping: _Mapping, lease: Lease, queue: int) -> None:
        self.process = os.getpid()
        self._opened = opened
        closes = opened.port.props.closes_before_release
        self._closing = _Closing(mapping, lease) if closes else None
        self._mapping = None if closes else mapping
        self._lease = lease
        self._handles = {queue}  # of the queues that use the memory

    def record_stream(self, queue: int) -> None:
        self._handles.add(queue)

    def _dispose(self) -> None:
        if not hasattr(self, "_handles") or self.process != os.getpid():  # the parent returns the lease
            return
        try:
            self._return_lease()
        except ForebayError as error:
            warn_unraisable(f"memory of another process could not be returned: {error}")

    def _return_lease(self) -> None:
        handles = () if self._opened.unusable else self._handles
        used = [queue for handle in handles if (queue := self._opened.queue_with_handle(handle)) is not None]
        busy = [queue for queue in used if capture_state.capture_of(queue) is None and not queue.idle()]
        if not busy:
            if self._closing is None:
                self._lease.return_memory()
            return
        last = busy.pop()
        for queue in busy:
            last.wait_for(queue, queue.signal())
        if self._closing is not None:  # the sender gets the memory back when the runtime drops what it keeps alive
            with self._opened.keep_alive(last, self._closing):
                return
        with self._opened.keep_alive(last, self._mapping, self._lease):
            self._lease.return_memory(last)


def receive(sent: StorageHandle) -> Storage:
    """Map the memory and make the current stream wait for the sender's. Raise WrongState if it was received before.

    Work on another stream needs `Tensor.record_stream`, as with this process's own memory.
    """
    opened = current.opened_for(sent.device)
    if sent.handle is None:
        return Storage(opened, 0, 0, None)
    stream = current_stream_for(opened)
    capture_state.forbid_on(stream.queue, opened.device.kind, "receive")
    lease = Lease.open(sent.lease, str(opened.device))
    try:
        mapping = _get_mapping(opened, sent.handle)
    except DeviceError as error:  # the driver may have no text for it
        lease.check_owner(str(opened.device))
        raise error from None
    if sent.offset < 0 or sent.nbytes <= 0 or sent.offset + sent.nbytes > mapping.nbytes:
        raise DeviceError("invalid argument: the memory is not within its segment", code=1, call="receive")
    if not lease.borrow():
        raise WrongState("this handle was received already: send the memory once per receiver")
    mapping.page = lease.page
    borrowed = _ReceivedMemory(opened, mapping, lease, stream.handle)
    if sent.event_sync_required and not lease.reached(sent.event):
        with opened.keep_alive(stream.queue, lease):
            lease.wait_for(stream.queue, sent.event)
    return Storage(opened, sent.nbytes, mapping.address + sent.offset, borrowed)


def after_fork_in_child() -> None:
    """Clear leases and mappings in a forked child, without running their destructors: both belong to the parent."""
    global _parents  # noqa: PLW0603 -- keeps them alive
    _parents = (dict(_outstanding), dict(_mappings), dict(_used_mappings))
    _outstanding.clear()
    _mappings.clear()
    _used_mappings.clear()


_parents: Any = None
