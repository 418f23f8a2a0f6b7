"""What devices' sensors say, and which of the machine's devices a process sees; for a kind whose driver tells by itself
(an emulated one), or else by NVIDIA's library or AMD's. Nothing here initialises a device.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from typing import TypeVar

from forebay import backends
from forebay.backends.emulated.visible_devices import of_environment, ordinals_of, visible_indices
from forebay.device_spec import Device
from forebay.faces.kind import Kind
from forebay.observe.telemetry import amdsmi, nvml
from forebay.observe.telemetry.nvml_ctypes import NVMLError, NvmlLibrary
from forebay.runtime.devices.current import current_index
from forebay.spi import Sensors, Telemetry

__all__ = [
    "amd_device_index",
    "amd_sensors",
    "device_count_amd",
    "device_count_nvidia",
    "list_processes",
    "machine_count_amd",
    "machine_count_nvidia",
    "machine_index",
    "nvidia_handle",
    "on_amd",
    "sensors",
    "uuids_amd",
    "uuids_nvidia",
    "visible_devices",
]

_T = TypeVar("_T")

_UNINITIALISED = "Can't initialize NVML"
_NVML_WARNINGS = {  # by the function that was refused
    "nvmlInit_v2": _UNINITIALISED,
    "nvmlDeviceGetCount_v2": "Can't get nvml device count",
    "nvmlDeviceGetHandleByIndex_v2": "Can't get device handle",
    "nvmlDeviceGetUUID": "Can't get device UUID",
}


def on_amd(kind: Kind) -> bool:
    """Whether AMD's library and variables count."""
    return _own(kind) is None and amdsmi.in_charge()


def visible_devices(kind: Kind) -> list[int] | list[str]:
    """Ordinals, or beginnings of UUIDs, as the environment says now."""
    return of_environment(os.environ, amd=on_amd(kind))


def sensors(kind: Kind, device: object) -> Sensors:
    """The device's; where the library is missing ModuleNotFoundError, and RuntimeError where its driver is."""
    if on_amd(kind):
        return amd_sensors(kind, device)
    telemetry = _own(kind) or nvml.Nvml()
    return telemetry.sensors(machine_index(kind, device))


def amd_sensors(kind: Kind, device: object) -> amdsmi.AmdsmiSensors:
    return amdsmi.Amdsmi().sensors(amd_device_index(kind, device))


def nvidia_handle(kind: Kind, device: object) -> object:
    """What NVIDIA's library knows the device by; for an emulated one, its sensors."""
    found = (_own(kind) or nvml.Nvml()).sensors(machine_index(kind, device))
    return getattr(found, "handle", found)


def machine_index(kind: Kind, device: object) -> int:
    """What the machine counts the device as; RuntimeError for one that the process is not to see."""
    index, visible = _index(kind, device), visible_devices(kind)
    ordinals = _ordinals(visible, lambda: uuids_nvidia(kind), amd=False)
    if index not in range(len(ordinals)):
        raise RuntimeError(f"device {index} is not visible (CUDA_VISIBLE_DEVICES={ordinals})")
    return ordinals[index]


def amd_device_index(kind: Kind, device: object) -> int:
    """The same of AMD's library, which counts otherwise than HIP does."""
    index, visible = _index(kind, device), of_environment(os.environ, amd=True)
    ordinals = _ordinals(visible, uuids_amd, amd=True)
    if index not in range(len(ordinals)):
        raise RuntimeError(f"device {index} is not visible (HIP_VISIBLE_DEVICES={ordinals})")
    return ordinals[index] if _are_names(visible) else amdsmi.hip_order(amdsmi.binding(), ordinals[index])


def machine_count_nvidia(kind: Kind) -> int:
    """How many devices there are, seen or not; -1, with a warning, if it cannot be told; OSError without a library."""
    if (own := _own(kind)) is not None:
        return own.machine_count()
    counts = _of_library(lambda library: [library.nvmlDeviceGetCount()])
    return counts[0] if counts else -1


def uuids_nvidia(kind: Kind) -> list[str] | None:
    """Of all of them; None, with a warning, if they cannot be told; OSError without a library."""
    if (own := _own(kind)) is not None:
        return [own.sensors(index).uuid() for index in range(own.machine_count())]
    return _of_library(
        lambda library: [
            library.nvmlDeviceGetUUID(library.nvmlDeviceGetHandleByIndex(index))
            for index in range(library.nvmlDeviceGetCount())
        ]
    )


def machine_count_amd() -> int:
    """How many AMD devices there are; -1 if it cannot be told, with a warning if it is the library that cannot."""
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
    """Their serial numbers; None if they cannot be told, with a warning if it is the library that cannot."""
    try:
        library = amdsmi.binding()
    except ModuleNotFoundError:
        return None
    saying = "Can't initialize amdsmi"
    try:
        library.amdsmi_init()
        saying = "Can't get amdsmi device count"
        handles = library.amdsmi_get_processor_handles()
        saying = "Cannot get uuid for amd device"
        return [amdsmi.AmdsmiSensors(library, handle).uuid() for handle in handles]
    except library.AmdSmiException:
        warnings.warn(saying, stacklevel=3)
        return None


def device_count_nvidia(kind: Kind) -> int:
    """How many of them the process sees; -1 where this cannot be known without CUDA, as of parts of one (MIG)."""
    visible = visible_devices(kind)
    if visible and str(visible[0]).startswith("MIG-"):
        return -1
    return _seen(visible, lambda: machine_count_nvidia(kind), lambda: uuids_nvidia(kind), amd=False)


def device_count_amd() -> int:
    """The same of AMD's."""
    return _seen(of_environment(os.environ, amd=True), machine_count_amd, uuids_amd, amd=True)


def list_processes(kind: Kind, device: object) -> str:
    """A line for each process that uses the device; where nothing can be asked, the reason."""
    amd = on_amd(kind)
    library = "amdsmi" if amd else "pynvml"
    try:
        telemetry: Telemetry = amdsmi.Amdsmi() if amd else _own(kind) or nvml.Nvml()
    except ModuleNotFoundError:
        return f"{library} module not found, please install {'amdsmi' if amd else 'nvidia-ml-py'}"
    except RuntimeError:
        return "amdsmi driver can't be loaded, is ROCm installed?" if amd else nvml.NOT_LOADED
    index = amd_device_index(kind, device) if amd else machine_index(kind, device)
    try:
        processes = telemetry.sensors(index).processes()
    except Exception as error:
        if amd and isinstance(error, amdsmi.binding().AmdSmiException):
            return "amdsmi cannot list processes from other users"
        raise
    lines = [f"GPU:{index}", *(["no processes are running"] if not processes else [])]
    for pid, nbytes in processes.items():
        used = f"{'N/A':>12}" if nbytes is None else f"{nbytes / 2**20:>12.3f}"
        lines.append(f"process {pid:>10d} uses {used} MB GPU memory")
    return "\n".join(lines)


def _own(kind: Kind) -> Telemetry | None:
    """The kind's driver, if it reads its devices itself."""
    driver = backends.driver(kind.name)
    return driver if isinstance(driver, Telemetry) else None


def _index(kind: Kind, device: object) -> int:
    """As `kind.index`, which initialises the kind to say which device is current."""
    named = Device(device) if isinstance(device, str) else device
    if named is None or named == Device(kind.name):
        return current_index(kind.name)
    return kind.index(named)


def _are_names(visible: list[int] | list[str]) -> bool:
    return bool(visible) and isinstance(visible[0], str)


def _ordinals(visible: list[int] | list[str], uuids: Callable[[], list[str] | None], *, amd: bool) -> list[int]:
    if not _are_names(visible):
        return [int(entry) for entry in visible]
    known = uuids()
    if known is None:
        raise RuntimeError("Can't get device UUIDs")
    return ordinals_of([str(entry) for entry in visible], known, amd=amd)


def _seen(
    visible: list[int] | list[str], count: Callable[[], int], uuids: Callable[[], list[str] | None], *, amd: bool
) -> int:
    """How many of the visible ones there are, or -1."""
    if not visible:
        return 0
    try:
        if _are_names(visible):
            known = uuids()
            return -1 if known is None else len(visible_indices(visible, len(known), lambda: known, amd=amd))
        there = count()
    except (OSError, AttributeError):  # there is no library, or it is too old
        return -1
    return there if there <= 0 else len(visible_indices(visible, there, list))


def _of_library(ask: Callable[[NvmlLibrary], list[_T]]) -> list[_T] | None:
    library = NvmlLibrary()
    try:
        library.nvmlInit()
        return ask(library)
    except NVMLError as error:
        warnings.warn(_NVML_WARNINGS.get(error.call, _UNINITIALISED), stacklevel=4)
        return None
