"""Used memory of the GPU, as NVIDIA's management library counts it: also before this process uses CUDA."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import Any

__all__ = ["UsedMemory"]


class UsedMemory:
    """Bytes in use on the first visible GPU, by all processes and by this one.

    CUDA is asked, too, once this process has initialized it, and alone if the library is missing or refuses.
    """

    def __init__(self) -> None:
        self._handle: Any = None
        self._nvml: Any = None
        self.problem = ""
        try:
            import pynvml

            pynvml.nvmlInit()
            self._handle, self._nvml = _device(pynvml), pynvml
        except Exception as error:  # noqa: BLE001 -- errors of the library and of its absence: CUDA is asked instead
            self.problem = f"{type(error).__name__}: {error}"

    def read(self) -> dict[str, int | None]:
        """Return the bytes in use: on the device, there as CUDA counts them, and by this process; None if not known."""
        in_cuda = _counted_by_cuda()
        if self._handle is None:
            return {"device": in_cuda, "cuda": in_cuda, "process": None}
        used = None
        with suppress(Exception):  # errors of the library
            used = int(self._nvml.nvmlDeviceGetMemoryInfo(self._handle).used)
        return {"device": used, "cuda": in_cuda, "process": self._of_process()}

    def facts(self) -> dict[str, Any]:
        """Return what the library knows about the device."""
        found: dict[str, Any] = {}
        if self._handle is None:
            return found
        nvml, handle = self._nvml, self._handle
        with suppress(Exception):  # a function that the driver or the card does not have
            found["driver"] = _text(nvml.nvmlSystemGetDriverVersion())
        with suppress(Exception):
            found["nvml_total_memory"] = int(nvml.nvmlDeviceGetMemoryInfo(handle).total)
        with suppress(Exception):
            found["nvml_reserved_memory"] = int(nvml.nvmlDeviceGetMemoryInfo(handle, nvml.nvmlMemory_v2).reserved)
        with suppress(Exception):
            found["other_processes"] = len(nvml.nvmlDeviceGetComputeRunningProcesses(handle))
        with suppress(Exception):
            found["mig"] = bool(nvml.nvmlDeviceGetMigMode(handle)[0])
        return found

    def _of_process(self) -> int | None:
        with suppress(Exception):  # as above
            processes = self._nvml.nvmlDeviceGetComputeRunningProcesses(self._handle)
            mine = [each for each in processes if each.pid == os.getpid()]
            # In a container the numbers are those of the host: a single process is this one.
            (found,) = mine or processes
            return None if found.usedGpuMemory is None else int(found.usedGpuMemory)
        return None


def _device(nvml: Any) -> Any:
    """Return the handle of the first visible device."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0].strip()
    if visible.startswith(("GPU-", "MIG-")):
        return nvml.nvmlDeviceGetHandleByUUID(visible)
    handle = nvml.nvmlDeviceGetHandleByIndex(int(visible or 0))
    with suppress(Exception):  # the card is not divided
        if nvml.nvmlDeviceGetMigMode(handle)[0]:
            return nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, 0)  # the part that CUDA uses
    return handle


def _counted_by_cuda() -> int | None:
    import torch

    if not torch.cuda.is_initialized():
        return None
    free, total = torch.cuda.mem_get_info()
    return int(total - free)


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
