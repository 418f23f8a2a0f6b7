"""The current device and the current streams, one of each per thread: the only thread-local state of the library."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING
from weakref import WeakSet

from forebay import backends
from forebay.device_spec import Device
from forebay.errors import WrongState
from forebay.runtime.devices import open_device
from forebay.runtime.devices.open_device import OpenDevice

if TYPE_CHECKING:
    from forebay.runtime.streams.stream import Stream

__all__ = [
    "PREFERRED",
    "Here",
    "current_device",
    "current_index",
    "enter",
    "forget_in_child",
    "forget_kind",
    "here",
    "keep",
    "leave",
    "local",
    "look_again",
    "make_current",
    "opened_for",
    "reopen",
    "resolve",
    "set_device",
    "set_stream_on",
    "stream_on",
    "use_device",
]

PREFERRED = ("cuda", "mps", "mtia")  # before any vendor's, and "host" last

_State = tuple[Device | None, dict[str, int], "dict[OpenDevice, Stream]"]


class Here:
    """What is current in one thread. Read by the faces, changed only here."""

    __slots__ = ("__weakref__", "chosen", "device", "entered", "indices", "opened", "stream", "streams")

    def __init__(self) -> None:
        self.device: Device | None = None
        self.chosen = False  # the program said so, it is not just the best that there was
        self.indices: dict[str, int] = {}  # of each kind, the one last made current
        self.streams: dict[OpenDevice, Stream] = {}
        self.entered: list[tuple[Stream, _State]] = []  # by `with stream:`, and what was there before
        self.forget()
        _everywhere.add(self)

    def forget(self) -> None:
        """Something else is current: the current device and its stream are looked up by the next to ask."""
        self.opened: OpenDevice | None = None
        self.stream: Stream | None = None

    def state(self) -> _State:
        return self.device if self.chosen else None, dict(self.indices), dict(self.streams)


class _Local(threading.local):
    def __init__(self) -> None:
        self.here = Here()


_everywhere: WeakSet[Here] = WeakSet()
local = _Local()


def here() -> Here:
    """This thread's. What has to be fast says `local.here`."""
    return local.here


def _first_device() -> Device:
    drivers = backends.drivers()
    others = sorted(drivers.keys() - {*PREFERRED, "host"})
    kind = next((kind for kind in (*PREFERRED, *others) if kind in drivers and drivers[kind].count()), "host")
    return Device(kind, 0)


def current_device() -> Device:
    """This thread's current device; at first, the best kind that is really there. Opens nothing.

    >>> import forebay
    >>> forebay.current_device()
    device('host:0')
    """
    state = local.here
    if state.device is None:
        state.device = _first_device()
    return state.device


def current_index(kind: str) -> int:
    """Which of the kind's devices is meant when none is named."""
    return local.here.indices.get(kind, 0)


def resolve(device: Device | str | int | None = None) -> Device:
    """The device that is meant, with an index: an int is an index of the current kind, a kind alone its current one.

    "cpu" is the host device. Opens nothing, so the device need not exist. TypeError for anything else, ValueError for
    a spelling that is none.
    """
    if device is None:
        return current_device()
    if device.__class__ is Device and device.index is not None and device.kind != "cpu":
        return device
    if isinstance(device, int) and not isinstance(device, bool):
        return Device(current_device().kind, device)
    if not isinstance(device, (str, Device)):
        raise TypeError(f"expected a device, its name, an index or None, not {type(device).__name__}")
    named = Device(device)
    if named.kind == "cpu":  # PyTorch's name for what is the host device here
        named = Device("host", named.index)
    return named if named.index is not None else Device(named.kind, current_index(named.kind))


def opened_for(device: Device | str | int | None = None) -> OpenDevice:
    if device is not None:
        return open_device.open_device(resolve(device))
    state = local.here
    opened = state.opened
    if opened is None or opened.gone:
        opened = state.opened = open_device.open_device(resolve())
    return opened


def keep(opened: OpenDevice) -> None:
    """For the next to ask, if it is this thread's current device."""
    if current_device() == opened.device:
        local.here.opened = opened


def set_device(device: Device | str | int) -> None:
    """Make the device this thread's current one, and open it. (`torch.cuda.set_device`)"""
    make_current(opened_for(device).device)


def make_current(device: Device) -> None:
    """The device is this thread's current one, and of its kind. Opens nothing."""
    state = local.here
    state.device, state.chosen = device, True
    state.indices[device.kind] = device.index or 0
    state.forget()


def reopen(device: Device | str | int | None = None) -> None:
    """In a forked child: let the device be opened anew. Tensors and streams from before the fork stay unusable.

    Raises Forked where the backend cannot do that; does nothing for a device that needs no reopening.
    """
    open_device.reopen(resolve(device))


@contextmanager
def use_device(device: Device | str | int) -> Iterator[Device]:
    """The device is current inside, the one before it afterwards. (`torch.cuda.device`)

    >>> import forebay
    >>> with forebay.use_device("host:0") as device:
    ...     forebay.empty(3).device == device
    True
    """
    state = local.here
    before, indices, _ = state.state()
    set_device(device)
    try:
        yield current_device()
    finally:
        state.device, state.chosen, state.indices = before, before is not None, indices
        state.forget()


def stream_on(device: Device | str | int | None, default: Callable[[OpenDevice], Stream]) -> Stream:
    """This thread's current stream on the device, or else the device's default stream."""
    state = local.here
    if device is None and (known := state.stream) is not None:  # whatever ends a device takes it from here
        return known
    opened = opened_for(device)
    stream = state.streams.get(opened) or default(opened)
    if device is None:
        state.stream = stream
    return stream


def set_stream_on(stream: Stream) -> None:
    """Make the stream this thread's current one on its device, and that the current device."""
    state, opened = local.here, stream.opened
    if state.opened is not opened:
        make_current(opened.device)
        state.opened = opened
    state.streams[opened] = state.stream = stream


def enter(stream: Stream) -> None:
    """Make the stream current, and its device, until this thread leaves it; streams nest, each in itself too."""
    state = local.here
    before = state.state()
    set_stream_on(stream)
    state.entered.append((stream, before))


def leave(stream: Stream) -> None:
    """Everything current is as it was when this thread entered the stream last. Opens nothing."""
    state = local.here
    entered = state.entered
    for at in reversed(range(len(entered))):
        if entered[at][0] is stream:
            _, (state.device, state.indices, state.streams) = entered.pop(at)
            state.chosen = state.device is not None
            state.forget()
            return
    raise WrongState(f"{stream!r} was not entered by this thread")


def forget_in_child() -> None:
    """For the fork handler: the streams of the parent are gone, also those that are current again later."""
    state = local.here
    state.streams = {}
    state.entered = [(stream, (device, indices, {})) for stream, (device, indices, _) in state.entered]
    state.forget()


def look_again() -> None:
    """There are other devices than before: where the program has chosen none, another one may be the best."""
    for state in tuple(_everywhere):
        if not state.chosen:
            state.device = None
            state.forget()


def forget_kind(kind: str) -> None:
    """No device of the kind is current any more, in no thread: there are none."""
    for state in tuple(_everywhere):
        if state.device is not None and state.device.kind == kind:
            state.device, state.chosen = None, False
        state.indices.pop(kind, None)
        for opened in tuple(state.streams):
            if opened.device.kind == kind:
                state.streams.pop(opened, None)
        state.forget()
