"""Streams of an MPS device: the default one, of id 0, and a pool of 32 others. (`torch.mps.streams`)"""

from __future__ import annotations

import operator
from contextlib import ContextDecorator

from forebay.faces.streams import StreamContext, current_on, queue_of
from forebay.mps._kind import MPS, check_there_for, open_device
from forebay.mps.event import Event
from forebay.runtime.devices.current import local
from forebay.runtime.streams import event as events
from forebay.runtime.streams import stream as streams

__all__ = ["Stream", "current_stream", "default_stream", "set_stream", "stream"]

_NEXT = -1  # of the pool
_record_event = streams.Stream.record_event


class Stream(streams.Stream):
    """The next stream of the pool, so that the 33rd is the first again; or the one of that id. Opens the device.

    ForebayError for an id that no stream has, TypeError for what is no int. (`torch.mps.Stream`)
    """

    def __init__(self, stream_id: int = _NEXT) -> None:
        number = operator.index(stream_id)
        opened = open_device(None, "getStreamFromPool" if number == _NEXT else "getStreamByID")
        self.stand_on(opened, opened.borrow_queue(0) if number == _NEXT else queue_of(opened, number), 0)
        self._borrowed = number == _NEXT

    def wait_event(self, event: events.Event) -> None:
        try:
            event.wait(self)
        except TypeError as error:
            raise _explained(error, event) from None

    def record_event(self, event: events.Event | None = None) -> events.Event:
        try:
            return _record_event(self, event)
        except TypeError as error:
            raise _explained(error, event) from None

    def __repr__(self) -> str:
        return f"<forebay.mps.Stream stream_id={self.stream_id}>"


def _explained(error: TypeError, event: object) -> TypeError:
    if isinstance(event, Event):
        return TypeError("a forebay.mps.Event is of the default stream alone; a forebay.Event is of any")
    return error


def current_stream() -> Stream:
    """The stream that this thread's work on the device goes to. Opens the device."""
    known = local.here.stream
    if known.__class__ is Stream and not known.opened.gone:
        return known
    return current_on(open_device(None, "getCurrentStream"), Stream)


def default_stream() -> Stream:
    """The stream that the device has from the start. Opens the device."""
    opened = open_device(None, "getDefaultStream")
    known = opened.default_stream
    return known if known.__class__ is Stream else streams.as_kind(Stream, streams.default_of(opened))


def set_stream(stream: streams.Stream | None) -> None:
    """Make the stream this thread's current one, and its device the current device; None does nothing.

    TypeError for what is no stream of an MPS device.
    """
    if stream is not None:
        streams.set_stream(stream if stream.__class__ is Stream else _checked(stream))


def _checked(stream: object) -> streams.Stream:
    if not isinstance(stream, streams.Stream):
        raise TypeError(f"expected a Stream, not {type(stream).__name__}")
    if stream.device.kind != MPS.name:
        raise TypeError(f"expected a stream of an MPS device, not one of {stream.device}")
    return stream


class _StreamContext(StreamContext, ContextDecorator):
    """For a function, too, as PyTorch's: each call enters one of its own."""

    kind = MPS
    stream_class = Stream

    def __init__(self, stream: streams.Stream | None) -> None:
        check_there_for("getCurrentStream")
        super().__init__(None if stream is None else _checked(stream))

    @staticmethod
    def own(stream: streams.Stream) -> Stream:
        return streams.as_kind(Stream, stream)

    def _recreate_cm(self) -> _StreamContext:
        return _StreamContext(self.stream)


def stream(stream: streams.Stream | None) -> _StreamContext:
    """The stream is current inside; afterwards what was, and the device that was. None changes nothing.

    >>> import forebay, forebay.mps as mps
    >>> with forebay.emulate("mps", profile="apple_m3_max"):
    ...     with mps.stream(mps.Stream()):
    ...         print(mps.current_stream())
    <forebay.mps.Stream stream_id=1>
    """
    return _StreamContext(stream)
