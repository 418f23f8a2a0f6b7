"""Every exception penstock raises.

PenstockError (a RuntimeError, as PyTorch's are)
├── DeviceError          the driver said no                     .code .call .device
│   └── OutOfMemory      the device is full (also MemoryError)  .wanted .free .reserved .capacity
├── Unsupported          this backend cannot do that            .ability
├── WrongState           allowed, but not now
└── Forked               this process was forked after the device was opened

A destructor, an exit handler or a fork handler never raises: it complains, with a PenstockWarning.
"""

from __future__ import annotations

import sys
import warnings
from types import FrameType

__all__ = [
    "DeviceError",
    "Forked",
    "OutOfMemory",
    "PenstockError",
    "PenstockWarning",
    "Unsupported",
    "WrongState",
    "complain",
    "user_frame",
]


class PenstockError(RuntimeError):
    """The root of everything penstock raises on purpose."""


class DeviceError(PenstockError):
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


class Unsupported(PenstockError):
    """The backend lacks an ability; `ability` is the name of its protocol in `penstock.spi`."""

    def __init__(self, message: str, *, ability: str = "") -> None:
        super().__init__(message)
        self.ability = ability


class WrongState(PenstockError):
    """The call is allowed, but not now: the message says what must happen first."""


class Forked(PenstockError):
    """This process was forked after the device was opened, so its queues are gone."""


class PenstockWarning(UserWarning):
    """What a destructor, an exit handler or a fork handler could not do."""


def complain(message: str) -> None:
    """Warn from where nothing may be raised; also where warnings are errors."""
    try:
        warnings.warn(message, PenstockWarning, stacklevel=3)
    except PenstockWarning as error:
        _Complaint(error.with_traceback(None))


class _Complaint:
    """Its end tells sys.unraisablehook: only the interpreter can make what that takes."""

    def __init__(self, error: PenstockWarning) -> None:
        self.error = error

    def __del__(self) -> None:
        raise self.error


def user_frame() -> tuple[FrameType | None, int]:
    """The innermost frame that is not penstock's own, if any, and the `stacklevel` of it for a warning of who asks."""
    frame, level = sys._getframe(1), 1  # noqa: SLF001 -- the documented way
    while frame.f_globals.get("__name__", "").partition(".")[0] in ("penstock", "contextlib", "functools"):
        if frame.f_back is None:
            return None, 1
        frame, level = frame.f_back, level + 1
    return frame, level
