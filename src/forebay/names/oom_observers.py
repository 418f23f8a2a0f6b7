"""Registration of functions that are called before OutOfMemory is raised on any device of a kind."""

from __future__ import annotations

from collections.abc import Callable

from forebay.names.kind import DeviceKind
from forebay.runtime.allocator import oom_observers
from forebay.runtime.devices import open_device

__all__ = ["attach"]


def attach(kind: DeviceKind, observer: Callable[[int, int, int, int], object]) -> None:
    """Register an observer for all devices of the kind, also those that are opened later.

    Raises TypeError if it is not callable, and ForebayError, for a kind with hooks, if there is no device.
    """
    if not callable(observer):
        raise TypeError(f"observer must be callable, not {type(observer).__name__}")
    kind.require_backend("attachOutOfMemoryObserver")
    opened = open_device.open_devices(kind.name).devices
    oom_observers.attach(kind.name, observer, [each.allocator for each in opened])
