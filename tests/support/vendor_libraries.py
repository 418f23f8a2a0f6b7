"""Fakes of the Python modules of NVIDIA's and AMD's management libraries, with two GPUs."""

from __future__ import annotations

from types import ModuleType, SimpleNamespace

UUIDS = ["GPU-a0a1", "GPU-b0b1"]
SENSORS = ("device_memory_used", "memory_usage", "utilization", "temperature", "power_draw", "clock_rate")
NO_AMDSMI = "amdsmi does not seem to be installed or it can't be imported."
NO_UUIDS = r"^Can't get device UUIDs$"


def pynvml_module() -> ModuleType:
    """Return a fake nvidia-ml-py with two devices, whose handles are their indices."""
    module = ModuleType("pynvml")

    class NVMLError(Exception):
        value = 2

    def handle(index):
        if index not in range(2):
            raise NVMLError("Invalid Argument")
        return index

    module.NVMLError = NVMLError
    for name in ("DriverNotLoaded", "LibraryNotFound", "NotFound"):
        setattr(module, f"NVMLError_{name}", type(f"NVMLError_{name}", (NVMLError,), {}))
    module.nvmlInit = lambda: None
    module.nvmlShutdown = lambda: None
    module.nvmlDeviceGetCount = lambda: 2
    module.nvmlDeviceGetHandleByIndex = handle
    module.nvmlDeviceGetUUID = UUIDS.__getitem__
    module.nvmlDeviceGetName = lambda handle: f"GPU {handle}".encode()  # as in old versions
    module.nvmlDeviceGetMemoryInfo = lambda handle: SimpleNamespace(used=(5 << 30) + handle, total=80 << 30)
    module.nvmlDeviceGetUtilizationRates = lambda handle: SimpleNamespace(gpu=40 + handle, memory=20 + handle)
    module.nvmlDeviceGetTemperature = lambda handle, sensor: 50 + handle + 100 * sensor
    module.nvmlDeviceGetPowerUsage = lambda handle: 300_000 + handle
    module.nvmlDeviceGetClockInfo = lambda handle, clock: 1000 * clock + handle
    module.nvmlDeviceGetComputeRunningProcesses = lambda handle: [
        SimpleNamespace(pid=100, usedGpuMemory=(3 << 20) + handle),
        SimpleNamespace(pid=101, usedGpuMemory=None),
    ]
    return module


def amdsmi_module() -> ModuleType:
    """Return a fake amdsmi of ROCm 6.4 with two devices, which HIP numbers in reverse order."""
    module = ModuleType("amdsmi")

    class AmdSmiException(Exception):
        err_code = 34

    module.AmdSmiException = AmdSmiException
    module.AmdSmiTemperatureType = SimpleNamespace(JUNCTION="junction")
    module.AmdSmiTemperatureMetric = SimpleNamespace(CURRENT="current")
    module.AmdSmiClkType = SimpleNamespace(GFX="gfx")
    module.amdsmi_init = lambda: None
    module.amdsmi_get_processor_handles = lambda: ["first", "second"]
    at = {"first": 0, "second": 1}.__getitem__
    module.amdsmi_get_gpu_asic_info = lambda handle: {"asic_serial": ["0xA0A1", "0xB0B1"][at(handle)]}
    module.amdsmi_get_gpu_enumeration_info = lambda handle: {"hip_id": 1 - at(handle)}
    module.amdsmi_get_gpu_vram_usage = lambda handle: {"vram_used": 7 + at(handle), "vram_total": 65536}
    module.amdsmi_get_gpu_activity = lambda handle: {"gfx_activity": 60 + at(handle), "umc_activity": 30 + at(handle)}
    module.amdsmi_get_temp_metric = lambda handle, *which: 70 + at(handle) if which == ("junction", "current") else 0
    module.amdsmi_get_power_info = lambda handle: {
        "average_socket_power": "N/A",
        "current_socket_power": 250 + at(handle),
    }
    module.amdsmi_get_clock_info = lambda handle, kind: {"clk": 1700 + at(handle)} if kind == "gfx" else {}
    module.amdsmi_get_gpu_process_list = lambda handle: [{"pid": 200, "memory_usage": {"vram_mem": 9 << 20}}]
    return module


def raising(error):
    """Return a function that raises the error."""

    def raising(*_arguments):
        raise error

    return raising
