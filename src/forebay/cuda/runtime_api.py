"""Access to the CUDA runtime library, and its error codes as exceptions."""

from __future__ import annotations

from types import ModuleType

from forebay.cuda import _cudart
from forebay.cuda._kind import CUDA
from forebay.errors import DeviceError

__all__ = ["AcceleratorError", "CudaError", "check_error", "cudaStatus", "cudart"]

# Raised for every error that a device reports. The text begins with "CUDA error: " if CUDA defines a text for the
# code, and `error_code` is CUDA's code.
AcceleratorError = DeviceError


class cudaStatus:  # noqa: N801 -- PyTorch's name
    """Named CUDA status codes.

    As `torch.cuda.cudaStatus`: only SUCCESS (0) and ERROR_NOT_READY (34) are defined.
    """

    SUCCESS: int = 0
    ERROR_NOT_READY: int = 34


class CudaError(RuntimeError):
    """An error code returned by the CUDA runtime library, with its description.

    As `torch.cuda.CudaError`.

    Parameters
    ----------
    code : int
        The CUDA error code.

    Examples
    --------
    >>> import forebay.cuda as cuda
    >>> cuda.CudaError(2)
    CudaError('out of memory (2)')
    """

    def __init__(self, code: int) -> None:
        super().__init__(f"{_cudart.cudaGetErrorString(_cudart.cudaError(code))} ({code})")


def check_error(res: int) -> None:
    """Raise CudaError unless the code means success.

    As `torch.cuda.check_error`.

    Parameters
    ----------
    res : int
        A code returned by a function of `cudart()`.

    Raises
    ------
    CudaError
        If `res` is not 0.

    Examples
    --------
    >>> import forebay.cuda as cuda
    >>> cuda.check_error(0)
    >>> cuda.check_error(2)
    Traceback (most recent call last):
    forebay.cuda.runtime_api.CudaError: out of memory (2)
    """
    if res != _cudart.cudaError.success:
        raise CudaError(res)


def cudart() -> ModuleType:
    """Return the module of CUDA runtime functions.

    As `torch.cuda.cudart`. Initialises CUDA.

    Returns
    -------
    module
        The functions that PyTorch binds: `cudaHostRegister`, `cudaStreamCreate`, `cudaMemGetInfo` and others.

    Raises
    ------
    RuntimeError
        If there is no CUDA device.
    """
    CUDA.initialisation.ensure()
    return _cudart
