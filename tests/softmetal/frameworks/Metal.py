"""PyObjC's module `Metal`, over the stand-in. What it lacks is refused."""

from typing import Any

from softmetal import captures, command_buffers, constants, devices, events, libraries, resources, structures
from softmetal.control import control as _control
from softmetal.devices import MTLCopyAllDevices, MTLCreateSystemDefaultDevice

_MODULES = (captures, command_buffers, constants, devices, events, libraries, resources, structures)
_DOMAINS = ("MTLCommandBufferErrorDomain", "MTLLibraryErrorDomain", "MTLCaptureErrorDomain")
MTLCommandBufferErrorDomain = "MTLCommandBufferErrorDomain"
MTLLibraryErrorDomain = "MTLLibraryErrorDomain"
MTLCaptureErrorDomain = "MTLCaptureErrorDomain"
MTLCommandBufferEncoderInfoErrorKey = "MTLCommandBufferEncoderInfoErrorKey"


def _protocol(module: Any, name: str) -> bool:
    return name.startswith("MTL") and getattr(vars(module)[name], "__module__", module.__name__) == module.__name__


globals().update({name: vars(module)[name] for module in _MODULES for name in vars(module) if _protocol(module, name)})

__all__ = ["MTLCopyAllDevices", "MTLCreateSystemDefaultDevice"]


def __getattr__(name: str) -> Any:
    if name.startswith("_"):
        raise AttributeError(name)
    return _control.refuse(f"Metal.{name}")
