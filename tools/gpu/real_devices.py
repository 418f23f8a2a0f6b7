"""Plugin of pytest: `forebay.emulate("cuda")` uses the GPUs of this machine instead of emulated ones.

The tests then run with the capacity and the properties of these GPUs: `gpu.scenes` selects those that need neither.
"""

from __future__ import annotations

from forebay import backends
from forebay.backends.nvidia.driver import CudaDriver
from forebay.spi import Driver

_emulated = backends.emulated_driver


def _keep_contexts() -> None:
    """Retain the primary contexts until the process ends: each scene opens the devices, and CUDA creates a context."""
    from cuda.bindings import driver as api

    api.cuInit(0)
    for index in range(api.cuDeviceGetCount()[1]):
        api.cuDevicePrimaryCtxRetain(api.cuDeviceGet(index)[1])


_keep_contexts()


class _FirstDevices(CudaDriver):
    """The first GPUs of this machine."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self._count = count

    def count(self) -> int:
        return min(self._count, super().count())


def _real_driver(
    kind: str, count: int = 1, profile: str = "", memory: int | None = None, *, guard: bool = False, reserve: int = 0
) -> Driver:
    if kind == "cuda":
        return _FirstDevices(count)
    return _emulated(kind, count, profile, memory, guard=guard, reserve=reserve)


backends.emulated_driver = _real_driver
