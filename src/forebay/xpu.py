"""`torch.xpu` without an Intel GPU: programs ask whether there is one."""

from __future__ import annotations

__all__ = ["device_count", "is_available", "is_initialized"]


def is_available() -> bool:
    """Return False: there are no XPU devices."""
    return False


def device_count() -> int:
    """Return 0: there are no XPU devices."""
    return 0


def is_initialized() -> bool:
    """Return False: there are no XPU devices."""
    return False
