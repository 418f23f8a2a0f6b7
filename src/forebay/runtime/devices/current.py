"""The current device and the current streams of each thread."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final
from weakref import WeakSet

from forebay import backends
from forebay._base import device_spec
from forebay._base.device_spec import CPU, Device, DeviceLike, canonical, default_device
from forebay.errors import WrongState
from forebay.runtime.devices import open_device
from forebay.runtime.devices._thread_state import ThreadState
from forebay.runtime.devices.open_device import OpenDevice

if TYPE_CHECKING:
    from forebay.runtime.streams.stream import Stream

__all__ = [
    "PREFERRED",
    "ThreadState",
    "accelerator_kind",
    "after_fork_in_child",
    "cache_opened",
    "clear_caches",
    "current_device",
    "current_index",
    "device_argument",
    "get_default_device",
    "local",
    "make_current",
    "opened_for",
    "pop_stream",
    "push_stream",
    "reset_current_device",
    "reset_kind",
    "resolve",
    "resolve_default",
    "set_default_device",
    "set_device",
    "set_stream_on",
    "stream_on",
    "thread_state",
    "use_device",
]

PREFERRED = ("cuda", "mps", "mtia")  # accelerators in order of preference; kinds of other packages follow

_thread_states: WeakSet[ThreadState] = WeakSet()


class _Local(threading.local):
    def __init__(self) -> None:
        self.state: ThreadState = ThreadState()
        _thread_states.add(self.state)


local: Final = _Local()


def thread_state() -> ThreadState:
    """Return the state of the calling thread. Fast paths read `local.state`."""
    return local.state


def _first_accelerator() -> str | None:
    """Return the preferred kind that has a device, or None without an accelerator."""
    drivers = backends.drivers()
    others = sorted(drivers.keys() - {*PREFERRED, "cpu"})
    return next((kind for kind in (*PREFERRED, *others) if kind in drivers and drivers[kind].count()), None)


def accelerator_kind() -> str | None:
    """Return the kind of the current accelerator, or None without one. Does not open a device.

    The current accelerator is this thread's current device, or the preferred accelerator while that device is the CPU.
    """
    device = local.state.device
    return device.kind if device is not None and device.kind != "cpu" else _first_accelerator()


def current_device() -> Device:
    """Return this thread's current device: the one it set, else the preferred accelerator, else the CPU.

    Does not open a device. Tensor factories use the default device instead; see `get_default_device`.

    Returns
    -------
    device
        The device that streams, events, statistics and synchronisation use by default.

    Examples
    --------
    >>> import forebay
    >>> forebay.current_device()
    device(type='cpu')
    """
    state = local.state
    if state.device is None:
        kind = _first_accelerator()
        state.device = CPU if kind is None else Device(kind, 0)
    return state.device


def current_index(kind: str) -> int:
    """Return the index of this thread's current device of the kind, which a device name without an index denotes."""
    return local.state.indices.get(kind, 0)


def device_argument(device: DeviceLike) -> Device:
    """Return the Device that an argument denotes. Raises TypeError that names the argument and its type."""
    if isinstance(device, Device):
        return device
    try:
        return Device(device)
    except TypeError:
        raise TypeError(f"argument 'device' must be forebay.device, not {type(device).__name__}") from None


def resolve(device: DeviceLike | None = None) -> Device:
    """Return the canonical device for a device argument. Does not open it.

    None is the current device, an int an index of the current accelerator, a kind without an index the current device
    of that kind. The canonical name of the first CPU device is `cpu`, without an index.
    """
    if device is None:
        return current_device()
    if device.__class__ is not Device:
        device = device_argument(device)
    if device.index is None:
        return device if device.kind == "cpu" else Device(device.kind, current_index(device.kind))
    return canonical(device)


def resolve_default(device: DeviceLike | None = None) -> Device:
    """Return the canonical device for a tensor factory's device argument; None is this thread's default device."""
    return resolve(default_device() if device is None else device)


def get_default_device() -> Device:
    """Return the device on which factories of this thread create tensors.

    As `torch.get_default_device`. Does not open a device.

    Returns
    -------
    device
        The CPU, unless `set_default_device` or `with device:` selected another.

    Examples
    --------
    >>> import forebay
    >>> with forebay.device("cuda:1"):
    ...     forebay.get_default_device()
    device(type='cuda', index=1)
    """
    return resolve(default_device())


def set_default_device(device: DeviceLike | None) -> None:
    """Set the device on which factories of this thread create tensors.

    As `torch.set_default_device`. A `with device:` block takes precedence while it is active. Does not open the device.

    Parameters
    ----------
    device : device or str or int or None
        The device; None restores the CPU.

    Raises
    ------
    RuntimeError
        If the device string is malformed.
    """
    device_spec.set_default(None if device is None else Device(device))


def opened_for(device: DeviceLike | None = None) -> OpenDevice:
    """Return the open device for a device argument, opening it on first use."""
    state = local.state  # Note [Caches of the current device]
    if device is None:
        opened = state.opened
        if opened is None or opened.unusable:
            opened = state.opened = open_device.open_device(resolve())
        return opened
    if device.__class__ is Device:
        name: object = device.kind, device.index
    elif device.__class__ is str:
        name = device
    else:  # an index, whose kind depends on other threads, or a device of PyTorch
        return open_device.open_device(resolve(device))
    found = state.named.get(name)
    if found is None or found.unusable:
        found = state.named[name] = open_device.open_device(resolve(device))
    return found


def cache_opened(opened: OpenDevice) -> None:
    """Cache the device for the next lookup if it is this thread's current device."""
    if current_device() == opened.device:
        local.state.opened = opened


def set_device(device: DeviceLike) -> None:
    """Make a device this thread's current one.

    As `torch.cuda.set_device`. Tensor factories use the default device instead; see `set_default_device`.

    Parameters
    ----------
    device : device or str or int
        The device, which is opened if needed.

    Raises
    ------
    ForebayError
        If the device does not exist.
    """
    make_current(opened_for(device).device)


def make_current(device: Device) -> None:
    """Make the device this thread's current one, and the current one of its kind. Does not open it."""
    local.state.make_current(device)


@contextmanager
def use_device(device: DeviceLike) -> Iterator[Device]:
    """Make a device the current device and the default of tensor factories within the context.

    Combines `torch.cuda.device` and `with torch.device(...)`.

    Parameters
    ----------
    device : device or str or int
        The device, which is opened if needed.

    Yields
    ------
    device
        The device, with its index.

    Examples
    --------
    >>> import forebay
    >>> with forebay.use_device("cpu") as device:
    ...     forebay.empty(3).device == device
    True
    """
    state = local.state
    previous, indices, _ = state.save()
    set_device(device)
    try:
        with current_device() as selected:
            yield selected
    finally:
        state.device, state.explicit, state.indices = previous, previous is not None, indices
        state.clear_cache()


def stream_on(device: DeviceLike | None, default: Callable[[OpenDevice], Stream]) -> Stream:
    """Return this thread's current stream on the device, else the device's default stream."""
    state = local.state
    if device is None and (cached := state.stream) is not None:  # Note [Caches of the current device]
        return cached
    opened = opened_for(device)
    stream = state.streams.get(opened) or opened.default_stream or default(opened)
    if device is None:
        state.stream = stream
    return stream


def set_stream_on(stream: Stream) -> None:
    """Make the stream this thread's current one on its device, and its device the current one."""
    state, opened = local.state, stream.opened
    if state.opened is not opened:
        state.make_current(opened.device)
        state.opened = opened
    state.streams[opened] = state.stream = stream


def push_stream(stream: Stream) -> None:
    """Make the stream and its device current until `pop_stream`. A stream can be pushed more than once.

    As in PyTorch, one that is current on its device already changes nothing, not even the device.
    """
    state, opened = local.state, stream.opened
    now = state.streams.get(opened)
    if (now or opened.default_stream) == stream:
        state.stream_stack.append((stream, None))
        return
    device, indices, _ = state.save()
    elsewhere, preferred = state.device != opened.device, not state.explicit
    set_stream_on(stream)
    state.stream_stack.append((stream, (now, (device, indices) if elsewhere else None, preferred)))


def pop_stream(stream: Stream) -> None:
    """Restore what this thread's last `push_stream` of the stream changed. Does not open a device.

    These are the current stream of its device and, if another device was current, that. A device that was only the
    preferred one is no more than that afterwards: another accelerator can take its place.
    """
    state = local.state
    stack = state.stream_stack
    for position in reversed(range(len(stack))):
        if stack[position][0] is stream:
            undo = stack.pop(position)[1]
            if undo is None:
                return
            before, place, preferred = undo
            if before is None:
                state.streams.pop(stream.opened, None)
            else:
                state.streams[stream.opened] = before
            if place is not None:
                state.device, state.indices = place
                state.explicit = state.device is not None
            elif preferred and state.device == stream.opened.device:
                state.explicit = False
            state.clear_cache()
            return
    raise WrongState(f"{stream!r} was not entered by this thread")


def after_fork_in_child() -> None:
    """Drop the streams of unusable devices in a forked child, also those that `with stream:` blocks would restore."""
    state = local.state
    state.streams = _usable(state.streams)
    state.stream_stack = [
        (to, undo and (None if undo[0] is None or undo[0].opened.unusable else undo[0], undo[1], undo[2]))
        for to, undo in state.stream_stack
    ]
    state.clear_cache()


def _usable(streams: dict[OpenDevice, Stream]) -> dict[OpenDevice, Stream]:
    return {opened: stream for opened, stream in streams.items() if not opened.unusable}


def reset_current_device() -> None:
    """Reset the current device of threads that did not set one: another accelerator may be preferred now."""
    for state in tuple(_thread_states):
        if not state.explicit:
            state.device = None
            state.clear_cache()


def clear_caches() -> None:
    """Let all threads look up their devices again."""
    for state in tuple(_thread_states):
        state.clear_cache()


def reset_kind(kind: str) -> None:
    """Remove devices and streams of the kind from the state of all threads."""
    for state in tuple(_thread_states):
        if state.device is not None and state.device.kind == kind:
            state.device, state.explicit = None, False
        state.indices.pop(kind, None)
        for opened in tuple(state.streams):
            if opened.device.kind == kind:
                state.streams.pop(opened, None)
        state.clear_cache()
