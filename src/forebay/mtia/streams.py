"""Streams of MTIA devices: those of no kind, with PyTorch's names for what is current."""

from __future__ import annotations

from typing import Any

from forebay.errors import ForebayError
from forebay.faces import streams as of_kind
from forebay.mtia._kind import MTIA
from forebay.runtime.base.torch_types import device_type as number_of
from forebay.runtime.devices.current import local
from forebay.runtime.devices.open_device import OpenDevice
from forebay.runtime.streams import stream as streams
from forebay.runtime.streams.event import Event
from forebay.runtime.streams.stream import Stream

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


class StreamContext(of_kind.StreamContext):
    """The stream is current inside; afterwards what was, on its device and on the one before. None changes nothing.

    It keeps what was before, so it must not be entered again before it is left. Making one, even of None, is a first
    use. (`torch.mtia.StreamContext`)
    """

    kind = MTIA
    cur_stream: Stream | None = None  # PyTorch's, which it never sets either


def stream(stream: Stream | None) -> StreamContext:
    """The stream is current inside. (`torch.mtia.stream`)

    >>> import forebay, forebay.mtia as mtia
    >>> with forebay.emulate("mtia"):
    ...     s = mtia.Stream("mtia")
    ...     with mtia.stream(s):
    ...         mtia.current_stream() == s
    True
    """
    return StreamContext(stream)


def current_stream(device: Any = None) -> Stream:
    """The stream that this thread's work on the device goes to. Initialises MTIA. (`torch.mtia.current_stream`)"""
    if device is not None:
        return streams.stream_of(MTIA.opened_for_stream(device))
    known = local.here.stream
    if known is not None and known.device.kind == "mtia" and not known.opened.gone:
        return known
    return of_kind.current_on(MTIA.opened(), Stream)


def default_stream(device: Any = None) -> Stream:
    """The stream that the device has from the start. Initialises MTIA. (`torch.mtia.default_stream`)"""
    return streams.default_of(MTIA.opened() if device is None else MTIA.opened_for_stream(device))


def set_stream(stream: Stream | None) -> None:
    """Make the stream this thread's current one, and its device the current device; None does nothing.

    TypeError for what is no stream. (`torch.mtia.set_stream`)
    """
    if stream is not None:
        streams.set_stream(stream)


def set_stream_by_id(stream_id: int, device_index: int, device_type: int) -> None:
    """The same by PyTorch's numbers. (`torch.mtia._set_stream_by_id`)"""
    MTIA.initialisation.ensure()
    if device_type != (expected := number_of(MTIA.name)):
        raise ForebayError(f"a stream of device type {device_type} is none of MTIA's, which is {expected}")
    opened = MTIA.opened(MTIA.ranged(device_index))
    streams.set_stream(streams.standing_on(Stream, opened, of_kind.queue_of(opened, stream_id)))
