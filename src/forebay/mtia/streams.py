"""Streams of MTIA devices: forebay's general `Stream` and `Event`, and PyTorch's functions for the current stream."""

from __future__ import annotations

from typing import Any

from forebay._base.device_spec import DeviceLike
from forebay.errors import ForebayError
from forebay.mtia._kind import MTIA
from forebay.names import streams as kind_streams
from forebay.runtime.base.torch_types import device_type as device_type_number
from forebay.runtime.devices.current import local
from forebay.runtime.devices.open_device import OpenDevice
from forebay.runtime.streams import stream as streams
from forebay.runtime.streams.event import Event
from forebay.runtime.streams.stream import Stream
from forebay.runtime.streams.stream_ids import find_queue

__all__ = [
    "Event",
    "Stream",
    "StreamContext",
    "current_stream",
    "default_stream",
    "set_stream",
    "set_stream_by_id",
    "stream",
]


class StreamContext(kind_streams.StreamContext):
    """Context manager that makes a stream current; its device becomes the current device.

    Exit restores the previous stream of both devices and the previous device.

    As `torch.mtia.StreamContext`. Construction initialises MTIA, even with None. The object stores the previous state,
    so it cannot be entered again before it is exited.

    Parameters
    ----------
    stream : Stream or None
        The stream; None changes nothing.

    Raises
    ------
    TypeError
        On entry, if `stream` is not a stream.
    """

    kind = MTIA
    cur_stream: Stream | None = None  # PyTorch never sets its attribute either


# Written by tools/write_names.py from tools/names/streams.toml: edit the table, not these lines.


def default_stream(device: DeviceLike | None = None) -> Stream:
    """Return the default stream of a device, which has the id 0.

    As `torch.mtia.default_stream`. Initialises MTIA and opens the device.

    Parameters
    ----------
    device : device or str or int, optional
        The device; the current one by default.

    Raises
    ------
    ForebayError
        If the device does not exist.
    """
    opened = MTIA.open_device() if device is None else MTIA.open_device_for_stream(device, "getDefaultStream")
    return streams.default_stream_for(opened)


def set_stream(stream: streams.Stream | None) -> None:
    """Make a stream this thread's current one, and its device the current device.

    As `torch.mtia.set_stream`.

    Parameters
    ----------
    stream : Stream or None
        The stream; None changes nothing.

    Raises
    ------
    TypeError
        If `stream` is not a stream.
    """
    if stream is not None:
        streams.set_stream(stream)


def stream(stream: streams.Stream | None) -> StreamContext:
    """Return a context manager that makes a stream current.

    As `torch.mtia.stream`. Initialises MTIA.

    Parameters
    ----------
    stream : Stream or None
        The stream; None changes nothing.

    Examples
    --------
    >>> import forebay, forebay.mtia as mtia
    >>> with forebay.emulate("mtia"):
    ...     s = mtia.Stream("mtia")
    ...     with mtia.stream(s):
    ...         mtia.current_stream() == s
    True
    """
    return StreamContext(stream)


# End of the written lines.


def current_stream(device: DeviceLike | None = None) -> Stream:
    """Return this thread's current stream of a device.

    As `torch.mtia.current_stream`. Initialises MTIA and opens the device.

    Parameters
    ----------
    device : device or str or int, optional
        The device; the current one by default.

    Raises
    ------
    ForebayError
        If the device does not exist.
    """
    if device is not None:
        return streams.current_stream_for(MTIA.open_device_for_stream(device, "getCurrentStream"))
    cached = local.state.stream
    if cached is not None and cached.device.kind == "mtia" and not cached.opened.unusable:
        return cached
    return kind_streams.current_stream_on(MTIA.open_device(), Stream)


def set_stream_by_id(stream_id: int, device_index: int, device_type: int) -> None:
    """Make the stream with PyTorch's stream id, device index and device type number current.

    As `torch.mtia._set_stream_by_id`. Initialises MTIA and opens the device.

    Parameters
    ----------
    stream_id : int
        The stream id; 0 is the default stream.
    device_index : int
        The device index.
    device_type : int
        PyTorch's number of the device type; must be MTIA's.

    Raises
    ------
    ForebayError
        If `device_type` is not MTIA's, the device does not exist, or there is no such stream.
    """
    MTIA.initialisation.ensure()
    if device_type != (expected := device_type_number(MTIA.name)):
        raise ForebayError(f"device type {device_type} is not that of MTIA, {expected}")
    opened = MTIA.open_device(MTIA.check_range(device_index))
    streams.set_stream(streams.from_queue(Stream, opened, find_queue(opened, stream_id)))
