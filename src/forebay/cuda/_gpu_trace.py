"""Functions to be called when CUDA's streams, events and memory are used. (`torch.cuda._gpu_trace`)

They get numbers: the handle of a stream, what an event is known by (`Event.cuda_event`), an address. One that fails is
logged, and the next is called. Nothing is watched before the first is registered.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from forebay.cuda._kind import CUDA
from forebay.runtime.base import observers
from forebay.runtime.devices.open_device import OpenDevice
from forebay.runtime.memory.storage import Storage
from forebay.runtime.streams.event import Event
from forebay.runtime.streams.stream import Stream
from forebay.spi import Queue

__all__ = [
    "CallbackRegistry",
    "DeviceSynchronizationCallbacks",
    "EventCreationCallbacks",
    "EventDeletionCallbacks",
    "EventRecordCallbacks",
    "EventSynchronizationCallbacks",
    "EventWaitCallbacks",
    "MemoryAllocationCallbacks",
    "MemoryDeallocationCallbacks",
    "StreamCreationCallbacks",
    "StreamSynchronizationCallbacks",
    "register_callback_for_device_synchronization",
    "register_callback_for_event_creation",
    "register_callback_for_event_deletion",
    "register_callback_for_event_record",
    "register_callback_for_event_synchronization",
    "register_callback_for_event_wait",
    "register_callback_for_memory_allocation",
    "register_callback_for_memory_deallocation",
    "register_callback_for_stream_creation",
    "register_callback_for_stream_synchronization",
]

logger = logging.getLogger(__name__)


class CallbackRegistry:
    """The functions for one occasion. They stay for the process's life, as PyTorch's."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.callback_list: list[Callable[..., object]] = []

    def add_callback(self, cb: Callable[..., object]) -> None:
        self.callback_list.append(cb)
        if _trace not in observers.listeners:
            observers.add(_trace)

    def fire_callbacks(self, *args: Any, **kwargs: Any) -> None:
        for callback in self.callback_list:
            try:
                callback(*args, **kwargs)
            except Exception:
                logger.exception("Exception in callback for %s registered with gpu trace", self.name)


EventCreationCallbacks = CallbackRegistry("CUDA event creation")
EventDeletionCallbacks = CallbackRegistry("CUDA event deletion")
EventRecordCallbacks = CallbackRegistry("CUDA event record")
EventWaitCallbacks = CallbackRegistry("CUDA event wait")
MemoryAllocationCallbacks = CallbackRegistry("CUDA memory allocation")
MemoryDeallocationCallbacks = CallbackRegistry("CUDA memory deallocation")
StreamCreationCallbacks = CallbackRegistry("CUDA stream creation")
DeviceSynchronizationCallbacks = CallbackRegistry("CUDA device synchronization")
StreamSynchronizationCallbacks = CallbackRegistry("CUDA stream synchronization")
EventSynchronizationCallbacks = CallbackRegistry("CUDA event synchronization")


class _Trace(observers.Listener):
    def stream_created(self, opened: OpenDevice, queue: Queue) -> None:
        if _ours(opened) and queue.handle:  # the default stream is always there
            StreamCreationCallbacks.fire_callbacks(queue.handle)

    def stream_waited(self, stream: Stream, other: Stream) -> None:
        """As PyTorch does it: by an event of its own."""
        event = object()
        if _ours(stream.opened):
            EventCreationCallbacks.fire_callbacks(id(event))
            EventRecordCallbacks.fire_callbacks(id(event), other.handle)
            EventWaitCallbacks.fire_callbacks(id(event), stream.handle)
            EventDeletionCallbacks.fire_callbacks(id(event))

    def stream_synchronized(self, stream: Stream) -> None:
        if _ours(stream.opened):
            StreamSynchronizationCallbacks.fire_callbacks(stream.handle)

    def device_synchronized(self, opened: OpenDevice) -> None:
        if _ours(opened):
            DeviceSynchronizationCallbacks.fire_callbacks()

    def event_created(self, event: Event) -> None:
        if event.device is not None and event.device.kind == CUDA.name:
            EventCreationCallbacks.fire_callbacks(id(event))

    def event_deleted(self, opened: OpenDevice, number: int) -> None:
        if _ours(opened):
            EventDeletionCallbacks.fire_callbacks(number)

    def event_recorded(self, event: Event, stream: Stream) -> None:
        if _ours(stream.opened):
            EventRecordCallbacks.fire_callbacks(id(event), stream.handle)

    def event_waited(self, event: Event, stream: Stream) -> None:
        if _ours(stream.opened):
            EventWaitCallbacks.fire_callbacks(id(event), stream.handle)

    def event_synchronized(self, event: Event) -> None:
        if event.device is not None and event.device.kind == CUDA.name:
            EventSynchronizationCallbacks.fire_callbacks(id(event))

    def allocated(self, storage: Storage, queue: int) -> None:  # noqa: ARG002 -- PyTorch does not tell which stream
        if _ours(storage.opened):
            MemoryAllocationCallbacks.fire_callbacks(storage.address)

    def freed(self, opened: OpenDevice, address: int) -> None:
        if _ours(opened):
            MemoryDeallocationCallbacks.fire_callbacks(address)


def _ours(opened: OpenDevice) -> bool:
    return opened.device.kind == CUDA.name


_trace = _Trace()

_One = Callable[[int], object]
_Two = Callable[[int, int], object]


def register_callback_for_event_creation(cb: _One) -> None:
    EventCreationCallbacks.add_callback(cb)


def register_callback_for_event_deletion(cb: _One) -> None:
    EventDeletionCallbacks.add_callback(cb)


def register_callback_for_event_record(cb: _Two) -> None:
    """It gets an event, and the stream on which it is recorded."""
    EventRecordCallbacks.add_callback(cb)


def register_callback_for_event_wait(cb: _Two) -> None:
    """It gets an event, and the stream that waits."""
    EventWaitCallbacks.add_callback(cb)


def register_callback_for_memory_allocation(cb: _One) -> None:
    MemoryAllocationCallbacks.add_callback(cb)


def register_callback_for_memory_deallocation(cb: _One) -> None:
    MemoryDeallocationCallbacks.add_callback(cb)


def register_callback_for_stream_creation(cb: _One) -> None:
    StreamCreationCallbacks.add_callback(cb)


def register_callback_for_device_synchronization(cb: Callable[[], object]) -> None:
    DeviceSynchronizationCallbacks.add_callback(cb)


def register_callback_for_stream_synchronization(cb: _One) -> None:
    StreamSynchronizationCallbacks.add_callback(cb)


def register_callback_for_event_synchronization(cb: _One) -> None:
    EventSynchronizationCallbacks.add_callback(cb)
