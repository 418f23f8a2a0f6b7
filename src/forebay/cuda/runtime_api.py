"""CUDA's runtime library and its codes, as errors."""

from __future__ import annotations

from types import ModuleType

from forebay.cuda import _cudart
from forebay.cuda._kind import CUDA
from forebay.errors import DeviceError

__all__ = ["AcceleratorError", "CudaError", "check_error", "cudaStatus", "cudart"]

# Every refusal of a device is one: its text begins with "CUDA error: " where CUDA has words for it, and `error_code`
# is CUDA's number.
AcceleratorError = DeviceError


class cudaStatus:  # noqa: N801 -- PyTorch's name
    """Two codes that are worth a name."""

    SUCCESS: int = 0
    ERROR_NOT_READY: int = 34


class CudaError(RuntimeError):
    """A code of CUDA's runtime library, and what it says. (`torch.cuda.CudaError`)

    >>> CudaError(2)
    CudaError('out of memory (2)')
    """

    def __init__(self, code: int) -> None:
        super().__init__(f"{_cudart.cudaGetErrorString(_cudart.cudaError(code))} ({code})")


def check_error(res: int) -> None:
    """Raise CudaError, unless the code is that of success. (`torch.cuda.check_error`)"""
    if res != _cudart.cudaError.success:
        raise CudaError(res)


def cudart() -> ModuleType:
    """The functions of CUDA's runtime library. Initialises CUDA. (`torch.cuda.cudart`)"""
    CUDA.initialisation.ensure()
    return _cudart
