"""The memory of a GPU that each process of the machine uses, from NVML, which is a part of NVIDIA's driver."""

from __future__ import annotations

from forebay.backends.nvidia.nvml import WITHOUT, handle_of, imported
from forebay.errors import DeviceError

__all__ = ["process_memory"]


def process_memory(uuid: str, device: str) -> dict[int, int]:
    """Return the bytes that each process uses of the GPU, or the MIG instance, with a UUID.

    Processes whose memory is unknown are left out. Raises DeviceError if nvidia-ml-py is missing or NVML fails.
    """
    try:
        nvml = imported()
    except ImportError:
        raise _unknown(WITHOUT, 0, device) from None
    try:
        nvml.nvmlInit()
        try:
            running = nvml.nvmlDeviceGetComputeRunningProcesses(handle_of(nvml, uuid))
        finally:
            nvml.nvmlShutdown()
    except nvml.NVMLError as error:
        raise _unknown(f"NVML failed: {error}", int(error.value), device) from None
    return {process.pid: process.usedGpuMemory for process in running if process.usedGpuMemory is not None}


def _unknown(reason: str, code: int, device: str) -> DeviceError:
    message = f"{device}: the memory of other processes is unknown: {reason}"
    return DeviceError(message, code=code, call="process_memory", device=device)
