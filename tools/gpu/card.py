"""The GPU that a run uses, and whether it is the software driver of tests/softcuda."""

from __future__ import annotations

import ctypes
from contextlib import suppress
from dataclasses import dataclass

from forebay.backends.nvidia.calls import call
from forebay.backends.nvidia.driver import CudaDriver

__all__ = ["Card", "find_card", "is_software"]


@dataclass(frozen=True)
class Card:
    """Names of a GPU and its driver, for the results of a run."""

    name: str
    driver: str
    count: int  # GPUs that CUDA can use
    software: bool  # the software driver, which has no hardware


def find_card() -> Card:
    """Describe the first GPU. There must be one."""
    found = CudaDriver()
    version = int(call("cuDriverGetVersion"))
    cuda = f"CUDA {version // 1000}.{version % 1000 // 10}"
    release = _release()
    return Card(found.describe(0).name, f"{release} ({cuda})" if release else cuda, found.count(), is_software())


def is_software() -> bool:
    """Return True if the driver's library is that of tests/softcuda."""
    try:
        return hasattr(ctypes.CDLL("libcuda.so.1"), "softcuda_live")
    except OSError:
        return False


def _release() -> str:
    """Return the version of the driver's release, for example "580.65.06", or "" without NVML."""
    with suppress(Exception):  # the release is only shown; nvidia-ml-py has errors of its own
        import pynvml

        pynvml.nvmlInit()
        try:
            found = pynvml.nvmlSystemGetDriverVersion()
        finally:
            pynvml.nvmlShutdown()
        return found.decode() if isinstance(found, bytes) else str(found)
    return ""
