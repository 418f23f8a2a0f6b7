"""Pieces of a queue's work, and their encoding into a command buffer.

A queue keeps its work as these objects until it is encoded, which is repeated from the beginning if a signal handler
interrupts it. A command buffer that is not committed has no effect; but each of its encoders must end.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from forebay.backends.metal.calls import device_error, hold

_COMPLETED = 4  # MTLCommandBufferStatusCompleted; the next one is MTLCommandBufferStatusError

__all__ = [
    "BLIT",
    "COMPUTE",
    "Batch",
    "Command",
    "HostCall",
    "Mark",
    "Piece",
    "Signal",
    "Wait",
    "encode",
    "raise_event",
]

BLIT, COMPUTE = "blitCommandEncoder", "computeCommandEncoder"  # methods of a command buffer


class Piece:
    """Work of the GPU: a function that encodes it, which also keeps its buffers alive."""

    __slots__ = ("encode", "encoder", "number")
    encoder: str
    encode: Callable[[Any], object]
    number: int

    def __init__(self, encoder: str, encode: Callable[[Any], object], number: int) -> None:
        self.encoder = encoder
        self.encode = encode
        self.number = number


class Mark:
    """A tick with a timestamp: seconds of the system's clock, which is that of Metal and of time.monotonic()."""

    __slots__ = ("seconds", "tick")

    def __init__(self, tick: int) -> None:
        self.tick: int = tick
        self.seconds: float | None = None  # until it is reached


class Signal:
    """The moment when a queue reaches a value of an event."""

    __slots__ = ("event", "mark", "value")
    event: Any
    value: int
    mark: Mark | None

    def __init__(self, event: Any, value: int, mark: Mark | None = None) -> None:
        self.event = event
        self.value = value
        self.mark = mark


class Wait:
    """A wait for a value of an event; `other` is the queue that signals it, which must live until then."""

    __slots__ = ("event", "other", "value")
    event: Any
    value: int
    other: object

    def __init__(self, event: Any, value: int, other: object = None) -> None:
        self.event = event
        self.value = value
        self.other = other


class HostCall:
    """A function that the host runs between two command buffers.

    The GPU signals `after` when the work before it is complete; without such work it is 0.
    """

    __slots__ = ("after", "ended", "event", "function", "number")
    event: Any
    after: int
    number: int

    def __init__(self, function: Callable[[], object], event: Any, after: int, number: int) -> None:
        self.function: Callable[[], object] | None = function  # None once it has begun
        self.event = event
        self.after = after
        self.number = number
        self.ended: bool = False


Command = Piece | Signal | Wait | HostCall


class Batch:
    """The commands of one command buffer, and its outcome."""

    __slots__ = (
        "begin", "buffer", "commands", "committed", "done", "dropped", "end", "failure", "first_tick", "submitted"
    )  # fmt: skip
    begin: float
    commands: Sequence[Command]
    done: bool
    dropped: bool
    end: float
    first_tick: int
    submitted: float

    def __init__(self, commands: Sequence[Command]) -> None:
        self.commands = commands
        self.first_tick = next((each.value for each in commands if isinstance(each, Signal)), 0)
        self.buffer: Any = None  # an MTLCommandBuffer
        self.committed: list[object] = []  # not empty once it was committed
        self.submitted = 0.0  # seconds
        self.done = False
        self.dropped = False  # the GPU may not have signalled the events
        self.failure: BaseException | None = None
        self.begin = self.end = 0.0  # seconds at which the GPU ran it

    def fail(self, failure: BaseException | None) -> None:
        """Note that the commands will not run."""
        self.failure = failure
        self.dropped = self.done = True
        self.begin = self.end = time.monotonic()

    def finish(self, device: str) -> bool:
        """Read the outcome if the command buffer is complete. Return False if it is not."""
        try:
            if not self.committed or self.buffer.status() < _COMPLETED:
                return False
            now = time.monotonic()
            if (error := self.buffer.error()) is not None:
                self.failure = device_error(error, "a command buffer failed", "commit", device)
                self.dropped = True
            if any(isinstance(command, Piece) for command in self.commands):
                self.begin, self.end = float(self.buffer.GPUStartTime()), float(self.buffer.GPUEndTime())
            self.end = self.end or now
            self.begin = self.begin or self.end
        except Exception as error:  # noqa: BLE001 -- PyObjC's are of several types
            self.failure = self.failure or error
            if not self.committed or not self.end:
                return False
        self.done = True
        return True

    def ends_with(self, tick: int) -> bool:
        """Return True if a tick up to this one is the last command."""
        last = self.commands[-1]
        return isinstance(last, Signal) and last.value <= tick


def encode(buffer: Any, commands: Sequence[Command], device: str) -> None:
    """Encode commands. All encoders have ended afterwards, also after an exception."""
    encoders: list[Any] = []
    ended: list[object] = []
    kind = ""
    try:
        for command in commands:
            if isinstance(command, Piece):
                if kind != command.encoder:
                    _end(encoders, ended)
                    kind = ""
                    if hold(encoders, getattr(buffer, command.encoder)) is None:
                        encoders.pop()
                        raise device_error(None, "work could not be encoded", command.encoder, device)
                    kind = command.encoder
                command.encode(encoders[-1])
                continue
            _end(encoders, ended)
            kind = ""
            if isinstance(command, Wait):
                buffer.encodeWaitForEvent_value_(command.event, command.value)
            elif isinstance(command, Signal):
                buffer.encodeSignalEvent_value_(command.event, command.value)
            else:
                buffer.encodeSignalEvent_value_(command.event, command.after)
    finally:
        _end(encoders, ended)


def _end(encoders: list[Any], ended: list[object]) -> None:
    for encoder in encoders[len(ended) :]:
        try:
            hold(ended, encoder.endEncoding)
        except BaseException:
            if encoder is encoders[-1] and len(ended) < len(encoders):  # Metal ends a process that drops it before
                hold(ended, encoder.endEncoding)
            raise


def raise_event(event: Any, value: int) -> None:
    """Set an event from the host, unless the GPU has reached the value. Events only grow."""
    if int(event.signaledValue()) < value:
        event.setSignaledValue_(value)
