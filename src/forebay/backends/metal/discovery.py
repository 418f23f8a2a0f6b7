"""Discovery of Apple's GPU: the Metal device, or the reason why there is none. Opens nothing."""

from __future__ import annotations

import os
import platform
import sys
import threading
from dataclasses import dataclass
from typing import Any

from forebay.backends.metal.calls import autorelease_pool, metal

__all__ = ["Discovery", "discover", "system"]

_LOWEST_MACOS = 13  # the first with Metal 3
_EMULATE = "; forebay can emulate a GPU: forebay.emulate('mps')"


@dataclass(frozen=True)
class Discovery:
    """The Metal device, or the reason why there is none."""

    device: Any = None  # an MTLDevice
    reason: str = ""
    process: int = 0  # which found the device, and alone may use it

    def text(self) -> str:
        """Return the reason for a user, with a way to continue without a GPU; "" if there is a device."""
        return f"{self.reason}{_EMULATE}" if self.reason else ""


_found: Discovery | None = None  # with a device; other results may change, for example by an installation
_lock = threading.RLock()


def discover() -> Discovery:
    """Return what Metal finds. The first device that is found is kept, as MTLDevice objects are for a process."""
    global _found  # noqa: PLW0603 -- the device of the process
    if (found := _found) is not None:
        return found
    if reason := _unsuitable_system():
        return Discovery(reason=reason)
    try:
        api = metal()
    except ImportError as error:
        return Discovery(reason=f"pyobjc-framework-Metal is not installed ({error}): pip install 'forebay[metal]'")
    with _lock, autorelease_pool():
        if _found is not None:
            return _found
        try:
            found = _suitable_device(api)
        except Exception as error:  # noqa: BLE001 -- PyObjC's are of several types
            return Discovery(reason=f"Metal cannot be initialised: {error}")
        if found.device is not None:
            _found = found
        return found


def system() -> tuple[str, str]:
    """Return the name of the operating system and the version of macOS, which is "" on others."""
    return ("macOS", platform.mac_ver()[0]) if sys.platform == "darwin" else (platform.system() or sys.platform, "")


def _unsuitable_system() -> str:
    name, version = system()
    if name != "macOS":
        return f"Metal needs macOS, and this system is {name}"
    is_old = version and int(version.partition(".")[0]) < _LOWEST_MACOS
    if is_old and version != "10.16":  # what newer systems tell programs that were built for older ones
        return f"macOS {version} is too old: Metal 3 needs macOS {_LOWEST_MACOS} or later"
    return ""


def _suitable_device(api: Any) -> Discovery:
    device = _default_device(api)
    if device is None:
        return Discovery(reason="Metal finds no GPU: a virtual machine may have none")
    if not device.supportsFamily_(api.MTLGPUFamilyMetal3):
        return Discovery(reason=_without_metal_3(device))
    return Discovery(device, process=os.getpid())


def _default_device(api: Any) -> Any:
    """Return the device that torch.mps uses: the first of the machine that does not save energy, else the default."""
    for device in api.MTLCopyAllDevices() or ():
        if not device.isLowPower():
            return device
    return api.MTLCreateSystemDefaultDevice()


def _without_metal_3(device: Any) -> str:
    kind = "Intel Mac" if platform.machine() == "x86_64" else "Mac"
    return f"this {kind} has no GPU that supports Metal 3: {device.name()} does not"
