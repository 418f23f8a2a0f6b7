"""Host memory of others that a kind of device has pinned where it is: copies from and to it need not be waited for."""

from __future__ import annotations

import threading
from typing import Any

from numpy.typing import NDArray

from forebay.spi import PinsInPlace

__all__ = ["covers", "end_kind", "forget_in_child", "overlaps", "register", "unregister"]

_registered: dict[str, dict[int, tuple[int, PinsInPlace]]] = {}  # by kind and address: its size, and who pinned it
_lock = threading.RLock()


def register(kind: str, port: PinsInPlace, address: int, nbytes: int) -> bool:
    """Pin it; False where part of it is registered already. DeviceError where the system will not."""
    with _lock:
        if overlaps(kind, address, nbytes):
            return False
        port.pin_there(address, nbytes)
        _registered.setdefault(kind, {})[address] = nbytes, port
        return True


def unregister(kind: str, address: int) -> bool:
    """Let go of it; False where nothing is registered that begins there."""
    with _lock:
        _, port = _registered.get(kind, {}).pop(address, (0, None))
        if port is not None:
            port.unpin_there(address)
        return port is not None


def overlaps(kind: str, address: int, nbytes: int) -> bool:
    """Whether any of it is registered."""
    known = tuple(_registered.get(kind, {}).items())
    return any(start < address + nbytes and address < start + length for start, (length, _) in known)


def covers(kind: str, array: NDArray[Any]) -> bool:
    """Whether all of a contiguous array is."""
    if kind not in _registered:
        return False
    start: int = array.__array_interface__["data"][0]
    known = tuple(_registered[kind].items())
    inside = any(there <= start and start + array.nbytes <= there + length for there, (length, _) in known)
    return inside and array.flags.c_contiguous


def end_kind(kind: str) -> None:
    """Its devices are gone, and let go of what they had pinned."""
    with _lock:
        for address in tuple(_registered.get(kind, ())):
            unregister(kind, address)
        _registered.pop(kind, None)


def forget_in_child() -> None:
    """For the fork handler: a child has none of its parent's memory locked."""
    global _lock  # noqa: PLW0603 -- another thread of the parent may have held the old one
    _lock = threading.RLock()
    _registered.clear()
