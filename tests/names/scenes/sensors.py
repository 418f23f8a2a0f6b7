"""Sensors of devices, with a stand-in for nvidia-ml-py where PyTorch needs one."""

from __future__ import annotations

import sys
import types

from support.on_oracle import outcome

FRESH_PROCESS = True
SENSORS = ("utilization", "memory_usage", "temperature", "power_draw", "clock_rate", "device_memory_used")


class Stream:
    """An object that is no device."""


def with_library(cuda):
    """Make PyTorch's sensors answer if nvidia-ml-py is not installed: emulated devices have their own."""
    if cuda._HAS_PYNVML:
        return cuda
    library = types.ModuleType("pynvml")
    readings = types.SimpleNamespace(gpu=0, memory=0, used=0)
    library.NVMLError_DriverNotLoaded = type("NVMLError_DriverNotLoaded", (Exception,), {})
    library.nvmlInit = library.nvmlDeviceGetHandleByIndex = lambda *_: None
    library.nvmlDeviceGetMemoryInfo = library.nvmlDeviceGetUtilizationRates = lambda _: readings
    library.nvmlDeviceGetTemperature = library.nvmlDeviceGetClockInfo = lambda *_: 0
    library.nvmlDeviceGetPowerUsage = lambda _: 0
    library.nvmlDeviceGetComputeRunningProcesses = lambda _: []
    cuda._HAS_PYNVML, cuda.pynvml, sys.modules["pynvml"] = True, library, library
    return cuda


def answered(cuda, name, device):
    """Return the error of a sensor, or the type of its reading."""
    found = outcome(cuda, getattr(cuda, name), device)
    return found if "error" in found else type(found["value"]).__name__


def library_is_available(cuda, torch_like):
    return with_library(cuda)._HAS_PYNVML, cuda._PYNVML_ERR, cuda._HAS_AMDSMI, cuda._AMDSMI_ERR


def devices_of_sensors(cuda, torch_like):
    with_library(cuda)
    device = torch_like.device
    devices = (
        None, 0, 1, True, "cuda", "cuda:1", device("cuda:1"), device("cuda"), cuda.device(1), "cpu", "mps", "nonsense",
        "", "0", device("cpu"), 1.5, [0], b"cuda:0", Stream(), 99, -1, -2,
    )  # fmt: skip
    return {name: [answered(cuda, name, device) for device in devices] for name in SENSORS}


def processes(cuda, torch_like):
    with_library(cuda)
    devices = (0, "cuda:1", cuda.device(1), 1.5, "cpu", "nonsense", 99, -1)
    return [outcome(cuda, cuda.list_gpu_processes, device) for device in devices]


def readings_of_idle_devices(cuda, torch_like):
    with_library(cuda)
    return [cuda.utilization(index) + cuda.memory_usage(index) + cuda.device_memory_used(index) for index in (0, 1)]


def sensors_by_index_do_not_initialise(cuda, torch_like):
    with_library(cuda)
    for name in ("utilization", "temperature", "power_draw", "clock_rate", "list_gpu_processes"):
        getattr(cuda, name)(1)
    return cuda.is_initialized()


def sensors_follow_the_current_device(cuda, torch_like):
    with_library(cuda)
    cuda.set_device(1)
    return cuda._get_nvml_device_index(None), cuda._get_nvml_device_index("cuda"), cuda._get_nvml_device_index(0)


def counts_and_visible_devices(cuda, torch_like):
    uuids = ["GPU-aa", "GPU-ab", "GPU-b"]
    found = [cuda._transform_uuid_to_ordinals(each, uuids) for each in (["GPU-b", "GPU-aa"], ["GPU-a"], ["GPU-c"], [])]
    return found, cuda._raw_device_count_nvml(), cuda._device_count_nvml(), len(cuda._raw_device_uuid_nvml())


def amd_library_is_missing(cuda, torch_like):
    counts = cuda._raw_device_count_amdsmi(), cuda._device_count_amdsmi(), cuda._raw_device_uuid_amdsmi()
    return counts, outcome(cuda, cuda._get_amdsmi_handler)
