"""Device arguments of MTIA functions. (`torch.mtia._utils`)"""

from __future__ import annotations

from typing import Any

from forebay.mtia._kind import MTIA

__all__ = ["_get_device_index"]


def _get_device_index(device: Any, optional: bool = False, allow_cpu: bool = False) -> int:
    """Return the index of a device argument; the current one if it is missing and `optional`.

    The CPU device is -1 with `allow_cpu`. Raises ValueError for any other argument.
    """
    return MTIA.index(device, optional, allow_cpu)
