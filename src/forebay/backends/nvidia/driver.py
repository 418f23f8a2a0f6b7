"""Driver of NVIDIA's GPUs."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

from forebay.backends.common.arguments import integer_of
from forebay.backends.common.cuda_errors import INVALID_DEVICE
from forebay.backends.nvidia.calls import call, driver_api, error_of
from forebay.backends.nvidia.context import PrimaryContext
from forebay.backends.nvidia.port import CudaPort
from forebay.errors import DeviceError
from forebay.spi import DeviceProps

__all__ = ["CudaDriver"]

_NO_DEVICE = 100
_LOWEST_VERSION = 12000  # of the driver's interface
# PyTorch's names of properties, and the driver's names of attributes after CU_DEVICE_ATTRIBUTE_.
_DETAILS = {
    "major": "COMPUTE_CAPABILITY_MAJOR",
    "minor": "COMPUTE_CAPABILITY_MINOR",
    "multi_processor_count": "MULTIPROCESSOR_COUNT",
    "max_threads_per_multi_processor": "MAX_THREADS_PER_MULTIPROCESSOR",
    "max_threads_per_block": "MAX_THREADS_PER_BLOCK",
    "warp_size": "WARP_SIZE",
    "regs_per_multiprocessor": "MAX_REGISTERS_PER_MULTIPROCESSOR",
    "shared_memory_per_block": "MAX_SHARED_MEMORY_PER_BLOCK",
    "shared_memory_per_block_optin": "MAX_SHARED_MEMORY_PER_BLOCK_OPTIN",
    "shared_memory_per_multiprocessor": "MAX_SHARED_MEMORY_PER_MULTIPROCESSOR",
    "L2_cache_size": "L2_CACHE_SIZE",
    "clock_rate": "CLOCK_RATE",
    "memory_clock_rate": "MEMORY_CLOCK_RATE",
    "memory_bus_width": "GLOBAL_MEMORY_BUS_WIDTH",
    "is_integrated": "INTEGRATED",
    "is_multi_gpu_board": "MULTI_GPU_BOARD",
    "pci_bus_id": "PCI_BUS_ID",
    "pci_device_id": "PCI_DEVICE_ID",
    "pci_domain_id": "PCI_DOMAIN_ID",
}


class CudaDriver:
    """Driver of the GPUs that are visible to CUDA in this process. Counting them creates no context."""

    kind: str = "cuda"

    def count(self) -> int:
        return self._state().count

    def why_not(self) -> str:
        return self._state().reason

    def describe(self, index: int) -> DeviceProps:
        index, name = self._checked(index, "describe")
        device = call("cuDeviceGet", index, device=name)
        details = self._details(device, name)
        return DeviceProps(
            self.kind,
            index,
            str(details["name"]),
            int(details["total_memory"]),
            queue_visible=False,
            pooled_streams=32,
            stream_priorities=4,
            multi_processor_count=int(details["multi_processor_count"]),
            max_threads_per_multi_processor=int(details["max_threads_per_multi_processor"]),
            details=details,
        )

    def can_access(self, index: int, peer: int) -> bool:
        index, name = self._checked(index, "can_access")
        peer, _ = self._checked(peer, "can_access")
        devices = [call("cuDeviceGet", each, device=name) for each in (index, peer)]
        return index != peer and bool(call("cuDeviceCanAccessPeer", *devices, device=name))

    def open(self, index: int) -> CudaPort:
        props = self.describe(index)
        context = PrimaryContext(props.index, f"{self.kind}:{props.index}")
        try:
            return CudaPort(props, context)
        except BaseException:
            context.release()
            raise

    def _checked(self, index: int, function: str) -> tuple[int, str]:
        index = integer_of(index, "index")
        name = f"{self.kind}:{index}"
        state = self._state()
        if not state.count:
            raise DeviceError(state.reason, code=state.code, call=function, device=name)
        if index not in range(state.count):
            raise error_of(INVALID_DEVICE, function, name)
        return index, name

    def _details(self, device: Any, name: str) -> dict[str, Any]:
        attributes = driver_api().CUdevice_attribute
        details = {
            key: call(
                "cuDeviceGetAttribute", getattr(attributes, f"CU_DEVICE_ATTRIBUTE_{attribute}"), device, device=name
            )
            for key, attribute in _DETAILS.items()
        }
        text = call("cuDeviceGetName", 256, device, device=name)
        uuid = bytes(call("cuDeviceGetUuid", device, device=name).bytes)
        return {
            "name": text.partition(b"\0")[0].decode(errors="replace"),
            "total_memory": int(call("cuDeviceTotalMem", device, device=name)),
            **details,
            "uuid": f"{uuid[:4].hex()}-{uuid[4:6].hex()}-{uuid[6:8].hex()}-{uuid[8:10].hex()}-{uuid[10:].hex()}",
        }

    def _state(self) -> _State:
        try:
            api = driver_api()
        except ImportError as error:
            return _State(f"cuda-bindings is not installed ({error}): pip install 'forebay[cuda]'")
        try:
            results = [api.cuInit(0), api.cuDriverGetVersion(), api.cuDeviceGetCount()]
        except Exception as error:  # noqa: BLE001 -- cuda-bindings raises errors of several types if there is no driver
            return _State(
                f"the NVIDIA driver is not installed, or not visible in this container ({_first_line(error)})"
            )
        version, count = (int(result[1] or 0) for result in results[1:])
        if 0 < version < _LOWEST_VERSION:
            return _State(
                f"the NVIDIA driver supports CUDA {_dotted(version)}; forebay needs {_dotted(_LOWEST_VERSION)}"
            )
        code = next((int(result[0]) for result in results if result[0]), 0)
        if code in (0, _NO_DEVICE):
            return _State("" if count else _no_device(), code or _NO_DEVICE, count)
        return _State(str(error_of(code, "cuInit")), code)


@dataclass(frozen=True)
class _State:
    """The reason why there are no devices, the driver's code for it, and the number of devices."""

    reason: str
    code: int = 0
    count: int = 0


def _no_device() -> str:
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return f"No CUDA GPUs are available: CUDA_VISIBLE_DEVICES is {visible!r}"
    return "the NVIDIA driver finds no GPU"


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]


def _dotted(version: int) -> str:
    return f"{version // 1000}.{version % 1000 // 10}"
