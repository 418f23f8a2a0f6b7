"""Queries of PyTorch that initialise the driver of a GPU, after which a forked child cannot use it.

# Note [Queries that initialise the driver]
On a GPU, `torch.cuda.is_available()` and what calls it ask the CUDA runtime for the number of devices. That initialises
the driver, which does not survive a fork, and PyTorch refuses devices in children that are forked afterwards. With
PYTORCH_NVML_BASED_CUDA_CHECK=1 is_available asks NVML instead, which leaves no trace, as `torch.cuda.device_count()`
does always. forebay's own functions initialise nothing; those of PyTorch note the driver, so that a program that fails
on a GPU fails here. Which functions do so was measured with PyTorch's CUDA build over a stand-in runtime.
Test: tests/interop/torch/devices/test_driver_queries.py::test_child_fails_after_queries_that_initialise_the_driver
"""

from __future__ import annotations

from functools import wraps

import torch
import torch.backends.cudnn

from forebay import cuda
from forebay.cuda.telemetry import _nvml_based_avail as _is_nvml_based
from forebay.interop.torch.devices.python_names import NameReplacements
from forebay.runtime.base import lazy_init

__all__ = ["replace_queries"]


def replace_queries(names: NameReplacements) -> None:
    """Replace the functions that tell whether there are devices by ones that note the driver as on a GPU."""
    version = torch.backends.cudnn.version

    @wraps(torch.cuda.is_available)
    def is_available() -> bool:
        if not _is_nvml_based():
            lazy_init.get("cuda").note_driver("torch.cuda.is_available")
        return cuda.device_count() > 0

    @wraps(torch.accelerator.is_available)
    def is_accelerator_available() -> bool:
        return bool(torch.cuda.is_available())

    @wraps(torch.accelerator.current_accelerator)
    def current_accelerator(check_available: bool = False) -> torch.device | None:
        return torch.device("cuda") if not check_available or torch.cuda.is_available() else None

    @wraps(version)
    def cudnn_version() -> int | None:
        lazy_init.get("cuda").note_driver("torch.backends.cudnn.version")
        found: int | None = version()
        return found

    def count_devices() -> int:
        lazy_init.get("cuda").note_driver("torch._C._cuda_getDeviceCount")
        return cuda.device_count()

    names.replace(torch.cuda, "is_available", is_available)
    names.replace(torch._C, "_cuda_getDeviceCount", count_devices)
    names.replace(torch.accelerator, "is_available", is_accelerator_available)
    names.replace(torch.accelerator, "current_accelerator", current_accelerator)
    names.replace(torch.backends.cudnn, "version", cudnn_version)
