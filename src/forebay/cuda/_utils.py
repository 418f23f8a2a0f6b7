"""Resolution of device arguments (`torch.cuda._utils`)."""

from __future__ import annotations

from typing import Any

from forebay._base.device_spec import Device, DeviceLike
from forebay.cuda._kind import CUDA

__all__ = ["_device_t", "_get_device_index"]

_device_t = DeviceLike | None


def _get_device_index(device: Any, optional: bool = False, allow_cpu: bool = False) -> int | None:
    """Return the index of a device; with `optional`, the current one's if `device` is None or has no index.

    Without a device there is no current one, and the result is None. An int is returned unchanged. With `allow_cpu`,
    the CPU device's index is -1. Raises ValueError for other devices.
    """
    if optional:
        return CUDA.optional_index(device, allow_cpu=allow_cpu)
    return CUDA.index(device, allow_cpu=allow_cpu)
