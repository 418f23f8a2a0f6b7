"""Which CUDA device an argument means. (`torch.cuda._utils`)"""

from __future__ import annotations

from typing import Any

from forebay.cuda._kind import CUDA
from forebay.device_spec import Device

__all__ = ["_device_t", "_get_device_index"]

_device_t = Device | str | int | None  # what a device is named by


def _get_device_index(device: Any, optional: bool = False, allow_cpu: bool = False) -> int:
    """An int is itself, a device has an index, and one without, or None, is the current one if that is `optional`.

    With `allow_cpu` the host's is -1. Raises ValueError for anything else.
    """
    return CUDA.index(device, optional, allow_cpu)
