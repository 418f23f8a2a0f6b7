"""Sensors of CUDA devices, and which of them a process sees: names over `forebay.faces.telemetry`.

None of them initialises CUDA. An emulated device answers for itself; a real one is asked through NVIDIA's library
(with nvidia-ml-py or without), or AMD's.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from forebay.backends.emulated.visible_devices import ordinals_of
from forebay.cuda._kind import CUDA
from forebay.faces import telemetry
from forebay.observe.telemetry import amdsmi, nvml

__all__ = [
    "LIBRARIES",
    "clock_rate",
    "device_memory_used",
    "list_gpu_processes",
    "memory_usage",
    "power_draw",
    "temperature",
    "utilization",
]


def device_memory_used(device: Any = None) -> int:
    """Bytes of the device's memory that anybody uses. (`torch.cuda.device_memory_used`)"""
    return telemetry.sensors(CUDA, device).memory()[0]


def memory_usage(device: Any = None) -> int:
    """Percent of the last second in which the device's memory was read or written. (`torch.cuda.memory_usage`)"""
    return telemetry.sensors(CUDA, device).busy()[1]


def utilization(device: Any = None) -> int:
    """Percent of the last second in which the device was at work. (`torch.cuda.utilization`)"""
    return telemetry.sensors(CUDA, device).busy()[0]


def temperature(device: Any = None) -> int:
    """In °C. (`torch.cuda.temperature`)"""
    return telemetry.sensors(CUDA, device).temperature()


def power_draw(device: Any = None) -> int:
    """In mW. (`torch.cuda.power_draw`)"""
    return telemetry.sensors(CUDA, device).power()


def clock_rate(device: Any = None) -> int:
    """Of the multiprocessors, in MHz. (`torch.cuda.clock_rate`)"""
    return telemetry.sensors(CUDA, device).clock()


def list_gpu_processes(device: Any = None) -> str:
    """A line for each process that uses the device, or why that cannot be told. (`torch.cuda.list_gpu_processes`)"""
    return telemetry.list_processes(CUDA, device)


# What PyTorch has beside its documentation, and programs use.


def _parse_visible_devices() -> list[int] | list[str]:
    return telemetry.visible_devices(CUDA)


def _transform_uuid_to_ordinals(candidates: list[str], uuids: list[str]) -> list[int]:
    return ordinals_of(candidates, uuids, amd=telemetry.on_amd(CUDA))


def _nvml_based_avail() -> bool:
    return os.environ.get("PYTORCH_NVML_BASED_CUDA_CHECK") == "1"


def _raw_device_count_nvml() -> int:
    return telemetry.machine_count_nvidia(CUDA)


def _raw_device_uuid_nvml() -> list[str] | None:
    return telemetry.uuids_nvidia(CUDA)


def _device_count_nvml() -> int:
    return telemetry.device_count_nvidia(CUDA)


def _get_nvml_device_index(device: Any) -> int:
    return telemetry.machine_index(CUDA, device)


def _get_pynvml_handler(device: Any = None) -> Any:
    return telemetry.nvidia_handle(CUDA, device)


def _raw_device_count_amdsmi() -> int:
    return telemetry.machine_count_amd()


def _raw_device_uuid_amdsmi() -> list[str] | None:
    return telemetry.uuids_amd()


def _device_count_amdsmi() -> int:
    return telemetry.device_count_amd()


def _get_amdsmi_device_index(device: Any) -> int:
    return telemetry.amd_device_index(CUDA, device)


def _get_amdsmi_handler(device: Any = None) -> Any:
    return telemetry.amd_sensors(CUDA, device).handle


def _get_amdsmi_device_memory_used(device: Any = None) -> int:
    return telemetry.amd_sensors(CUDA, device).memory()[0]


def _get_amdsmi_memory_usage(device: Any = None) -> int:
    return telemetry.amd_sensors(CUDA, device).busy()[1]


def _get_amdsmi_utilization(device: Any = None) -> int:
    return telemetry.amd_sensors(CUDA, device).busy()[0]


def _get_amdsmi_temperature(device: Any = None) -> int:
    return telemetry.amd_sensors(CUDA, device).temperature()


def _get_amdsmi_power_draw(device: Any = None) -> int:
    return telemetry.amd_sensors(CUDA, device).power()


def _get_amdsmi_clock_rate(device: Any = None) -> int:
    return telemetry.amd_sensors(CUDA, device).clock()


def _is_there(binding: Callable[[], object]) -> bool:
    try:
        binding()
    except ModuleNotFoundError:
        return False
    return True


# Which libraries can be asked, and why not: found out when somebody wants to know, and not at import.
LIBRARIES: dict[str, Callable[[], Any]] = {
    "_HAS_PYNVML": lambda: _is_there(nvml.binding),
    "_PYNVML_ERR": nvml.import_error,
    "_HAS_AMDSMI": lambda: _is_there(amdsmi.binding),
    "_AMDSMI_ERR": amdsmi.import_error,
}
