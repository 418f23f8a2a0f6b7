"""Plugin of pytest: `forebay.emulate("cuda")` uses the GPUs of this machine instead of emulated ones.

The tests then run with the capacity and the properties of these GPUs: `gpu.faces` selects those that depend on neither.
"""

from __future__ import annotations

from forebay import backends
from forebay.backends.nvidia.driver import CudaDriver
from forebay.spi import Driver

_emulated = backends.emulated_driver


class _FirstDevices(CudaDriver):
    """The first GPUs of this machine."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self._count = count

    def count(self) -> int:
        return min(self._count, super().count())


def _real_driver(
    kind: str, count: int = 1, profile: str = "", memory: int | None = None, *, guard: bool = False
) -> Driver:
    if kind == "cuda":
        return _FirstDevices(count)
    return _emulated(kind, count, profile, memory, guard=guard)


backends.emulated_driver = _real_driver
