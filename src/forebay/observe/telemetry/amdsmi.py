"""Sensors of AMD GPUs through ROCm's Python module `amdsmi`, which is imported on first use."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from typing import Any

from forebay.observe.telemetry import nvml

__all__ = [
    "MISSING",
    "NOT_LOADED",
    "Amdsmi",
    "AmdsmiSensors",
    "amdsmi_index",
    "binding",
    "import_error",
    "is_amd_machine",
]

MISSING = "amdsmi does not seem to be installed or it can't be imported."
NOT_LOADED = "amdsmi driver can't be loaded, requires >=ROCm6.0 installation"

_UNKNOWN = "N/A"  # the module's value for an unknown number


def is_amd_machine() -> bool:
    """Return True if the machine's GPUs are AMD's: `amdsmi` is installed, and NVIDIA's library is not."""
    return find_spec("amdsmi") is not None and not nvml.installed()


def import_error() -> ImportError | None:
    """Return the error that importing `amdsmi` raises; None if it can be imported or is not installed."""
    try:
        binding()
    except ModuleNotFoundError as error:
        return error if find_spec("amdsmi") else None
    return None


def binding() -> Any:
    """Return the module. Raises ModuleNotFoundError if it is not installed or cannot load its library."""
    try:
        import amdsmi
    except (ImportError, KeyError, OSError, AttributeError) as error:  # without its library it raises the last three
        raise ModuleNotFoundError(MISSING) from error
    return amdsmi


def _initialized() -> Any:
    """Return the initialized module. Raises RuntimeError if AMD's driver is not loaded."""
    amdsmi = binding()
    try:
        amdsmi.amdsmi_init()
    except amdsmi.AmdSmiException as error:
        raise RuntimeError(NOT_LOADED) from error
    return amdsmi


class Amdsmi:
    """Telemetry of the machine's AMD GPUs. Raises the module's own errors, as PyTorch does."""

    def __init__(self) -> None:
        self._amdsmi = _initialized()

    def machine_count(self) -> int:
        return len(self._amdsmi.amdsmi_get_processor_handles())

    def sensors(self, index: int) -> AmdsmiSensors:
        return AmdsmiSensors(self._amdsmi, self._amdsmi.amdsmi_get_processor_handles()[index])


class AmdsmiSensors:
    """Sensors of one AMD GPU."""

    def __init__(self, amdsmi: Any, handle: Any) -> None:
        self.handle = handle
        self._amdsmi = amdsmi

    def uuid(self) -> str:
        """Return the serial number as in ROCm's UUIDs: in lower case, without "0x"."""
        return str(self._amdsmi.amdsmi_get_gpu_asic_info(self.handle)["asic_serial"][2:]).lower()

    def memory(self) -> tuple[int, int]:
        mebibytes = self._amdsmi.amdsmi_get_gpu_vram_usage(self.handle)
        return mebibytes["vram_used"] << 20, mebibytes["vram_total"] << 20

    def busy(self) -> tuple[int, int]:
        activity = self._amdsmi.amdsmi_get_gpu_activity(self.handle)
        return activity["gfx_activity"], activity["umc_activity"]

    def temperature(self) -> int:
        kind, which = self._amdsmi.AmdSmiTemperatureType.JUNCTION, self._amdsmi.AmdSmiTemperatureMetric.CURRENT
        return int(self._amdsmi.amdsmi_get_temp_metric(self.handle, kind, which))

    def power(self) -> int:
        """Return the power in milliwatts, 0 if unknown. PyTorch returns the library's watts as milliwatts."""
        info = self._amdsmi.amdsmi_get_power_info(self.handle)
        return 1000 * _first_known(info, "average_socket_power", "current_socket_power")

    def clock(self) -> int:
        """Return the clock rate in MHz, 0 if unknown."""
        info = self._amdsmi.amdsmi_get_clock_info(self.handle, self._amdsmi.AmdSmiClkType.GFX)
        return _first_known(info, "cur_clk" if "cur_clk" in info else "clk")

    def processes(self) -> Mapping[int, int | None]:
        found = {}
        for process in self._amdsmi.amdsmi_get_gpu_process_list(self.handle):
            try:
                info = self._amdsmi.amdsmi_get_gpu_process_info(self.handle, process)
            except AttributeError:  # newer versions list the information itself
                info = process
            found[info["pid"]] = info["memory_usage"]["vram_mem"]
        return found


def amdsmi_index(amdsmi: Any, hip_index: int) -> int:
    """Return the index in AMD SMI of the device with this HIP index; the same index, with a warning, if unknown."""

    def pairs() -> Iterator[tuple[int, int]]:
        for index, handle in enumerate(handles):
            info = amdsmi.amdsmi_get_gpu_enumeration_info(handle)
            if "hip_id" in info:
                yield info["hip_id"], index

    handles = amdsmi.amdsmi_get_processor_handles()
    known = dict(pairs())
    wrong = " Functions that rely on amdsmi (e.g. temperature()) may operate on wrong devices."
    if not known and len(handles) > 1:
        message = "Cannot translate HIP ID to AMD SMI ID due to lack of translation information prior to ROCm 6.4."
        warnings.warn(message + wrong, stacklevel=2)
    if hip_index not in known:
        message = (
            f"Cannot translate HIP ID {hip_index} to AMD SMI ID due to undetected HIP ID from amdsmi."
            f" amdsmi_get_gpu_enumeration_info() only report these HIP IDs {list(known)}."
        )
        warnings.warn(message + wrong, stacklevel=2)
    return known.get(hip_index, hip_index)


def _first_known(info: Mapping[str, Any], *names: str) -> int:
    return next((int(info[name]) for name in names if info[name] != _UNKNOWN), 0)
