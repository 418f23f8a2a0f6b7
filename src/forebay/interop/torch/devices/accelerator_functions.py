"""The functions of torch._C behind `torch.accelerator`, for emulated devices."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

import forebay._C
import forebay.accelerator
import forebay.cuda
from forebay.interop.torch.devices.python_names import NameReplacements
from forebay.runtime.settings import process_settings

__all__ = ["replace_accelerator_functions"]


def replace_accelerator_functions(names: NameReplacements) -> None:
    """Replace them: PyTorch's own find no allocator of the device, or ignore its settings."""
    c, cuda, accelerator = forebay._C, forebay.cuda, forebay.accelerator
    functions: dict[str, Callable[..., Any]] = {
        "_accelerator_emptyCache": c._cuda_emptyCache,
        "_accelerator_emptyHostCache": c._host_emptyCache,
        "_accelerator_exchangeDevice": c._cuda_exchangeDevice,
        "_accelerator_getAllocatorSettings": lambda: process_settings.current().text,
        "_accelerator_getDeviceCapability": accelerator.get_device_capability,
        "_accelerator_getDeviceIndex": c._cuda_getDevice,
        "_accelerator_getDeviceStats": c._cuda_memoryStats,
        "_accelerator_getMemoryInfo": cuda.mem_get_info,
        "_accelerator_getStream": cuda.current_stream,
        "_accelerator_isAllocatorInitialized": c._accelerator_isAllocatorInitialized,
        "_accelerator_maybeExchangeDevice": c._cuda_maybeExchangeDevice,
        "_accelerator_resetAccumulatedStats": c._cuda_resetAccumulatedMemoryStats,
        "_accelerator_resetPeakStats": c._cuda_resetPeakMemoryStats,
        "_accelerator_setAllocatorSettings": c._accelerator_setAllocatorSettings,
        "_accelerator_setDeviceIndex": cuda.set_device,
        "_accelerator_setStream": cuda.set_stream,
        "_accelerator_synchronizeDevice": cuda.synchronize,
        "_accelerator_hooks_device_count": cuda.device_count,
        "_accelerator_hooks_exchange_device": c._cuda_exchangeDevice,
        "_accelerator_hooks_get_current_device": c._cuda_getDevice,
        "_accelerator_hooks_maybe_exchange_device": c._cuda_maybeExchangeDevice,
        "_accelerator_hooks_set_current_device": cuda.set_device,
    }
    for name, function in functions.items():
        if hasattr(torch._C, name):
            names.replace(torch._C, name, function)
