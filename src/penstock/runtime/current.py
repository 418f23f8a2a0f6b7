"""The current device and the current streams, one of each per thread: the only thread-local state of the library."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from penstock import backends
from penstock.device import Device
from penstock.errors import WrongState
from penstock.runtime import open_device
from penstock.runtime.open_device import OpenDevice

if TYPE_CHECKING:
    from penstock.runtime.stream import Stream

__all__ = [
    "PREFERRED",
    "current_device",
    "enter",
    "forget_in_child",
    "leave",
    "opened_for",
    "reopen",
    "resolve",
    "set_device",
    "set_stream_on",
    "stream_on",
    "use_device",
]

PREFERRED = ("cuda", "mps", "mtia")  # before any vendor's, and "host" last

_State = tuple[Device | None, dict[str, int], "dict[Device, Stream]"]


class _Here(threading.local):
    def __init__(self) -> None:
        self.device: Device | None = None
        self.indices: dict[str, int] = {}  # of each kind, the one last made current
        self.streams: dict[Device, Stream] = {}
        self.entered: list[tuple[Stream, _State]] = []  # by `with stream:`, and what was there before
        self.forget()

    def forget(self) -> None:
        """Something else is current: the current device and its stream are looked up by the next to ask."""
        self.opened: OpenDevice | None = None
        self.stream: Stream | None = None

    def state(self) -> _State:
        return self.device, dict(self.indices), dict(self.streams)


_here = _Here()


def _first_device() -> Device:
    drivers = backends.drivers()
    others = sorted(drivers.keys() - {*PREFERRED, "host"})
    kind = next((kind for kind in (*PREFERRED, *others) if kind in drivers and drivers[kind].count()), "host")
    return Device(kind, 0)


def current_device() -> Device:
    """This thread's current device; at first, the best kind that is really there. Opens nothing.

    >>> import penstock
    >>> penstock.current_device()
    device('host:0')
    """
    if _here.device is None:
        _here.device = _first_device()
    return _here.device


def resolve(device: Device | str | int | None = None) -> Device:
    """The device that is meant, with an index: an int is an index of the current kind, a kind alone its current one.

    Opens nothing, so the device need not exist. TypeError for anything else, ValueError for a spelling that is none.
    """
    if device is None:
        return current_device()
    if isinstance(device, int) and not isinstance(device, bool):
        return Device(current_device().kind, device)
    if not isinstance(device, (str, Device)):
        raise TypeError(f"expected a device, its name, an index or None, not {type(device).__name__}")
    named = Device(device)
    return named if named.index is not None else Device(named.kind, _here.indices.get(named.kind, 0))


def opened_for(device: Device | str | int | None = None) -> OpenDevice:
    if device is not None:
        return open_device.open_device(resolve(device))
    opened = _here.opened
    if opened is None or opened.forked:
        opened = _here.opened = open_device.open_device(resolve())
    return opened


def set_device(device: Device | str | int) -> None:
    """Make the device this thread's current one, and open it. (`torch.cuda.set_device`)"""
    chosen = opened_for(device).device
    _here.device = chosen
    _here.indices[chosen.kind] = chosen.index or 0
    _here.forget()


def reopen(device: Device | str | int | None = None) -> None:
    """In a forked child: let the device be opened anew. Tensors and streams from before the fork stay unusable.

    Raises Forked where the backend cannot do that; does nothing for a device that needs no reopening.
    """
    open_device.reopen(resolve(device))


@contextmanager
def use_device(device: Device | str | int) -> Iterator[Device]:
    """The device is current inside, the one before it afterwards. (`torch.cuda.device`)

    >>> import penstock
    >>> with penstock.use_device("host:0") as device:
    ...     penstock.empty(3).device == device
    True
    """
    before, indices, _ = _here.state()
    set_device(device)
    try:
        yield current_device()
    finally:
        _here.device, _here.indices = before, indices
        _here.forget()


def stream_on(device: Device | str | int | None, default: Callable[[Device], Stream]) -> Stream:
    """This thread's current stream on the device, or else the device's default stream."""
    if device is None and (known := _here.stream) is not None:
        return known
    place = resolve(device)
    stream = _here.streams.get(place) or default(place)
    if device is None:
        _here.stream = stream
    return stream


def set_stream_on(stream: Stream) -> None:
    """Make the stream this thread's current one on its device, and that the current device."""
    set_device(stream.device)
    _here.streams[stream.device] = stream


def enter(stream: Stream) -> None:
    """Make the stream current, and its device, until this thread leaves it; streams nest, each in itself too."""
    before = _here.state()
    set_stream_on(stream)
    _here.entered.append((stream, before))


def leave(stream: Stream) -> None:
    """Everything current is as it was when this thread entered the stream last. Opens nothing."""
    for at in reversed(range(len(_here.entered))):
        if _here.entered[at][0] is stream:
            _, (_here.device, _here.indices, _here.streams) = _here.entered.pop(at)
            _here.forget()
            return
    raise WrongState(f"{stream!r} was not entered by this thread")


def forget_in_child() -> None:
    """For the fork handler: the streams of the parent are gone, also those that are current again later."""
    _here.streams = {}
    _here.entered = [(stream, (device, indices, {})) for stream, (device, indices, _) in _here.entered]
    _here.forget()
