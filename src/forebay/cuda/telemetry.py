"""Sensors and visibility of CUDA devices, over `forebay.names.telemetry`.

These functions do not initialise CUDA. An emulated device has its own sensors; a real one is read through NVML
(nvidia-ml-py, of the extra "cuda") or AMD SMI.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from forebay._base.device_spec import DeviceLike
from forebay.backends.emulated.visible_devices import match_uuids
from forebay.cuda._kind import CUDA
from forebay.names import telemetry
from forebay.observe.telemetry import amdsmi, nvml

__all__ = [
    "LIBRARY_ATTRIBUTES",
    "clock_rate",
    "device_memory_used",
    "list_gpu_processes",
    "memory_usage",
    "power_draw",
    "temperature",
    "utilization",
]


# Written by tools/write_names.py from tools/names/sensors.toml: edit the table, not these lines.


def device_memory_used(device: DeviceLike | None = None) -> int:
    """Return the bytes of device memory in use by all processes.

    As `torch.cuda.device_memory_used`. Does not initialise CUDA.

    Parameters
    ----------
    device : device or str or int, optional
        The device; the current one by default.

    Raises
    ------
    ModuleNotFoundError
        If a real device's library (NVML or AMD SMI) is not installed.
    RuntimeError
        If the driver cannot be reached, or the device is not visible to this process.
    Unsupported
        If the device has no such sensor.
    """
    return telemetry.sensors(CUDA, device).memory()[0]


def memory_usage(device: DeviceLike | None = None) -> int:
    """Return the percentage of the last second in which device memory was read or written.

    As `torch.cuda.memory_usage`. Does not initialise CUDA.

    Parameters
    ----------
    device : device or str or int, optional
        The device; the current one by default.

    Raises
    ------
    ModuleNotFoundError
        If a real device's library (NVML or AMD SMI) is not installed.
    RuntimeError
        If the driver cannot be reached, or the device is not visible to this process.
    Unsupported
        If the device has no such sensor.
    """
    return telemetry.sensors(CUDA, device).busy()[1]


def utilization(device: DeviceLike | None = None) -> int:
    """Return the percentage of the last second in which the device was busy.

    As `torch.cuda.utilization`. Does not initialise CUDA.

    Parameters
    ----------
    device : device or str or int, optional
        The device; the current one by default.

    Raises
    ------
    ModuleNotFoundError
        If a real device's library (NVML or AMD SMI) is not installed.
    RuntimeError
        If the driver cannot be reached, or the device is not visible to this process.
    Unsupported
        If the device has no such sensor.
    """
    return telemetry.sensors(CUDA, device).busy()[0]


def temperature(device: DeviceLike | None = None) -> int:
    """Return the device's temperature in degrees Celsius.

    As `torch.cuda.temperature`. Does not initialise CUDA.

    Parameters
    ----------
    device : device or str or int, optional
        The device; the current one by default.

    Raises
    ------
    ModuleNotFoundError
        If a real device's library (NVML or AMD SMI) is not installed.
    RuntimeError
        If the driver cannot be reached, or the device is not visible to this process.
    Unsupported
        If the device has no such sensor.
    """
    return telemetry.sensors(CUDA, device).temperature()


def power_draw(device: DeviceLike | None = None) -> int:
    """Return the device's power draw in milliwatts.

    As `torch.cuda.power_draw`. Does not initialise CUDA.

    Parameters
    ----------
    device : device or str or int, optional
        The device; the current one by default.

    Raises
    ------
    ModuleNotFoundError
        If a real device's library (NVML or AMD SMI) is not installed.
    RuntimeError
        If the driver cannot be reached, or the device is not visible to this process.
    Unsupported
        If the device has no such sensor.
    """
    return telemetry.sensors(CUDA, device).power()


def clock_rate(device: DeviceLike | None = None) -> int:
    """Return the clock rate of the multiprocessors in MHz.

    As `torch.cuda.clock_rate`. Does not initialise CUDA.

    Parameters
    ----------
    device : device or str or int, optional
        The device; the current one by default.

    Raises
    ------
    ModuleNotFoundError
        If a real device's library (NVML or AMD SMI) is not installed.
    RuntimeError
        If the driver cannot be reached, or the device is not visible to this process.
    Unsupported
        If the device has no such sensor.
    """
    return telemetry.sensors(CUDA, device).clock()


def list_gpu_processes(device: DeviceLike | None = None) -> str:
    """Return a table of the processes that use the device.

    As `torch.cuda.list_gpu_processes`. Does not initialise CUDA.

    Parameters
    ----------
    device : device or str or int, optional
        The device; the current one by default.

    Returns
    -------
    str
        One line for each process, or the reason why the processes are unknown.
    """
    return telemetry.list_processes(CUDA, device)


# End of the written lines.


# Undocumented functions of PyTorch that programs use.


def _parse_visible_devices() -> list[int] | list[str]:
    return telemetry.visible_devices(CUDA)


def _transform_uuid_to_ordinals(candidates: list[str], uuids: list[str]) -> list[int]:
    return match_uuids(candidates, uuids, amd=telemetry.uses_amdsmi(CUDA))


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


def _get_pynvml_handler(device: DeviceLike | None = None) -> Any:
    return telemetry.nvidia_handle(CUDA, device)


def _raw_device_count_amdsmi() -> int:
    return telemetry.machine_count_amd()


def _raw_device_uuid_amdsmi() -> list[str] | None:
    return telemetry.uuids_amd()


def _device_count_amdsmi() -> int:
    return telemetry.device_count_amd()


def _get_amdsmi_device_index(device: Any) -> int:
    return telemetry.amd_device_index(CUDA, device)


def _get_amdsmi_handler(device: DeviceLike | None = None) -> Any:
    return telemetry.amd_sensors(CUDA, device).handle


def _get_amdsmi_device_memory_used(device: DeviceLike | None = None) -> int:
    return telemetry.amd_sensors(CUDA, device).memory()[0]


def _get_amdsmi_memory_usage(device: DeviceLike | None = None) -> int:
    return telemetry.amd_sensors(CUDA, device).busy()[1]


def _get_amdsmi_utilization(device: DeviceLike | None = None) -> int:
    return telemetry.amd_sensors(CUDA, device).busy()[0]


def _get_amdsmi_temperature(device: DeviceLike | None = None) -> int:
    return telemetry.amd_sensors(CUDA, device).temperature()


def _get_amdsmi_power_draw(device: DeviceLike | None = None) -> int:
    return telemetry.amd_sensors(CUDA, device).power()


def _get_amdsmi_clock_rate(device: DeviceLike | None = None) -> int:
    return telemetry.amd_sensors(CUDA, device).clock()


def _is_importable(binding: Callable[[], object]) -> bool:
    try:
        binding()
    except ModuleNotFoundError:
        return False
    return True


# Availability of the libraries, determined on access instead of at import.
LIBRARY_ATTRIBUTES: dict[str, Callable[[], Any]] = {
    "_HAS_PYNVML": lambda: telemetry.has_nvidia_sensors(CUDA),
    "_PYNVML_ERR": nvml.import_error,
    "_HAS_AMDSMI": lambda: _is_importable(amdsmi.binding),
    "_AMDSMI_ERR": amdsmi.import_error,
}
