"""Memory and events that several processes have: what is sent, what was received, and what may go again.

Memory that was sent stays with its sender until the receiver is done with it, or gone: that is a lease, one for each
sending. With it comes an event, for which the receiver's stream waits. (torch/csrc/CudaIPCTypes.h)
"""

from __future__ import annotations

import os
import sys
from collections import OrderedDict
from functools import cache
from typing import Any, NamedTuple, cast

from forebay.backends.common.shared_slots import Lease
from forebay.device_spec import Device
from forebay.errors import DeviceError, ForebayError, Unsupported, WrongState, complain
from forebay.runtime.base import capture_state
from forebay.runtime.devices import current
from forebay.runtime.devices.open_device import OpenDevice
from forebay.runtime.memory.storage import InOrder, Storage
from forebay.runtime.streams.stream import stream_of
from forebay.spi import Port, Queue, Shares

__all__ = [
    "Sent",
    "can_share",
    "collect",
    "forget_in_child",
    "forget_kind",
    "receive",
    "send",
    "sent_count",
    "sharing_port",
    "was_received",
]

_GROWS = (
    "Tensors allocated with expandable_segments:True cannot be shared between processes. "
    "Consider using expandable_segments:False in data loading workers via "
    "forebay.memory.set_allocator_settings('expandable_segments:False')"
)
_RECEIVED = (
    "Attempted to send {kind} tensor received from another process; this is not currently supported. "
    "Consider cloning before sending."
)
_ROUND = 64  # so many are sent before it is asked, unasked, what has come back
_MAPPINGS_KEPT = 8  # of segments in which nothing is borrowed any more: the next tensor is likely to come from one


class Sent(NamedTuple):
    """What a receiver must know; PyTorch's `storage._share_cuda_()` tells the same."""

    device: Device
    handle: bytes | None  # of the segment; None for no memory
    nbytes: int
    offset: int  # of the memory in the segment
    lease: bytes | None
    event: int  # the record that the receiver's stream waits for: a word of the lease, which has an event of its own
    event_sync_required: bool


_out: dict[Lease, Storage] = {}  # what was sent, and is not back yet
_enough = _ROUND


def sharing_port(opened: OpenDevice) -> Shares:
    """Unsupported where the device's memory cannot be shared."""
    port = opened.port
    if not can_share(type(port)):
        raise Unsupported(f"the memory of {opened.device} cannot be shared with other processes", ability="Shares")
    return cast("Shares", port)


@cache
def can_share(port: type[Port]) -> bool:
    """Whether ports of that class have the ability; to ask for a protocol takes as long as to send."""
    return issubclass(port, Shares)


def send(storage: Storage) -> Sent:
    """Lend the memory to whoever receives this, once. The first time, a segment waits for work that runs on it now.

    The receiver's stream waits for what this thread's current stream has to do, and the one that the memory was
    allocated on. Raises Unsupported where the memory cannot be shared.
    """
    opened = storage.opened
    opened.check()
    if storage.nbytes == 0:
        return Sent(opened.device, None, 0, 0, None, 0, False)
    if was_received(storage):
        raise ForebayError(_RECEIVED.format(kind=opened.device.kind.upper()))
    port = sharing_port(opened)
    if storage.block is None:
        raise Unsupported(f"memory that {opened.device} does not own cannot be shared", ability="Shares")
    if len(_out) >= _enough:
        _let_go()
    queue = _busy_queue(opened, storage)
    try:
        handle, offset = port.share(storage.address)
    except Unsupported as error:
        if error.ability == "Growable":
            raise Unsupported(_GROWS, ability="Shares") from None
        raise
    lease = Lease.made()
    word = 0
    if queue is not None:
        with opened.keeping(queue, lease):
            word = lease.record(queue)
    _out[lease] = storage
    if _let_go not in opened.allocator.callbacks:
        opened.allocator.callbacks.append(_let_go)
    return Sent(opened.device, handle, storage.nbytes, offset, lease.handle, word, word > 0)


def _busy_queue(opened: OpenDevice, storage: Storage) -> Queue | None:
    """The one behind whose work the memory is as the sender means it; None when it is already.

    A multiprocessing.Queue sends from a thread of its own, whose current stream is not the program's.
    """
    queue = stream_of(opened).queue
    block = storage.block
    maker = opened.queues.get(block.queue, queue) if block is not None else queue
    for used in (queue, maker):
        capture_state.forbid_on(used, opened.device.kind, "send")
    if maker is queue or maker.idle():
        return None if queue.idle() else queue
    if not queue.idle():
        maker.wait_for(queue, queue.signal())
    return maker


def collect() -> None:
    """Let go of what came back, or whose receiver is gone, and of others' memory that nothing here uses. Never waits.

    What was sent and never received stays: it may still be on its way. (`torch.cuda.ipc_collect`)
    """
    _let_go()
    _mappings.clear()


def _let_go() -> bool:
    """Also for an allocator that has nothing left; True when there was something."""
    global _enough  # noqa: PLW0603 -- it grows with what is out, so that looking costs a constant part of sending
    over = [lease for lease in tuple(_out) if lease.over()]
    for lease in over:
        _out.pop(lease, None)
    _enough = max(_ROUND, 2 * len(_out))
    return bool(over)


def forget_kind(kind: str) -> None:
    """Devices of the kind end. Their memory stays where it was received."""
    for lease, storage in tuple(_out.items()):
        if storage.opened.device.kind == kind:
            _out.pop(lease, None)
    _mappings.clear()


def was_received(storage: Storage) -> bool:
    """Whether it is another process's memory."""
    return isinstance(storage.owner, _Borrowed)


def sent_count() -> int:
    """How many times memory was sent that is not back yet, as far as it is known."""
    return len(_out)


class _Mapping:
    """A segment of another process; its end unmaps it."""

    _leaving = staticmethod(sys.is_finalizing)

    def __init__(self, port: Shares, handle: bytes) -> None:
        self.process = 0
        self._port = port
        self.address, self.nbytes = port.open_shared(handle)
        self.process = os.getpid()
        self.page: object = None  # of the last lease: the next one is likely to be on it

    def __del__(self) -> None:
        if not self._leaving() and self.process == os.getpid():
            try:
                self._port.close_shared(self.address)
            except (WrongState, DeviceError):
                pass  # the port was closed, and this with it
            except ForebayError as error:
                complain(f"memory of another process could not be unmapped: {error}")


_mappings: OrderedDict[tuple[int, bytes], _Mapping] = OrderedDict()  # those of last time


def _mapped(opened: OpenDevice, handle: bytes) -> _Mapping:
    key = id(opened), handle
    found = _mappings.pop(key, None)
    if found is None:
        found = _Mapping(sharing_port(opened), handle)
    _mappings[key] = found
    while len(_mappings) > _MAPPINGS_KEPT:
        try:
            _mappings.popitem(last=False)
        except KeyError:  # another thread was quicker
            break
    return found


class _Borrowed(InOrder):
    """Memory that another process lends: the owner of a Storage. Its end gives it back, behind the streams' work.

    So does the end of the process, which the lender sees.
    """

    _leaving = staticmethod(sys.is_finalizing)

    def __init__(self, opened: OpenDevice, mapping: _Mapping, lease: Lease, queue: int) -> None:
        self.process = os.getpid()
        self._opened = opened
        self._mapping = mapping
        self._lease = lease
        self._handles = {queue}  # of the queues whose work may be at it

    def used_on(self, queue: int) -> None:
        self._handles.add(queue)

    def __del__(self) -> None:
        if self._leaving() or self.process != os.getpid():  # a forked child's copy; the parent gives it back
            return
        try:
            self._give_back()
        except Exception as error:  # noqa: BLE001 -- a destructor has nobody to raise to
            complain(f"memory of another process was not given back: {error}")

    def _give_back(self) -> None:
        queues = {} if self._opened.gone else self._opened.queues
        used = [queues[handle] for handle in self._handles if handle in queues]
        busy = [queue for queue in used if capture_state.capture_of(queue) is None and not queue.idle()]
        if not busy:
            self._lease.give_back()
            return
        last = busy.pop()
        for queue in busy:
            last.wait_for(queue, queue.signal())
        with self._opened.keeping(last, self._mapping, self._lease):
            self._lease.give_back(last)


def receive(sent: Sent) -> Storage:
    """The memory, here; the current stream waits for the sender's. For each time it was sent once: else WrongState.

    Work on another stream needs `Tensor.record_stream`, as with memory of our own.
    """
    opened = current.opened_for(sent.device)
    if sent.handle is None:
        return Storage(opened, 0, 0, None)
    stream = stream_of(opened)
    capture_state.forbid_on(stream.queue, opened.device.kind, "receive")
    lease = Lease.opened(sent.lease, str(opened.device))
    mapping = _mapped(opened, sent.handle)
    if sent.offset < 0 or sent.nbytes <= 0 or sent.offset + sent.nbytes > mapping.nbytes:
        raise DeviceError("invalid argument: the memory does not lie in its segment", code=1, call="receive")
    if not lease.borrow():
        raise WrongState("this was received already: memory is sent anew for each receiver")
    mapping.page = lease.page
    borrowed = _Borrowed(opened, mapping, lease, stream.handle)
    if sent.event_sync_required and not lease.reached(sent.event):
        with opened.keeping(stream.queue, lease):
            lease.wait_for(stream.queue, sent.event)
    return Storage(opened, sent.nbytes, mapping.address + sent.offset, borrowed)


def forget_in_child() -> None:
    """In a forked child: what the parent has sent and received is the parent's."""
    global _kept  # noqa: PLW0603 -- see below
    _kept = (dict(_out), dict(_mappings))  # their ends are the parent's, too
    _out.clear()
    _mappings.clear()


_kept: Any = None
