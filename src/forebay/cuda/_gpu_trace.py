"""Callbacks for operations on CUDA streams, events and memory (`torch.cuda._gpu_trace`).

Callbacks receive numbers: a stream's handle, an event's `cuda_event`, an address. An exception in a callback is logged,
and the next callback is called. The observer is installed with the first callback.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from forebay._base.device_spec import Device
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

_device_of: Callable[[Event], Device | None] = vars(Event)["device"].fget  # subclasses may have PyTorch's devices
logger = logging.getLogger(__name__)


class CallbackRegistry:
    """The callbacks for one operation. As in PyTorch, they cannot be removed.

    Parameters
    ----------
    name : str
        The operation, for log messages.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.callback_list: list[Callable[..., object]] = []

    def add_callback(self, cb: Callable[..., object]) -> None:
        """Register a callback.

        Parameters
        ----------
        cb : callable
            The callback.
        """
        self.callback_list.append(cb)
        if _observer not in observers.registered:
            observers.add(_observer)

    def fire_callbacks(self, *args: Any, **kwargs: Any) -> None:
        """Call all callbacks, and log the exceptions that they raise.

        Parameters
        ----------
        *args : object
            Passed to the callbacks.
        **kwargs : object
            Passed to the callbacks.
        """
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


class _GpuTraceObserver(observers.Observer):
    def stream_created(self, opened: OpenDevice, queue: Queue) -> None:
        if _is_cuda(opened) and queue.handle:  # the default stream always exists
            StreamCreationCallbacks.fire_callbacks(queue.handle)

    def stream_waited(self, stream: Stream, other: Stream) -> None:
        """Report the wait as PyTorch implements it, by a temporary event."""
        event = object()
        if _is_cuda(stream.opened):
            EventCreationCallbacks.fire_callbacks(id(event))
            EventRecordCallbacks.fire_callbacks(id(event), other.handle)
            EventWaitCallbacks.fire_callbacks(id(event), stream.handle)
            EventDeletionCallbacks.fire_callbacks(id(event))

    def stream_synchronized(self, stream: Stream) -> None:
        if _is_cuda(stream.opened):
            StreamSynchronizationCallbacks.fire_callbacks(stream.handle)

    def device_synchronized(self, opened: OpenDevice) -> None:
        if _is_cuda(opened):
            DeviceSynchronizationCallbacks.fire_callbacks()

    def event_created(self, event: Event) -> None:
        if _is_of_cuda(event):
            EventCreationCallbacks.fire_callbacks(id(event))

    def event_deleted(self, opened: OpenDevice, number: int) -> None:
        if _is_cuda(opened):
            EventDeletionCallbacks.fire_callbacks(number)

    def event_recorded(self, event: Event, stream: Stream) -> None:
        if _is_cuda(stream.opened):
            EventRecordCallbacks.fire_callbacks(id(event), stream.handle)

    def event_waited(self, event: Event, stream: Stream) -> None:
        if _is_cuda(stream.opened):
            EventWaitCallbacks.fire_callbacks(id(event), stream.handle)

    def event_synchronized(self, event: Event) -> None:
        if _is_of_cuda(event):
            EventSynchronizationCallbacks.fire_callbacks(id(event))

    def allocated(self, storage: Storage, queue: int) -> None:  # noqa: ARG002 -- PyTorch does not report the stream
        if _is_cuda(storage.opened):
            MemoryAllocationCallbacks.fire_callbacks(storage.address)

    def freed(self, opened: OpenDevice, address: int) -> None:
        if _is_cuda(opened):
            MemoryDeallocationCallbacks.fire_callbacks(address)


def _is_cuda(opened: OpenDevice) -> bool:
    return opened.device.kind == CUDA.name


def _is_of_cuda(event: Event) -> bool:
    device = _device_of(event)
    return device is not None and device.kind == CUDA.name


_observer = _GpuTraceObserver()

_OneNumber = Callable[[int], object]
_TwoNumbers = Callable[[int, int], object]


# Written by tools/write_names.py from tools/names/gpu_trace.toml: edit the table, not these lines.


def register_callback_for_event_creation(cb: _OneNumber) -> None:
    """Register a callback that is called when an event is created.

    As `torch.cuda._gpu_trace.register_callback_for_event_creation`.

    Parameters
    ----------
    cb : callable
        Receives the event's number (`Event.cuda_event`).
    """
    EventCreationCallbacks.add_callback(cb)


def register_callback_for_event_deletion(cb: _OneNumber) -> None:
    """Register a callback that is called when an event is deleted.

    As `torch.cuda._gpu_trace.register_callback_for_event_deletion`.

    Parameters
    ----------
    cb : callable
        Receives the event's number (`Event.cuda_event`).
    """
    EventDeletionCallbacks.add_callback(cb)


def register_callback_for_event_record(cb: _TwoNumbers) -> None:
    """Register a callback that is called when an event is recorded.

    As `torch.cuda._gpu_trace.register_callback_for_event_record`.

    Parameters
    ----------
    cb : callable
        Receives the event's number (`Event.cuda_event`) and the handle of the stream.
    """
    EventRecordCallbacks.add_callback(cb)


def register_callback_for_event_wait(cb: _TwoNumbers) -> None:
    """Register a callback that is called when a stream is made to wait for an event.

    As `torch.cuda._gpu_trace.register_callback_for_event_wait`.

    Parameters
    ----------
    cb : callable
        Receives the event's number (`Event.cuda_event`) and the handle of the stream.
    """
    EventWaitCallbacks.add_callback(cb)


def register_callback_for_memory_allocation(cb: _OneNumber) -> None:
    """Register a callback that is called when device memory is allocated.

    As `torch.cuda._gpu_trace.register_callback_for_memory_allocation`.

    Parameters
    ----------
    cb : callable
        Receives the address.
    """
    MemoryAllocationCallbacks.add_callback(cb)


def register_callback_for_memory_deallocation(cb: _OneNumber) -> None:
    """Register a callback that is called when device memory is freed.

    As `torch.cuda._gpu_trace.register_callback_for_memory_deallocation`.

    Parameters
    ----------
    cb : callable
        Receives the address.
    """
    MemoryDeallocationCallbacks.add_callback(cb)


def register_callback_for_stream_creation(cb: _OneNumber) -> None:
    """Register a callback that is called when a stream is created.

    As `torch.cuda._gpu_trace.register_callback_for_stream_creation`.

    Parameters
    ----------
    cb : callable
        Receives the stream's handle.
    """
    StreamCreationCallbacks.add_callback(cb)


def register_callback_for_device_synchronization(cb: Callable[[], object]) -> None:
    """Register a callback that is called when the host waits for a device.

    As `torch.cuda._gpu_trace.register_callback_for_device_synchronization`.

    Parameters
    ----------
    cb : callable
        Receives no arguments.
    """
    DeviceSynchronizationCallbacks.add_callback(cb)


def register_callback_for_stream_synchronization(cb: _OneNumber) -> None:
    """Register a callback that is called when the host waits for a stream.

    As `torch.cuda._gpu_trace.register_callback_for_stream_synchronization`.

    Parameters
    ----------
    cb : callable
        Receives the stream's handle.
    """
    StreamSynchronizationCallbacks.add_callback(cb)


def register_callback_for_event_synchronization(cb: _OneNumber) -> None:
    """Register a callback that is called when the host waits for an event.

    As `torch.cuda._gpu_trace.register_callback_for_event_synchronization`.

    Parameters
    ----------
    cb : callable
        Receives the event's number (`Event.cuda_event`).
    """
    EventSynchronizationCallbacks.add_callback(cb)


# End of the written lines.
