"""The current device and the current streams of each thread."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING
from weakref import WeakSet

from forebay import backends, device_spec
from forebay.device_spec import CPU, Device, canonical, default_device
from forebay.errors import WrongState
from forebay.runtime.devices import open_device
from forebay.runtime.devices.open_device import OpenDevice

if TYPE_CHECKING:
    from forebay.runtime.streams.stream import Stream

__all__ = [
    "PREFERRED",
    "ThreadState",
    "accelerator_kind",
    "current_device",
    "current_index",
    "enter",
    "forget_in_child",
    "forget_kind",
    "get_default_device",
    "here",
    "keep",
    "leave",
    "local",
    "look_again",
    "make_current",
    "opened_for",
    "reopen",
    "resolve",
    "resolve_default",
    "set_default_device",
    "set_device",
    "set_stream_on",
    "stream_on",
    "use_device",
]

PREFERRED = ("cuda", "mps", "mtia")  # accelerators in order of preference; kinds of other packages follow

_State = tuple[Device | None, dict[str, int], "dict[OpenDevice, Stream]"]


class ThreadState:
    """The current device and streams of one thread. Other modules read it; only this one changes it."""

    __slots__ = ("__weakref__", "chosen", "device", "entered", "indices", "opened", "stream", "streams")

    def __init__(self) -> None:
        self.device: Device | None = None
        self.chosen = False  # the program set `device`; otherwise it is the preferred accelerator
        self.indices: dict[str, int] = {}  # by kind: the index that was last current
        self.streams: dict[OpenDevice, Stream] = {}
        self.entered: list[tuple[Stream, _State]] = []  # streams of `with stream:` blocks, and the state before each
        self.forget()
        _everywhere.add(self)

    def forget(self) -> None:
        """Drop the cached device and stream after a change of the current device."""
        self.opened: OpenDevice | None = None
        self.stream: Stream | None = None

    def state(self) -> _State:
        return self.device if self.chosen else None, dict(self.indices), dict(self.streams)


class _Local(threading.local):
    def __init__(self) -> None:
        self.here = ThreadState()


_everywhere: WeakSet[ThreadState] = WeakSet()
local = _Local()


def here() -> ThreadState:
    """Return the state of this thread. Fast paths read `local.here`."""
    return local.here


def _first_accelerator() -> str | None:
    """Return the preferred kind that has a device, or None without an accelerator."""
    drivers = backends.drivers()
    others = sorted(drivers.keys() - {*PREFERRED, "cpu"})
    return next((kind for kind in (*PREFERRED, *others) if kind in drivers and drivers[kind].count()), None)


def accelerator_kind() -> str | None:
    """Return the kind of the current accelerator, or None without one. Opens nothing.

    It is the kind of this thread's current device, or the preferred kind while that is the CPU.
    """
    chosen = local.here.device
    return chosen.kind if chosen is not None and chosen.kind != "cpu" else _first_accelerator()


def current_device() -> Device:
    """Return this thread's current device: the one it set, else the preferred accelerator, else the CPU.

    Returns
    -------
    device
        The device that streams, events, statistics and synchronisation use when none is named.

    Notes
    -----
    Opens nothing. Tensor factories use the default device instead; see `get_default_device`.

    Examples
    --------
    >>> import forebay
    >>> forebay.current_device()
    device(type='cpu')
    """
    state = local.here
    if state.device is None:
        kind = _first_accelerator()
        state.device = CPU if kind is None else Device(kind, 0)
    return state.device


def current_index(kind: str) -> int:
    """Return the index of the device of this kind that a kind alone means in this thread."""
    return local.here.indices.get(kind, 0)


def resolve(device: Device | str | int | None = None) -> Device:
    """Return the device that an argument names, in the one spelling that the runtime uses. Opens nothing.

    None is the current device, an int an index of the current accelerator, a kind alone the current device of that
    kind. The first CPU device is `cpu`, without an index.
    """
    if device is None:
        return current_device()
    if device.__class__ is not Device:
        device = Device(device)
    if device.index is None:
        return device if device.kind == "cpu" else Device(device.kind, current_index(device.kind))
    return canonical(device)


def resolve_default(device: Device | str | int | None = None) -> Device:
    """Return the device that a tensor factory uses: the one named, or else the default device of this thread."""
    return resolve(default_device() if device is None else device)


def get_default_device() -> Device:
    """Return the device on which factories of this thread create tensors.

    Returns
    -------
    device
        The CPU, unless `set_default_device` or `with device:` chose another.

    Notes
    -----
    As `torch.get_default_device`. Opens nothing.

    Examples
    --------
    >>> import forebay
    >>> with forebay.device("cuda:1"):
    ...     forebay.get_default_device()
    device(type='cuda', index=1)
    """
    return resolve(default_device())


def set_default_device(device: Device | str | int | None) -> None:
    """Set the device on which factories of this thread create tensors.

    Parameters
    ----------
    device : device or str or int or None
        The device; None restores the CPU.

    Raises
    ------
    RuntimeError
        If the device string is malformed.

    Notes
    -----
    As `torch.set_default_device`. A `with device:` block takes precedence while it is active. Opens nothing.
    """
    device_spec.set_default(None if device is None else Device(device))


def opened_for(device: Device | str | int | None = None) -> OpenDevice:
    if device is not None:
        return open_device.open_device(resolve(device))
    state = local.here
    opened = state.opened
    if opened is None or opened.unusable:
        opened = state.opened = open_device.open_device(resolve())
    return opened


def keep(opened: OpenDevice) -> None:
    """Cache the device for the next lookup if it is this thread's current device."""
    if current_device() == opened.device:
        local.here.opened = opened


def set_device(device: Device | str | int) -> None:
    """Make a device this thread's current one.

    Parameters
    ----------
    device : device or str or int
        The device. It is opened.

    Raises
    ------
    ForebayError
        If the device does not exist.

    Notes
    -----
    As `torch.cuda.set_device`. Tensor factories use the default device instead; see `set_default_device`.
    """
    make_current(opened_for(device).device)


def make_current(device: Device) -> None:
    """Make the device this thread's current one, and the current one of its kind. Opens nothing."""
    state = local.here
    state.device, state.chosen = device, True
    state.indices[device.kind] = device.index or 0
    state.forget()


def reopen(device: Device | str | int | None = None) -> None:
    """Let a device be opened again in a forked child. Tensors and streams from before the fork stay unusable.

    Parameters
    ----------
    device : device or str or int, optional
        The device; the current one by default.

    Raises
    ------
    Forked
        If the backend cannot be used after a fork.

    Notes
    -----
    Does nothing for a device that was not opened before the fork.
    """
    open_device.reopen(resolve(device))


@contextmanager
def use_device(device: Device | str | int) -> Iterator[Device]:
    """Make a device current, and the default of tensor factories, inside the context.

    Parameters
    ----------
    device : device or str or int
        The device. It is opened.

    Yields
    ------
    device
        The device, with its index.

    Notes
    -----
    `torch.cuda.device` and `with torch.device(...)` in one.

    Examples
    --------
    >>> import forebay
    >>> with forebay.use_device("cpu") as device:
    ...     forebay.empty(3).device == device
    True
    """
    state = local.here
    before, indices, _ = state.state()
    set_device(device)
    try:
        with current_device() as entered:
            yield entered
    finally:
        state.device, state.chosen, state.indices = before, before is not None, indices
        state.forget()


def stream_on(device: Device | str | int | None, default: Callable[[OpenDevice], Stream]) -> Stream:
    """Return this thread's current stream on the device, else the device's default stream."""
    state = local.here
    if device is None and (known := state.stream) is not None:  # the end of a device clears the cache
        return known
    opened = opened_for(device)
    stream = state.streams.get(opened) or default(opened)
    if device is None:
        state.stream = stream
    return stream


def set_stream_on(stream: Stream) -> None:
    """Make the stream this thread's current one on its device, and its device the current one."""
    state, opened = local.here, stream.opened
    if state.opened is not opened:
        make_current(opened.device)
        state.opened = opened
    state.streams[opened] = state.stream = stream


def enter(stream: Stream) -> None:
    """Make the stream and its device current until `leave`. Streams nest, also in themselves."""
    state = local.here
    before = state.state()
    set_stream_on(stream)
    state.entered.append((stream, before))


def leave(stream: Stream) -> None:
    """Restore the state before this thread last entered the stream. Opens nothing."""
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
    """Drop the parent's streams in a forked child, also those that nested blocks would restore."""
    state = local.here
    state.streams = {}
    state.entered = [(stream, (device, indices, {})) for stream, (device, indices, _) in state.entered]
    state.forget()


def look_again() -> None:
    """Reset current devices that no program set: after a change of devices another may be preferred."""
    for state in tuple(_everywhere):
        if not state.chosen:
            state.device = None
            state.forget()


def forget_kind(kind: str) -> None:
    """Reset the state of all threads that refers to devices of a kind that has ended."""
    for state in tuple(_everywhere):
        if state.device is not None and state.device.kind == kind:
            state.device, state.chosen = None, False
        state.indices.pop(kind, None)
        for opened in tuple(state.streams):
            if opened.device.kind == kind:
                state.streams.pop(opened, None)
        state.forget()


device_spec._hooks.accelerator = accelerator_kind  # noqa: SLF001 - a device of floor 1 may be an index alone
device_spec._hooks.installed = backends.drivers  # noqa: SLF001 - as above: kinds that packages bring
