"""Exceptions and warnings of forebay.

ForebayError (a RuntimeError, as PyTorch's are)
├── DeviceError          a driver call failed                   .code .call .device
│   └── OutOfMemory      the device is full (also MemoryError)  .wanted .free .reserved .capacity
├── Unsupported          the backend lacks an ability           .ability
│   └── NoArithmetic     a name of PyTorch that computes (also AttributeError, TypeError)
├── WrongState           the call is valid, but not now
└── Forked               this process was forked after the device was opened

Destructors, exit handlers and fork handlers never raise: they emit a ForebayWarning with `warn_unraisable`.
"""

from __future__ import annotations

import sys
import warnings
from types import FrameType
from typing import TypeVar

__all__ = [
    "DeviceError",
    "ForebayError",
    "ForebayWarning",
    "Forked",
    "NoArithmetic",
    "OutOfMemory",
    "Unsupported",
    "WrongState",
    "ended_error",
    "user_frame",
    "warn_unraisable",
    "without_frames",
]

_Error = TypeVar("_Error", bound=BaseException)


class ForebayError(RuntimeError):
    """Base class of forebay's exceptions."""


class DeviceError(ForebayError):
    """A driver call failed.

    Parameters
    ----------
    message : str
        Text of the error.
    code : int, default 0
        The driver's own error code; 0 if it has none.
    call : str, default ""
        Name of the function that failed.
    device : str, default ""
        Name of the device, for example "cuda:0".
    """

    def __init__(self, message: str, *, code: int = 0, call: str = "", device: str = "") -> None:
        super().__init__(message)
        self.code = code
        self.call = call
        self.device = device

    @property
    def error_code(self) -> int:
        """The driver's error code, under its name in `torch.AcceleratorError`."""
        return self.code


class OutOfMemory(DeviceError, MemoryError):
    """The device has not enough free memory.

    Parameters
    ----------
    message : str
        Text of the error.
    wanted : int, default 0
        Requested bytes.
    free : int, default 0
        Free bytes of the device.
    reserved : int, default 0
        Bytes in this process's segments.
    capacity : int, default 0
        Total bytes of the device.
    code : int, default 0
        The driver's own error code; 0 if it has none.
    call : str, default ""
        Name of the function that failed.
    device : str, default ""
        Name of the device.
    """

    def __init__(
        self,
        message: str,
        *,
        wanted: int = 0,
        free: int = 0,
        reserved: int = 0,
        capacity: int = 0,
        code: int = 0,
        call: str = "",
        device: str = "",
    ) -> None:
        super().__init__(message, code=code, call=call, device=device)
        self.wanted = wanted
        self.free = free
        self.reserved = reserved
        self.capacity = capacity


class Unsupported(ForebayError):
    """The backend lacks an ability.

    Parameters
    ----------
    message : str
        Text of the error.
    ability : str, default ""
        Name of the ability's protocol in `forebay.spi`.
    """

    def __init__(self, message: str, *, ability: str = "") -> None:
        super().__init__(message)
        self.ability = ability


class NoArithmetic(Unsupported, AttributeError, TypeError):
    """A name that forebay does not have, as most that PyTorch has besides: they compute with elements.

    Also an AttributeError, so that `hasattr` returns False, and a TypeError, as Python raises for missing operators.

    Parameters
    ----------
    owner : str
        What has no such name, such as "forebay" or "forebay.Tensor".
    name : str
        The name, such as "matmul".
    """

    def __init__(self, owner: str, name: str) -> None:
        Unsupported.__init__(
            self,
            f"{owner} has no attribute {name!r}: forebay has devices, streams and memory, but no arithmetic, no "
            "gradients and no neural networks. Compute with NumPy, CuPy or PyTorch over the same memory.",
            ability="arithmetic",
        )


class WrongState(ForebayError):
    """The call is valid, but not in the current state; the message states the required step."""


def ended_error(device: str) -> WrongState:
    """Return the error for the use of an emulated device after its emulation."""
    return WrongState(f"the emulation of {device} has ended; objects created on the device are unusable")


class Forked(ForebayError):
    """The device was opened before this process was forked, and cannot be used in the child process."""


class ForebayWarning(UserWarning):
    """A failure in a place that cannot raise, or a questionable configuration."""


def warn_unraisable(message: str) -> None:
    """Emit a ForebayWarning where no exception can propagate, such as in a destructor.

    Parameters
    ----------
    message : str
        Text of the warning. If warnings are errors it is passed to `sys.unraisablehook`.
    """
    try:
        warnings.warn(message, ForebayWarning, stacklevel=3)
    except ForebayWarning as error:
        _Unraisable(without_frames(error))


class _Unraisable:
    """Raise an error from `__del__`: only the interpreter can build the argument of sys.unraisablehook."""

    def __init__(self, error: ForebayWarning) -> None:
        self.error = error

    def __del__(self) -> None:
        raise self.error


def without_frames(error: _Error) -> _Error:
    """Remove the frames to which an exception and the causes of it refer, as they keep the caller's variables alive.

    Parameters
    ----------
    error : BaseException
        An exception that will be stored.

    Returns
    -------
    BaseException
        The same exception, without tracebacks, and without the exception that was being handled.
    """
    each: BaseException | None = error
    seen = set[int]()
    while each is not None and id(each) not in seen:  # `raise error from error` is its own cause
        seen.add(id(each))
        each.__traceback__, each.__context__ = None, None
        each = each.__cause__
    return error


def user_frame() -> tuple[FrameType | None, int]:
    """Return the innermost frame outside forebay.

    Returns
    -------
    tuple of frame or None and int
        The frame, None if there is none, and the `stacklevel` with which the caller's warning names that frame.
    """
    frame, level = sys._getframe(1), 1  # noqa: SLF001 -- the documented way
    while frame.f_globals.get("__name__", "").partition(".")[0] in ("forebay", "contextlib", "functools"):
        if frame.f_back is None:
            return None, 1
        frame, level = frame.f_back, level + 1
    return frame, level
