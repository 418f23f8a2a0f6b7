"""Device sensors and device visibility, read from the driver (emulated devices), NVML or AMD SMI.

These functions do not initialise a device.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from typing import Any, TypeVar

from forebay import backends
from forebay.backends.emulated.visible_devices import match_uuids, parse_visible_devices, visible_indices
from forebay.backends.nvidia.nvml import LIBRARY, WITHOUT
from forebay.errors import DeviceError
from forebay.names.kind import DeviceKind
from forebay.observe.telemetry import amdsmi, nvml
from forebay.runtime.devices.current import current_index
from forebay.spi import Describes, Sensors, Telemetry

__all__ = [
    "amd_device_index",
    "amd_sensors",
    "device_count_amd",
    "device_count_nvidia",
    "has_nvidia_sensors",
    "list_processes",
    "machine_count_amd",
    "machine_count_nvidia",
    "machine_index",
    "nvidia_handle",
    "sensors",
    "uses_amdsmi",
    "uuids_amd",
    "uuids_nvidia",
    "visible_devices",
]

_T = TypeVar("_T")


def uses_amdsmi(kind: DeviceKind) -> bool:
    """Return True if AMD SMI and AMD's environment variables apply to the kind."""
    return _driver_telemetry(kind) is None and amdsmi.is_amd_machine()


def visible_devices(kind: DeviceKind) -> list[int] | list[str]:
    """Return the visible devices that the environment lists now, as ordinals or UUID prefixes."""
    return parse_visible_devices(os.environ, amd=uses_amdsmi(kind))


def sensors(kind: DeviceKind, device: object) -> Sensors:
    """Return the device's sensors. Raises ModuleNotFoundError without the library, RuntimeError without its driver."""
    if uses_amdsmi(kind):
        return amd_sensors(kind, device)
    return _nvidia_sensors(kind, device)


def amd_sensors(kind: DeviceKind, device: object) -> amdsmi.AmdsmiSensors:
    """Return the device's sensors of AMD SMI."""
    return amdsmi.Amdsmi().sensors(amd_device_index(kind, device))


def nvidia_handle(kind: DeviceKind, device: object) -> object:
    """Return the device's NVML handle, or its sensors if it is emulated."""
    found = _nvidia_sensors(kind, device)
    return getattr(found, "handle", found)


def has_nvidia_sensors(kind: DeviceKind) -> bool:
    """Return True if the kind's devices are emulated with sensors, or nvidia-ml-py can be imported."""
    if _driver_telemetry(kind) is None:
        try:
            nvml.binding()
        except ModuleNotFoundError:
            return False
    return True


def machine_index(kind: DeviceKind, device: object) -> int:
    """Return the device's index among all devices of the machine. Raises RuntimeError if it is not visible."""
    if uuid := _uuid(kind, device):
        return nvml.Nvml().find(uuid).index()
    index, visible = _device_index(kind, device), visible_devices(kind)
    ordinals = _ordinals(visible, lambda: uuids_nvidia(kind), amd=False)
    if index not in range(len(ordinals)):
        raise RuntimeError(f"device {index} is not visible (CUDA_VISIBLE_DEVICES={ordinals})")
    return ordinals[index]


def amd_device_index(kind: DeviceKind, device: object) -> int:
    """Return the device's index in AMD SMI, whose order differs from HIP's."""
    index, visible = _device_index(kind, device), parse_visible_devices(os.environ, amd=True)
    ordinals = _ordinals(visible, uuids_amd, amd=True)
    if index not in range(len(ordinals)):
        raise RuntimeError(f"device {index} is not visible (HIP_VISIBLE_DEVICES={ordinals})")
    return ordinals[index] if _are_uuids(visible) else amdsmi.amdsmi_index(amdsmi.binding(), ordinals[index])


def machine_count_nvidia(kind: DeviceKind) -> int:
    """Return the number of devices, visible or not; -1, with a warning, if NVML fails. Raises OSError without it."""
    if (driver := _driver_telemetry(kind)) is not None:
        return driver.machine_count()
    counts = _query_nvml(lambda library: [_count(library)])
    return counts[0] if counts else -1


def uuids_nvidia(kind: DeviceKind) -> list[str] | None:
    """Return the UUIDs of all devices; None, with a warning, if NVML fails. Raises OSError without it."""
    if (driver := _driver_telemetry(kind)) is not None:
        return [driver.sensors(index).uuid() for index in range(driver.machine_count())]
    return _query_nvml(lambda library: [_uuid_at(library, index) for index in range(_count(library))])


def machine_count_amd() -> int:
    """Return the number of AMD devices; -1 without AMD SMI, or, with a warning, if it fails."""
    try:
        library = amdsmi.binding()
    except ModuleNotFoundError:
        return -1
    try:
        library.amdsmi_init()
    except library.AmdSmiException as error:
        warnings.warn(f"Can't initialize amdsmi - Error code: {error.err_code}", stacklevel=3)
        return -1
    return len(library.amdsmi_get_processor_handles())


def uuids_amd() -> list[str] | None:
    """Return the serial numbers of all AMD devices; None without AMD SMI, or, with a warning, if it fails."""
    try:
        library = amdsmi.binding()
    except ModuleNotFoundError:
        return None
    message = "Can't initialize amdsmi"
    try:
        library.amdsmi_init()
        message = "Can't get amdsmi device count"
        handles = library.amdsmi_get_processor_handles()
        message = "Cannot get uuid for amd device"
        return [amdsmi.AmdsmiSensors(library, handle).uuid() for handle in handles]
    except library.AmdSmiException:
        warnings.warn(message, stacklevel=3)
        return None


def device_count_nvidia(kind: DeviceKind) -> int:
    """Return the number of devices visible to the process; -1 if it takes CUDA to count them, as for MIG devices."""
    visible = visible_devices(kind)
    if visible and str(visible[0]).startswith("MIG-"):
        return -1
    return _visible_count(visible, lambda: machine_count_nvidia(kind), lambda: uuids_nvidia(kind), amd=False)


def device_count_amd() -> int:
    """Return the number of AMD devices visible to the process, or -1 if it is unknown."""
    return _visible_count(parse_visible_devices(os.environ, amd=True), machine_count_amd, uuids_amd, amd=True)


def list_processes(kind: DeviceKind, device: object) -> str:
    """Return a line for each process that uses the device, or the reason why they cannot be listed."""
    amd = uses_amdsmi(kind)
    library = "amdsmi" if amd else "pynvml"
    try:
        telemetry: Telemetry = amdsmi.Amdsmi() if amd else _driver_telemetry(kind) or nvml.Nvml()
    except ModuleNotFoundError:
        return f"{library} module not found, please install {'amdsmi' if amd else 'nvidia-ml-py'}"
    except RuntimeError:
        return "amdsmi driver can't be loaded, is ROCm installed?" if amd else nvml.NOT_LOADED
    index = amd_device_index(kind, device) if amd else machine_index(kind, device)
    try:
        processes = (telemetry.sensors(index) if amd else _nvidia_sensors(kind, device)).processes()
    except Exception as error:
        if amd and isinstance(error, amdsmi.binding().AmdSmiException):
            return "amdsmi cannot list processes from other users"
        raise
    lines = [f"GPU:{index}", *(["no processes are running"] if not processes else [])]
    for pid, nbytes in processes.items():
        used = f"{'N/A':>12}" if nbytes is None else f"{nbytes / 2**20:>12.3f}"
        lines.append(f"process {pid:>10d} uses {used} MB GPU memory")
    return "\n".join(lines)


def _driver_telemetry(kind: DeviceKind) -> Telemetry | None:
    """Return the kind's driver if it implements Telemetry."""
    driver = backends.driver(kind.name)
    return driver if isinstance(driver, Telemetry) else None


def _nvidia_sensors(kind: DeviceKind, device: object) -> Sensors:
    """Return the sensors of the driver or of NVML; those of a MIG instance are its own."""
    if (driver := _driver_telemetry(kind)) is not None:
        return driver.sensors(machine_index(kind, device))
    library = nvml.Nvml()
    if uuid := _uuid(kind, device):
        return library.find(uuid)
    return library.sensors(machine_index(kind, device))


def _uuid(kind: DeviceKind, device: object) -> str:
    """Return the UUID that a driver without sensors reports, or "".

    CUDA's order of devices is not that of NVML, and depends on what CUDA_VISIBLE_DEVICES was when the process began to
    use CUDA. Without CUDA devices, as in a forked child, its present value is used.
    """
    driver = backends.driver(kind.name)
    if isinstance(driver, Telemetry) or not isinstance(driver, Describes):
        return ""
    try:
        return str(driver.describe(_device_index(kind, device)).details.get("uuid", ""))
    except DeviceError:
        return ""


def _device_index(kind: DeviceKind, device: object) -> int:
    """Return the index of a device argument as `kind.index` does, but without initialising the kind."""
    index = kind.explicit_index(device)
    return current_index(kind.name) if index is None else index


def _are_uuids(visible: list[int] | list[str]) -> bool:
    return bool(visible) and isinstance(visible[0], str)


def _ordinals(visible: list[int] | list[str], uuids: Callable[[], list[str] | None], *, amd: bool) -> list[int]:
    """Return the machine's indices of the visible devices, in the order of the environment variable."""
    if not _are_uuids(visible):
        return [int(entry) for entry in visible]
    known = uuids()
    if known is None:
        raise RuntimeError("Can't get device UUIDs")
    return match_uuids([str(entry) for entry in visible], known, amd=amd)


def _visible_count(
    visible: list[int] | list[str], count: Callable[[], int], uuids: Callable[[], list[str] | None], *, amd: bool
) -> int:
    """Return how many of the visible devices exist, or -1 if that is unknown."""
    if not visible:
        return 0
    try:
        if _are_uuids(visible):
            known = uuids()
            return -1 if known is None else len(visible_indices(visible, len(known), lambda: known, amd=amd))
        total = count()
    except OSError:  # the library is missing
        return -1
    return total if total <= 0 else len(visible_indices(visible, total, list))


def _query_nvml(query: Callable[[Any], list[_T]]) -> list[_T] | None:
    """Return the result of the query, or None, with PyTorch's warning, if NVML fails."""
    try:
        library = nvml.binding()
    except ModuleNotFoundError as error:
        raise OSError(WITHOUT) from error  # PyTorch's answer to a missing library
    try:
        _step(library, "Can't initialize NVML", library.nvmlInit)
        return query(library)
    except _NvmlStepFailed as failure:
        warnings.warn(str(failure), stacklevel=4)
        return None


def _count(library: Any) -> int:
    return int(_step(library, "Can't get nvml device count", library.nvmlDeviceGetCount))


def _uuid_at(library: Any, index: int) -> str:
    handle = _step(library, "Can't get device handle", library.nvmlDeviceGetHandleByIndex, index)
    found = _step(library, "Can't get device UUID", library.nvmlDeviceGetUUID, handle)
    return found.decode() if isinstance(found, bytes) else str(found)  # bytes in old versions


class _NvmlStepFailed(Exception):
    """A function of NVML has failed, with PyTorch's text for it."""


def _step(library: Any, failure: str, function: Callable[..., Any], *arguments: object) -> Any:
    """Call a function of NVML. Raises OSError if there is no NVML, as PyTorch does, and _NvmlStepFailed if it fails."""
    try:
        return function(*arguments)
    except library.NVMLError_LibraryNotFound as error:
        raise OSError(f"{LIBRARY} cannot be loaded: {error}") from error
    except library.NVMLError as error:
        raise _NvmlStepFailed(failure) from error
