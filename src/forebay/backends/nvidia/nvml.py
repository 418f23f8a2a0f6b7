"""NVML, a part of NVIDIA's driver, through nvidia-ml-py (module `pynvml`): a package of the extra "cuda".

An installation without it has no backend for NVIDIA's GPUs either, unless cuda-bindings was installed alone. It then
finds GPUs through CUDA, and lacks what only NVML tells: sensors, the memory of other processes, and the number of
GPUs before CUDA is initialised.
"""

from __future__ import annotations

import warnings
from ctypes import CDLL
from typing import Any

__all__ = ["LIBRARY", "WITHOUT", "handle_of", "has_library", "imported"]

LIBRARY = "libnvidia-ml.so.1"
WITHOUT = "nvidia-ml-py is not installed, which reads NVML: pip install 'forebay[cuda]'"


def imported() -> Any:
    """Return the module `pynvml`. Raises ModuleNotFoundError if it is not installed, else ImportError if it fails."""
    with warnings.catch_warnings():  # the deprecated package named pynvml warns on import
        warnings.simplefilter("ignore", FutureWarning)
        import pynvml
    if not hasattr(pynvml, "nvmlInit"):
        raise ImportError("the installed module pynvml is not nvidia-ml-py", name="pynvml")
    return pynvml


def has_library() -> bool:
    """Return True if the machine has NVML. Loads the library, but does not initialise it."""
    try:
        CDLL(LIBRARY)
    except OSError:
        return False
    return True


def handle_of(nvml: Any, uuid: str) -> Any:
    """Return the handle for the UUID of a GPU or MIG instance without its prefix.

    CUDA does not report which of the two a device is.
    """
    try:
        return nvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}")
    except nvml.NVMLError_NotFound:
        return nvml.nvmlDeviceGetHandleByUUID(f"MIG-{uuid}")
