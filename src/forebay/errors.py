"""Every exception forebay raises.

ForebayError (a RuntimeError, as PyTorch's are)
├── DeviceError          the driver said no                     .code .call .device
│   └── OutOfMemory      the device is full (also MemoryError)  .wanted .free .reserved .capacity
├── Unsupported          this backend cannot do that            .ability
├── WrongState           allowed, but not now
└── Forked               this process was forked after the device was opened

A destructor, an exit handler or a fork handler never raises: it complains, with a ForebayWarning.
"""

from __future__ import annotations

import sys
import warnings
from types import FrameType

__all__ = [
    "DeviceError",
    "ForebayError",
    "ForebayWarning",
    "Forked",
    "OutOfMemory",
    "Unsupported",
    "WrongState",
    "complain",
    "user_frame",
]


class ForebayError(RuntimeError):
    """The root of everything forebay raises on purpose."""


class DeviceError(ForebayError):
    """The driver refused; `code` is its own number, `call` the function that failed, `device` the device's name."""

    def __init__(self, message: str, *, code: int = 0, call: str = "", device: str = "") -> None:
        super().__init__(message)
        self.code = code
        self.call = call
        self.device = device

    @property
    def error_code(self) -> int:
        """`code`, under the name that it has in `torch.AcceleratorError`."""
        return self.code


class OutOfMemory(DeviceError, MemoryError):
    """The device has no room; the fields are bytes: asked for, free on the device, held by our segments, in all."""

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
    """The backend lacks an ability; `ability` is the name of its protocol in `forebay.spi`."""

    def __init__(self, message: str, *, ability: str = "") -> None:
        super().__init__(message)
        self.ability = ability


class WrongState(ForebayError):
    """The call is allowed, but not now: the message says what must happen first."""


class Forked(ForebayError):
    """This process was forked after the device was opened, so its queues are gone."""


class ForebayWarning(UserWarning):
    """What a destructor, an exit handler or a fork handler could not do."""


def complain(message: str) -> None:
    """Warn from where nothing may be raised; also where warnings are errors."""
    try:
        warnings.warn(message, ForebayWarning, stacklevel=3)
    except ForebayWarning as error:
        _Complaint(error.with_traceback(None))


class _Complaint:
    """Its end tells sys.unraisablehook: only the interpreter can make what that takes."""

    def __init__(self, error: ForebayWarning) -> None:
        self.error = error

    def __del__(self) -> None:
        raise self.error


def user_frame() -> tuple[FrameType | None, int]:
    """The innermost frame that is not forebay's own, if any, and the `stacklevel` of it for a warning of who asks."""
    frame, level = sys._getframe(1), 1  # noqa: SLF001 -- the documented way
    while frame.f_globals.get("__name__", "").partition(".")[0] in ("forebay", "contextlib", "functools"):
        if frame.f_back is None:
            return None, 1
        frame, level = frame.f_back, level + 1
    return frame, level
