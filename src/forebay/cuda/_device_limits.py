"""Peak throughput of a CUDA device, from its clock rates and bus widths (`torch.cuda._device_limits`)."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from forebay._base.dtypes import as_dtype
from forebay.cuda._kind import CUDA

__all__ = ["GPULimits"]

# Fused multiply-adds per cycle of one multiprocessor, by compute capability and NumPy's name of the dtype.
# Source: NVIDIA H100 Tensor Core GPU Architecture, table 2, for A100 and H100; PyTorch 2.15 for Blackwell.
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
_SHARED_BYTES_PER_CYCLE = 128  # of one multiprocessor: 4 for each of a warp's 32 threads


class GPULimits:
    """Peak throughput of one device at its highest clock rate.

    As `torch.cuda._device_limits.GPULimits`. Initialises CUDA, does not open the device.

    Parameters
    ----------
    target_device : device or str or int
        The device; None is the current one.

    Examples
    --------
    >>> import forebay
    >>> with forebay.emulate("cuda", profile="h100"):
    ...     GPULimits("cuda:0").get_fma_per_cycle_per_sm_tensor_cores("float16")
    2048
    """

    def __init__(self, target_device: Any) -> None:
        self.device_properties = CUDA.describe(target_device).details
        self.compute_capability = int(f"{self.device_properties['major']}{self.device_properties['minor']}")

    def get_fma_per_cycle_per_sm_cuda_cores(self, data_type: DTypeLike) -> int:
        """Return the fused multiply-adds per cycle of one multiprocessor without tensor cores.

        Parameters
        ----------
        data_type : dtype
            The operands' dtype.

        Raises
        ------
        RuntimeError
            If the number is unknown for this compute capability and dtype.
        """
        return self._lookup(_CUDA_CORES, data_type)

    def get_fma_per_cycle_per_sm_tensor_cores(self, data_type: DTypeLike) -> int:
        """Return the fused multiply-adds per cycle of one multiprocessor's tensor cores.

        Parameters
        ----------
        data_type : dtype
            The operands' dtype.

        Raises
        ------
        RuntimeError
            If the number is unknown for this compute capability and dtype.
        """
        return self._lookup(_TENSOR_CORES, data_type, bfloat16="float16")

    def get_tflops_per_second(self, data_type: DTypeLike, use_tensor_cores: bool = True) -> float:
        """Return the device's peak arithmetic throughput.

        Parameters
        ----------
        data_type : dtype
            The operands' dtype.
        use_tensor_cores : bool, default True
            Count the tensor cores instead of the CUDA cores.

        Returns
        -------
        float
            10^12 operations per second; a fused multiply-add counts as two.

        Raises
        ------
        RuntimeError
            If the number is unknown for this compute capability and dtype.
        """
        if use_tensor_cores:
            fused = self.get_fma_per_cycle_per_sm_tensor_cores(data_type)
        else:
            fused = self.get_fma_per_cycle_per_sm_cuda_cores(data_type)
        properties = self.device_properties
        return float(properties["multi_processor_count"] * fused * 2 * properties["clock_rate"] / 1e9)

    def get_memory_bandwidth_Bps(self) -> int:  # noqa: N802 -- PyTorch's name
        """Return the bytes per second of device memory, which transfers twice per clock cycle."""
        properties = self.device_properties
        return int(2 * properties["memory_bus_width"] / 8) * int(properties["memory_clock_rate"]) * 1000

    def get_shared_memory_bandwidth_Bps(self) -> int:  # noqa: N802 -- PyTorch's name
        """Return the bytes per second of the shared memory of all multiprocessors."""
        properties = self.device_properties
        return int(properties["multi_processor_count"]) * _SHARED_BYTES_PER_CYCLE * int(properties["clock_rate"]) * 1000

    def _lookup(self, table: dict[int, dict[str, int]], data_type: DTypeLike, **aliases: str) -> int:
        name = _dtype_name(data_type)
        known = table.get(self.compute_capability, {}).get(aliases.get(name, name))
        if known is None:
            raise RuntimeError(f"No data for sm_{self.compute_capability} and {data_type}.")
        return known


def _dtype_name(data_type: DTypeLike) -> str:
    dtype: np.dtype[Any] = as_dtype(data_type)
    return dtype.name
