"""PyTorch's environment variables for MPS, which apply from the first use of an MPS device on.

Importing this module adds a function to WHEN_OPENED. What the variables request is imported only if one is set.
"""

from __future__ import annotations

from importlib import import_module

from forebay._base import config
from forebay.runtime.devices.open_device import WHEN_OPENED, OpenDevice

__all__: list[str] = []

_VARIABLES = (config.MPS_ALLOCATOR_LOG, config.MPS_OPERATION_LOG, config.MPS_SIGNPOSTS)


def _follow(opened: OpenDevice) -> None:
    if opened.device.kind == "mps" and any(variable.value() for variable in _VARIABLES):
        import_module("forebay.observe.mps_logs").follow(opened)


WHEN_OPENED.append(_follow)
