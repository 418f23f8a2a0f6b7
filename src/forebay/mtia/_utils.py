"""Which MTIA device an argument means. (`torch.mtia._utils`)"""

from __future__ import annotations

from typing import Any

from forebay.mtia._kind import MTIA

__all__ = ["_get_device_index"]


def _get_device_index(device: Any, optional: bool = False, allow_cpu: bool = False) -> int:
    """An int is itself, a device has an index, and one without, or None, is the current one if that is `optional`.

    With `allow_cpu` the host's is -1. Raises ValueError for anything else.
    """
    return MTIA.index(device, optional, allow_cpu)
