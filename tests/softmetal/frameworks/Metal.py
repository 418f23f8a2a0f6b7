"""PyObjC's module `Metal`, over the stand-in. What it lacks is refused."""

from typing import Any

from softmetal import (
    availability,
    captures,
    command_buffers,
    constants,
    counters,
    devices,
    events,
    indirect,
    libraries,
    resources,
    structures,
)
from softmetal.control import control as _control
from softmetal.devices import MTLCopyAllDevices, MTLCreateSystemDefaultDevice
from softmetal.objects import Creatable as _Creatable

_MODULES = (
    *(captures, command_buffers, constants, counters, devices, events, indirect, libraries, resources, structures),
)
MTLCommandBufferErrorDomain = "MTLCommandBufferErrorDomain"
MTLLibraryErrorDomain = "MTLLibraryErrorDomain"
MTLCaptureErrorDomain = "MTLCaptureErrorDomain"
MTLCounterErrorDomain = "MTLCounterErrorDomain"
MTLCommonCounterSetTimestamp = "timestamp"
MTLCommonCounterTimestamp = "GPUTimestamp"
MTLCommandBufferEncoderInfoErrorKey = "MTLCommandBufferEncoderInfoErrorKey"


availability.apply()


def _is_public(module: Any, name: str) -> bool:
    """Say whether a name of a module is one of Metal's; the classes of devices, buffers and so on have no names."""
    found = vars(module)[name]
    if isinstance(found, type):
        return issubclass(found, (_Creatable, tuple, captures.MTLCaptureManager)) and name.startswith("MTL")
    return name.startswith("MTL")


globals().update({name: vars(module)[name] for module in _MODULES for name in vars(module) if _is_public(module, name)})

__all__ = ["MTLCopyAllDevices", "MTLCreateSystemDefaultDevice"]


def __getattr__(name: str) -> Any:
    if name.startswith("_"):
        raise AttributeError(name)
    return _control.refuse(f"Metal.{name}")
