"""Driver of NVIDIA's GPUs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from forebay.backends.nvidia.calls import call, driver_api, error_of
from forebay.backends.nvidia.discovery import discover
from forebay.errors import DeviceError
from forebay.spi import DeviceProps
from forebay.vendor import cuda_errors, integer_of

if TYPE_CHECKING:
    from forebay.backends.nvidia.port import CudaPort

__all__ = ["CudaDriver"]

_DLPACK_CUDA = 2  # kDLCUDA
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
        return discover().count

    def why_not(self) -> str:
        return discover().text()

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
            closes_before_release=True,
            dlpack_type=_DLPACK_CUDA,
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
        from forebay.backends.nvidia.context import PrimaryContext  # needs compiled code, and few programs have a GPU
        from forebay.backends.nvidia.port import CudaPort

        props = self.describe(index)
        context = PrimaryContext(props.index, f"{self.kind}:{props.index}")
        try:
            context.retain()
            return CudaPort(props, context)
        except BaseException:
            context.release()
            raise

    def _checked(self, index: int, function: str) -> tuple[int, str]:
        index = integer_of(index, "index")
        name = f"{self.kind}:{index}"
        found = discover()
        if not found.count:
            raise DeviceError(found.text(), code=found.code, call=function, device=name)
        if index not in range(found.count):
            raise error_of(cuda_errors.INVALID_DEVICE, function, name)
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
