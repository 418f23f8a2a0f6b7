"""The memory of a GPU that each process of the machine uses, from NVML, which is a part of NVIDIA's driver."""

from __future__ import annotations

from forebay.backends.nvidia.nvml_ctypes import LIBRARY, NVMLError, NvmlLibrary, handle_of
from forebay.errors import DeviceError

__all__ = ["process_memory"]


def process_memory(uuid: str, device: str) -> dict[int, int]:
    """Return the bytes that each process uses of the GPU, or the MIG instance, with a UUID.

    Processes whose memory is unknown are left out. Raises DeviceError if NVML is missing or fails.
    """
    try:
        library = NvmlLibrary()
        library.nvmlInit()
    except (OSError, AttributeError, NVMLError) as error:
        raise _unknown(error, device) from None
    try:
        running = library.nvmlDeviceGetComputeRunningProcesses(handle_of(library, uuid))
    except (AttributeError, NVMLError) as error:
        raise _unknown(error, device) from None
    finally:
        library.nvmlShutdown()
    return {process.pid: process.usedGpuMemory for process in running if process.usedGpuMemory is not None}


def _unknown(error: Exception, device: str) -> DeviceError:
    """Return the error of a failure of NVML; an AttributeError means that the library is older than a function."""
    reason = f"{error.call} failed: {error}" if isinstance(error, NVMLError) else f"{LIBRARY} cannot be used: {error}"
    code = error.code if isinstance(error, NVMLError) else 0
    message = f"{device}: the memory of other processes is unknown, as NVML's {reason}"
    return DeviceError(message, code=code, call="process_memory", device=device)
