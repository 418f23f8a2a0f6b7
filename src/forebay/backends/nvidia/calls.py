"""Calls of the CUDA driver through cuda-bindings: import, and errors in place of result codes."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Final, Protocol

from forebay.errors import DeviceError
from forebay.vendor import accelerator_error, cuda_errors

__all__ = [
    "FATAL", "Context", "call", "call_into", "check", "current_device_index", "driver_api", "error_of", "known_losses",
    "unknown_address",
]  # fmt: skip

# Codes after which no call of the context succeeds: the process must end, or reset the device. ECC_UNCORRECTABLE,
# NVLINK_UNCORRECTABLE, CONTAINED, ILLEGAL_ADDRESS, LAUNCH_TIMEOUT, ASSERT, from HARDWARE_STACK_ERROR to LAUNCH_FAILED,
# TENSOR_MEMORY_LEAK, MPS_CLIENT_TERMINATED, EXTERNAL_DEVICE.
FATAL: Final = frozenset({214, 220, 226, cuda_errors.ILLEGAL_ADDRESS, 702, 710, *range(714, 720), 721, 810, 911})

# Devices for which an error with one of these codes exists: no other place need report it.
known_losses: set[str] = set()

_NO_CONTEXT = frozenset({3, 201})  # codes without a current context: NOT_INITIALIZED, INVALID_CONTEXT


class Context(Protocol):
    """The part of a primary context that its modules and its access to other devices use."""

    name: str
    device: Any
    handle: int

    def check_usable(self) -> None: ...
    def current(self) -> AbstractContextManager[Any]: ...
    def invoke(self, function: Callable[..., Any], *arguments: Any) -> Any: ...


def driver_api() -> Any:
    """Return the module `cuda.bindings.driver`. Raises ImportError if cuda-bindings is not installed."""
    from cuda.bindings import driver

    return driver


def error_of(code: int, function: str, device: str = "") -> DeviceError:
    """Return the error for a result code of the driver: PyTorch's text, and the driver's name of the code as a note."""
    api = driver_api()
    try:
        name = api.cuGetErrorName(api.CUresult(code))[1]
    except ValueError:  # the driver is newer than cuda-bindings
        name = None
    shown = name.decode() if name else f"CUDA_ERROR_{code}"
    if code in FATAL and device:
        known_losses.add(device)
    remedy = "; the device accepts no more work in this process" if code in FATAL else ""
    return accelerator_error(code, call=function, device=device, note=f"{function} returned {shown} ({code}){remedy}")


def check(result: tuple[Any, ...], function: str, device: str = "") -> Any:
    """Return what a call returned, without its result code: None, a value, or a tuple. Raises DeviceError."""
    if result[0]:
        raise error_of(int(result[0]), function, device)
    return result[1] if len(result) == 2 else result[1:] or None


def call(function: str, *arguments: Any, device: str = "") -> Any:
    """Call a function of the driver by name. Raises DeviceError."""
    try:
        result = getattr(driver_api(), function)(*arguments)
    except RuntimeError as error:  # the driver does not have the function
        raise DeviceError(f"{device or 'cuda'}: {error}", call=function, device=device) from None
    return check(result, function, device)


def call_into(results: list[tuple[Any, ...]], function: Any, *arguments: Any) -> None:
    """Append the result of a call. A signal handler cannot run between both, as no Python code does."""
    results.extend(map(function, *([each] for each in arguments)))


def current_device_index() -> int:
    """Return the index of the device whose context is current in this thread. Without one it is 0, as in CUDA."""
    result = driver_api().cuCtxGetDevice()
    return 0 if int(result[0]) in _NO_CONTEXT else int(check(result, "cuCtxGetDevice"))


def unknown_address(address: int, call: str, origin: str, device: str) -> DeviceError:
    """Return the error of a call for an address that no call of `origin` returned."""
    error = error_of(cuda_errors.INVALID_VALUE, call, device)
    error.add_note(f"{address:#x} is not the address of memory that `{origin}` returned")
    return error
