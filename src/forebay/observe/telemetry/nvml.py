"""Sensors of NVIDIA GPUs through nvidia-ml-py (module `pynvml`), which is imported on first use."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from forebay.backends.nvidia.nvml import WITHOUT, handle_of, has_library, imported

__all__ = ["MISSING", "NOT_LOADED", "Nvml", "NvmlSensors", "binding", "import_error", "installed", "why_not"]

MISSING = "nvidia-ml-py does not seem to be installed or it can't be imported."
NOT_LOADED = "cuda driver can't be loaded, is cuda enabled?"

_CORE_SENSOR = 0  # NVML_TEMPERATURE_GPU
_SM_CLOCK = 1  # NVML_CLOCK_SM


def import_error() -> ImportError | None:
    """Return the error that importing `pynvml` raises; None if it can be imported or is not installed."""
    try:
        imported()
    except ModuleNotFoundError:
        return None
    except ImportError as error:
        return error
    return None


def installed() -> bool:
    """Return True if the machine has NVIDIA's library. Loads the library, but does not initialize it."""
    return has_library()


def why_not() -> str:
    """Return the reason why the GPUs of a machine with NVIDIA's library have no sensors, or ""."""
    try:
        imported()
    except ImportError as error:
        reason = WITHOUT if isinstance(error, ModuleNotFoundError) else str(error)
        return f"{reason}; until then GPUs are counted through CUDA alone" if installed() else ""
    return ""


def binding() -> Any:
    """Return `pynvml`. Raises ModuleNotFoundError, as PyTorch does, if it cannot be imported."""
    try:
        return imported()
    except ImportError as error:
        raise ModuleNotFoundError(MISSING) from error


def _initialized() -> Any:
    """Return the initialized binding. Raises RuntimeError if NVIDIA's driver is not loaded."""
    nvml = binding()
    try:
        nvml.nvmlInit()
    except nvml.NVMLError_DriverNotLoaded as error:
        raise RuntimeError(NOT_LOADED) from error
    return nvml


class Nvml:
    """Telemetry of the machine's NVIDIA GPUs. Raises the binding's own errors, as PyTorch does."""

    def __init__(self) -> None:
        self._nvml = _initialized()

    def machine_count(self) -> int:
        return int(self._nvml.nvmlDeviceGetCount())

    def sensors(self, index: int) -> NvmlSensors:
        return NvmlSensors(self._nvml, self._nvml.nvmlDeviceGetHandleByIndex(index))

    def find(self, uuid: str) -> NvmlSensors:
        """Return the sensors of the GPU or MIG instance with a UUID, which has no prefix."""
        return NvmlSensors(self._nvml, handle_of(self._nvml, uuid))


class NvmlSensors:
    """Sensors of one NVIDIA GPU."""

    def __init__(self, nvml: Any, handle: Any) -> None:
        self.handle = handle
        self._nvml = nvml

    def index(self) -> int:
        """Return the index of the GPU; for a MIG instance that of the GPU it is a part of."""
        handle = self.handle
        if self._nvml.nvmlDeviceIsMigDeviceHandle(handle):
            handle = self._nvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(handle)
        return int(self._nvml.nvmlDeviceGetIndex(handle))

    def name(self) -> str:
        return _text(self._nvml.nvmlDeviceGetName(self.handle))

    def uuid(self) -> str:
        return _text(self._nvml.nvmlDeviceGetUUID(self.handle))

    def memory(self) -> tuple[int, int]:
        memory = self._nvml.nvmlDeviceGetMemoryInfo(self.handle)
        return memory.used, memory.total

    def busy(self) -> tuple[int, int]:
        rates = self._nvml.nvmlDeviceGetUtilizationRates(self.handle)
        return rates.gpu, rates.memory

    def temperature(self) -> int:
        return int(self._nvml.nvmlDeviceGetTemperature(self.handle, _CORE_SENSOR))

    def power(self) -> int:
        return int(self._nvml.nvmlDeviceGetPowerUsage(self.handle))

    def clock(self) -> int:
        return int(self._nvml.nvmlDeviceGetClockInfo(self.handle, _SM_CLOCK))

    def processes(self) -> Mapping[int, int | None]:
        running = self._nvml.nvmlDeviceGetComputeRunningProcesses(self.handle)
        return {process.pid: process.usedGpuMemory for process in running}


def _text(name: str | bytes) -> str:
    return name.decode() if isinstance(name, bytes) else name  # bytes in old versions
