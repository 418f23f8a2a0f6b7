"""Facts of a record about the card and the software: none depends on clocks or on the moment."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch

from gpu.workloads.nvml_memory import UsedMemory

__all__ = ["card_facts", "has_gpu", "versions"]

_PROPERTIES = (
    "major", "minor", "multi_processor_count", "total_memory", "L2_cache_size", "warp_size", "regs_per_multiprocessor",
    "shared_memory_per_block", "shared_memory_per_block_optin", "shared_memory_per_multiprocessor",
    "max_threads_per_multi_processor", "max_threads_per_block", "clock_rate", "memory_clock_rate", "memory_bus_width",
    "is_integrated", "is_multi_gpu_board",
)  # fmt: skip
_PACKAGES = (
    "transformers", "peft", "accelerate", "timm", "torchvision", "torch-geometric", "triton", "nvidia-ml-py", "numpy",
    "nvidia-cublas", "nvidia-cudnn-cu13", "nvidia-nccl-cu13", "nvidia-cusolver", "nvidia-cufft",
)  # fmt: skip
_DRIVERS = ("/dev/nvidiactl", "/proc/driver/nvidia/version", "/dev/dxg")  # of Linux, and of Linux on Windows


def has_gpu() -> bool:
    """Return whether there is a driver of real hardware. A stand-in of CUDA's libraries has none."""
    return any(map(os.path.exists, _DRIVERS))


def card_facts() -> dict[str, Any]:
    """Return facts about the first GPU; an empty dict if PyTorch finds none. Initializes CUDA."""
    if not torch.cuda.is_available():
        return {}
    properties = torch.cuda.get_device_properties(0)
    found = {name: getattr(properties, name) for name in _PROPERTIES if hasattr(properties, name)}
    return {"name": properties.name, **found, "count": torch.cuda.device_count(), **UsedMemory().facts()}


def versions() -> dict[str, str]:
    """Return the versions of Python, PyTorch's libraries and the packages that are installed."""
    found = {"python": platform.python_version(), "torch": torch.__version__}
    libraries: dict[str, Callable[[], Any]] = {
        "cuda": lambda: torch.version.cuda,
        "cudnn": torch.backends.cudnn.version,
        "nccl": lambda: ".".join(map(str, torch.cuda.nccl.version())),
    }
    for name, ask in libraries.items():
        with suppress(Exception):  # this build of PyTorch does not have it
            if (value := ask()) is not None:
                found[name] = str(value)
    for name in _PACKAGES:
        with suppress(PackageNotFoundError):
            found.setdefault(name, version(name))
    return found
