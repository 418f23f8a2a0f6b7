"""Selectors that only newer versions of macOS have: on older ones their classes lack them."""

from __future__ import annotations

from typing import Any

from . import captures, command_buffers, compute, counters, devices, events, indirect, libraries, resources
from .control import control
from .objects import NSObject

SINCE = {  # as the pages of Apple's documentation state it; what is older than macOS 11 is not listed
    "architecture": (14, 0),  # MTLDevice architecture
    "bindings": (13, 0),  # MTLComputePipelineReflection bindings
    "gpuAddress": (13, 0),  # MTLBuffer gpuAddress
    "setEnableLogging_": (15, 0),  # MTLCompileOptions enableLogging
    "setMathFloatingPointFunctions_": (15, 0),  # MTLCompileOptions mathFloatingPointFunctions
    "setMathMode_": (15, 0),  # MTLCompileOptions mathMode
    "setMaxTotalThreadsPerThreadgroup_": (13, 3),  # MTLCompileOptions maxTotalThreadsPerThreadgroup
    "setOptimizationLevel_": (13, 0),  # MTLCompileOptions optimizationLevel
    "waitUntilSignaledValue_timeoutMS_": (12, 0),  # MTLSharedEvent wait(untilSignaledValue:timeoutMS:)
}
_ELSEWHERE = {"setMaxTotalThreadsPerThreadgroup_": libraries.MTLComputePipelineDescriptor}  # which has had it longer
_MODULES = (captures, command_buffers, compute, counters, devices, events, indirect, libraries, resources)


def _owners(name: str) -> list[type]:
    classes = {each for module in _MODULES for each in vars(module).values() if isinstance(each, type)}
    owners = [each for each in classes if issubclass(each, NSObject) and name in vars(each)]
    return [each for each in owners if each is not _ELSEWHERE.get(name)]


_MEMBERS: list[tuple[type, str, Any]] = [(owner, name, vars(owner)[name]) for name in SINCE for owner in _owners(name)]


def apply() -> None:
    """Give the classes the selectors of the machine's macOS."""
    for owner, name, member in _MEMBERS:
        if SINCE[name] <= control.machine.macos[:2]:
            setattr(owner, name, member)
        elif name in vars(owner):
            delattr(owner, name)


control.on_new_machine(apply)
apply()
