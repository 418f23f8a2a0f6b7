"""Plugin of pytest: `forebay.emulate("cuda")` uses devices of the software driver instead of emulated ones."""

from __future__ import annotations

import ctypes

from forebay import backends
from forebay.backends.nvidia.driver import CudaDriver

_software = ctypes.CDLL("libcuda.so.1")
_emulated = backends.emulated_driver
_DEFAULT_MEMORY = 8 << 30


class _Devices(CudaDriver):
    """The first devices of the software driver."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self._count = count

    def count(self) -> int:
        return min(self._count, super().count())


def _software_driver(kind, count=1, profile="", memory=None, *, guard=False):
    if kind != "cuda":
        return _emulated(kind, count, profile, memory, guard=guard)
    _software.softcuda_set_memory(ctypes.c_uint64(memory or _DEFAULT_MEMORY))
    return _Devices(count)


backends.emulated_driver = _software_driver
