"""Streams and events of PyTorch's C++ code, above all of the autograd engine, as those of emulated devices."""

from __future__ import annotations

from itertools import count
from typing import Any

import forebay.cuda
from forebay._base.device_spec import Device
from forebay.cuda.lifecycle import _exchange_device
from forebay.interop.torch.devices import pinned_memory
from forebay.interop.torch.devices._device_guard import set_callbacks
from forebay.interop.torch.devices._storage_owners import memory_at
from forebay.runtime.devices import current, open_device
from forebay.runtime.memory.storage import AnyBlock
from forebay.runtime.streams.event import Event
from forebay.runtime.streams.stream import Stream, current_stream_for

__all__ = ["connect_streams", "disconnect_streams"]

_events: dict[int, Event] = {}
_numbers = count(1)


def connect_streams() -> None:
    """Let PyTorch's device guard use the current devices and streams of forebay."""
    set_callbacks(
        lambda: current.current_index("cuda"), _exchange_device, forebay.cuda.device_count, _current,
        _exchange, _record, _wait, _destroy, _record_memory,
        pinned_memory.is_pinned_address, pinned_memory.allocate,
    )  # fmt: skip


def disconnect_streams() -> None:
    """Let a guard that stays after the end of `patch` answer as PyTorch's hooks then do: there is no device.

    The emulation may continue, and the autograd engine asks the hooks about each device that the guard counts.
    """
    set_callbacks(
        _nothing, _nothing, _nothing, _nothing, _nothing, _nothing, _nothing,
        _destroy, _nothing, _nothing, _nothing,  # events that C++ code still has are deleted later
    )  # fmt: skip


def _nothing(*_: int) -> Any:
    return 0


def _current(index: int) -> int:
    return current_stream_for(open_device.open_device(Device("cuda", index))).stream_id


def _exchange(index: int, number: int) -> int:
    opened = open_device.open_device(Device("cuda", index))
    previous = current_stream_for(opened)
    if number != previous.stream_id:
        device = current.current_index("cuda")
        current.set_stream_on(_stream(index, number))
        _exchange_device(device)  # a stream guard changes the device by itself
    return previous.stream_id


def _stream(index: int, number: int) -> Stream:
    found = current_stream_for(open_device.open_device(Device("cuda", index)))
    if found.stream_id == number:
        return found
    return forebay.cuda.Stream(stream_id=number, device_index=index, device_type=1)


def _record(index: int, number: int) -> int:
    event, key = Event(), next(_numbers)
    event.record(_stream(index, number))
    _events[key] = event
    return key


def _wait(key: int, index: int, number: int) -> None:
    _stream(index, number).wait_event(_events[key])


def _destroy(key: int) -> None:
    _events.pop(key, None)


def _record_memory(address: int, index: int, number: int) -> None:
    memory = memory_at(address)
    if memory is not None and isinstance(memory.block, AnyBlock):
        memory.block.record_stream(_stream(index, number).queue.handle)
