"""Plugin of pytest: `forebay.emulate("cuda")` uses devices of the software driver instead of emulated ones.

They have the memory and the properties of the profile. Outside an emulation there is no CUDA device, as on the machines
for which the tests were written.
"""

from __future__ import annotations

import ctypes

from cuda.bindings.driver import CUdevice_attribute

from forebay import backends, profiles
from forebay.backends.nvidia import discovery
from forebay.backends.nvidia.driver import _DETAILS, CudaDriver
from forebay.errors import DeviceError

_software = ctypes.CDLL("libcuda.so.1")
_emulated = backends.emulated_driver
_HIDDEN = discovery.Discovery(reason="it is used in emulations only", pytorch_text=discovery._NO_DRIVER)


class _Devices(CudaDriver):
    """The first devices of the software driver."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self._count = count

    def count(self) -> int:
        return min(self._count, super().count())


class NoDevices(CudaDriver):
    """The driver outside an emulation."""

    def count(self) -> int:
        return 0

    def why_not(self) -> str:
        return _HIDDEN.text()

    def _checked(self, index, function):
        raise DeviceError(self.why_not(), code=_HIDDEN.code, call=function, device=f"{self.kind}:{index}")


def _software_driver(kind, count=1, profile="", memory=None, *, guard=False, reserve=0):
    if kind != "cuda":
        return _emulated(kind, count, profile, memory, guard=guard, reserve=reserve)
    properties = profiles.load(profile or "h200").properties
    for name in _DETAILS.keys() & properties.keys() - {"pci_bus_id"}:
        attribute = getattr(CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{_DETAILS[name]}")
        _software.softcuda_set_attribute(int(attribute), properties[name])
    _software.softcuda_set_memory(ctypes.c_uint64(memory or properties["total_memory"]))
    return _Devices(count)


backends.emulated_driver = _software_driver
backends._BUILT_IN["cuda"] = (__name__, "NoDevices")
