"""Streams of MPS devices: the default stream (id 0) and a pool of 32 others. (`torch.mps.streams`)"""

from __future__ import annotations

import operator
from contextlib import ContextDecorator
from typing import ClassVar

from forebay.mps._kind import MPS, open_device, require_backend
from forebay.mps.event import Event
from forebay.names.streams import StreamContext, current_stream_on
from forebay.runtime.devices.current import local
from forebay.runtime.streams import event as events
from forebay.runtime.streams import stream as streams
from forebay.runtime.streams.stream_ids import find_queue

__all__ = ["Stream", "current_stream", "default_stream", "set_stream", "stream"]

_NEXT_OF_POOL = -1
_record_event = streams.Stream.record_event


class Stream(streams.Stream):
    """Stream of the current MPS device.

    As `torch.mps.Stream`. Opens the device.

    Parameters
    ----------
    stream_id : int, optional
        The id of an existing stream; by default the next stream of the pool, in turn (the 33rd is the first again).

    Raises
    ------
    ForebayError
        If `stream_id` is unknown or there is no MPS device.
    TypeError
        If `stream_id` is not an int.
    """

    def __init__(self, stream_id: int = _NEXT_OF_POOL) -> None:
        number = operator.index(stream_id)
        from_pool = number == _NEXT_OF_POOL
        opened = open_device(None, "getStreamFromPool" if from_pool else "getStreamByID")
        if from_pool:
            self.borrow(opened, 0)
        else:
            self.bind(opened, find_queue(opened, number), 0)

    def wait_event(self, event: events.Event) -> None:
        """Make later work of this stream wait for an event.

        Parameters
        ----------
        event : forebay.Event
            The event; a `forebay.mps.Event` is not supported.

        Raises
        ------
        TypeError
            If `event` is not a `forebay.Event`.
        """
        try:
            event.wait(self)
        except TypeError as error:
            raise _type_error(error, event) from None

    def record_event(self, event: events.Event | None = None) -> events.Event:
        """Record an event after all work queued so far on this stream.

        Parameters
        ----------
        event : forebay.Event, optional
            The event; a new one by default. A `forebay.mps.Event` is not supported.

        Raises
        ------
        TypeError
            If `event` is not a `forebay.Event`.
        """
        try:
            return _record_event(self, event)
        except TypeError as error:
            raise _type_error(error, event) from None

    def __repr__(self) -> str:
        return f"<forebay.mps.Stream stream_id={self.stream_id}>"


def _type_error(error: TypeError, event: object) -> TypeError:
    if isinstance(event, Event):
        return TypeError("a forebay.mps.Event works on the default stream only: use a forebay.Event")
    return error


# Written by tools/write_names.py from tools/names/streams.toml: edit the table, not these lines.


def default_stream() -> Stream:
    """Return the default stream of the current device, which has the id 0.

    As `torch.mps.default_stream`. Opens the device.

    Raises
    ------
    ForebayError
        If there is no MPS device.
    """
    opened = open_device(None, "getDefaultStream")
    cached = opened.default_stream
    return cached if cached.__class__ is Stream else streams.cast_to_face(Stream, streams.default_stream_for(opened))


def set_stream(stream: streams.Stream | None) -> None:
    """Make a stream this thread's current one, and its device the current device.

    As `torch.mps.set_stream`.

    Parameters
    ----------
    stream : Stream or None
        The stream; None changes nothing.

    Raises
    ------
    TypeError
        If `stream` is not a stream of an MPS device.
    """
    if stream is not None:
        streams.set_stream(stream if stream.__class__ is Stream else _checked(stream))


def stream(stream: streams.Stream | None) -> _StreamContext:
    """Return a context manager or decorator that makes a stream current, until its end.

    As `torch.mps.stream`. Initialises MPS.

    Parameters
    ----------
    stream : Stream or None
        The stream; None changes nothing.

    Raises
    ------
    TypeError
        If `stream` is not a stream of an MPS device.
    ForebayError
        If there is no MPS device.

    Examples
    --------
    >>> import forebay, forebay.mps as mps
    >>> with forebay.emulate("mps", profile="apple_m3_max"):
    ...     with mps.stream(mps.Stream()):
    ...         print(mps.current_stream())
    <forebay.mps.Stream stream_id=1>
    """
    return _StreamContext(stream)


def current_stream() -> Stream:
    """Return this thread's current stream of the current device.

    As `torch.mps.current_stream`. Opens the device.

    Raises
    ------
    ForebayError
        If there is no MPS device.
    """
    cached = local.state.stream
    if cached.__class__ is Stream and not cached.opened.unusable:
        return cached
    return current_stream_on(open_device(None, "getCurrentStream"), Stream)


# End of the written lines.


def _checked(stream: object) -> streams.Stream:
    if not isinstance(stream, streams.Stream):
        raise TypeError(f"expected a Stream, not {type(stream).__name__}")
    if stream.device.kind != MPS.name:
        raise TypeError(f"expected a stream of an MPS device, not of {stream.device}")
    return stream


class _StreamContext(StreamContext, ContextDecorator):
    """Stream context manager that also works as a decorator, as PyTorch's: each call enters a new context."""

    kind = MPS
    stream_class: ClassVar[type[Stream]] = Stream

    def __init__(self, stream: streams.Stream | None) -> None:
        require_backend("getCurrentStream")
        super().__init__(None if stream is None else _checked(stream))

    @staticmethod
    def as_stream_class(stream: streams.Stream) -> Stream:
        return streams.cast_to_face(Stream, stream)

    def _recreate_cm(self) -> _StreamContext:
        return _StreamContext(self.stream)
