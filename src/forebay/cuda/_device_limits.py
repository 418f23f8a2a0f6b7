"""How fast a CUDA device can be at best, from its clocks and widths. (`torch.cuda._device_limits`)"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from forebay.cuda._kind import CUDA
from forebay.dtypes import as_dtype

__all__ = ["GPULimits"]

# Fused multiply-adds that one multiprocessor retires in a cycle, by compute capability and NumPy's name of the dtype.
# Source: NVIDIA H100 Tensor Core GPU Architecture, table 2, for A100 and H100; what PyTorch 2.15 says of Blackwell.
_CUDA_CORES = {
    80: {"float16": 256, "float32": 64, "float64": 32},
    90: {"float16": 64, "float32": 128, "float64": 64},
    100: {"float16": 256, "float32": 128, "float64": 64},
}
_TENSOR_CORES = {
    80: {"int8": 2048, "float16": 1024, "float32": 512, "float64": 64},
    90: {"int8": 4096, "float16": 2048, "float32": 1024, "float64": 128},
    100: {"int8": 8192, "float16": 4096, "float32": 2048},
}
_SHARED_BYTES = 128  # of shared memory, in a cycle of a multiprocessor: 4 for each of a warp's 32 threads


class GPULimits:
    """The limits of one device at its highest clock. Initialises CUDA.

    >>> import forebay
    >>> with forebay.emulate("cuda", profile="h100"):
    ...     GPULimits("cuda:0").get_fma_per_cycle_per_sm_tensor_cores("float16")
    2048
    """

    def __init__(self, target_device: Any) -> None:
        self.device_properties = CUDA.describe(target_device).details
        self.compute_capability = int(f"{self.device_properties['major']}{self.device_properties['minor']}")

    def get_fma_per_cycle_per_sm_cuda_cores(self, data_type: DTypeLike) -> int:
        """Without tensor cores; RuntimeError where no figure is known."""
        return self._found(_CUDA_CORES, data_type)

    def get_fma_per_cycle_per_sm_tensor_cores(self, data_type: DTypeLike) -> int:
        """With tensor cores; RuntimeError where no figure is known."""
        return self._found(_TENSOR_CORES, data_type, bfloat16="float16")

    def get_tflops_per_second(self, data_type: DTypeLike, use_tensor_cores: bool = True) -> float:
        """10^12 operations in a second, of which a fused multiply-add is two."""
        if use_tensor_cores:
            fused = self.get_fma_per_cycle_per_sm_tensor_cores(data_type)
        else:
            fused = self.get_fma_per_cycle_per_sm_cuda_cores(data_type)
        properties = self.device_properties
        return float(properties["multi_processor_count"] * fused * 2 * properties["clock_rate"] / 1e9)

    def get_memory_bandwidth_Bps(self) -> int:  # noqa: N802 -- PyTorch's name
        """Bytes in a second to and from the device's memory, which answers twice in a cycle."""
        properties = self.device_properties
        return int(2 * properties["memory_bus_width"] / 8) * int(properties["memory_clock_rate"]) * 1000

    def get_shared_memory_bandwidth_Bps(self) -> int:  # noqa: N802 -- PyTorch's name
        """Bytes in a second to and from the shared memory of all multiprocessors."""
        properties = self.device_properties
        return int(properties["multi_processor_count"]) * _SHARED_BYTES * int(properties["clock_rate"]) * 1000

    def _found(self, table: dict[int, dict[str, int]], data_type: DTypeLike, **same: str) -> int:
        name = _name(data_type)
        known = table.get(self.compute_capability, {}).get(same.get(name, name))
        if known is None:
            raise RuntimeError(f"No data for sm_{self.compute_capability} and {data_type}.")
        return known


def _name(data_type: DTypeLike) -> str:
    dtype: np.dtype[Any] = as_dtype(data_type)
    return dtype.name
