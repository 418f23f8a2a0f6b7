"""Registry of host memory that was pinned in place for a device kind; copies from and to it may be asynchronous."""

from __future__ import annotations

import threading
from typing import Any

from numpy.typing import NDArray

from forebay.spi import PinsInPlace

__all__ = ["after_fork_in_child", "contains", "covers", "overlaps", "register", "unregister", "unregister_kind"]

_registered: dict[str, dict[int, tuple[int, PinsInPlace]]] = {}  # kind -> address -> size, port that pinned it
_lock = threading.RLock()


def register(kind: str, port: PinsInPlace, address: int, nbytes: int) -> bool:
    """Pin the range in place. Return False if it overlaps a registered one; raise DeviceError if the system refuses."""
    with _lock:
        if overlaps(kind, address, nbytes):
            return False
        port.pin_in_place(address, nbytes)
        _registered.setdefault(kind, {})[address] = nbytes, port
        return True


def unregister(kind: str, address: int) -> bool:
    """Unpin the registered range that starts at `address`. Return False if there is no such range."""
    with _lock:
        _, port = _registered.get(kind, {}).pop(address, (0, None))
        if port is not None:
            port.unpin_in_place(address)
        return port is not None


def overlaps(kind: str, address: int, nbytes: int) -> bool:
    """Return True if any byte of the range is registered."""
    known = tuple(_registered.get(kind, {}).items())
    return any(start < address + nbytes and address < start + length for start, (length, _) in known)


def contains(address: int) -> bool:
    """Return True if the address lies in a registered range of any kind."""
    ranges = [entry for known in tuple(_registered.values()) for entry in tuple(known.items())]
    return any(start <= address < start + length for start, (length, _) in ranges)


def covers(kind: str, array: NDArray[Any]) -> bool:
    """Return True if the array is contiguous and lies entirely in one registered range."""
    if kind not in _registered:
        return False
    start: int = array.__array_interface__["data"][0]
    known = tuple(_registered[kind].items())
    inside = any(base <= start and start + array.nbytes <= base + length for base, (length, _) in known)
    return inside and array.flags.c_contiguous


def unregister_kind(kind: str) -> None:
    """Unregister all ranges of the kind, whose devices are closed."""
    with _lock:
        for address in tuple(_registered.get(kind, ())):
            unregister(kind, address)
        _registered.pop(kind, None)


def after_fork_in_child() -> None:
    """Clear the registry in a forked child, which inherits none of its parent's page locks."""
    global _lock  # noqa: PLW0603 -- another thread of the parent may have held the old lock
    _lock = threading.RLock()
    _registered.clear()
