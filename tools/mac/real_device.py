"""Plugin of pytest: `forebay.emulate("mps")` uses the GPU of this machine instead of an emulated one.

The tests then run with the capacity and the properties of this GPU: names.toml lists those that depend on them.
Outside an emulation there is no MPS device, as on the machines for which the tests were written.
"""

from __future__ import annotations

from typing import Any

from forebay import backends
from forebay.backends.metal.driver import MetalDriver
from forebay.errors import DeviceError
from forebay.spi import Driver

_emulated = backends.emulated_driver


class NoDevices(MetalDriver):
    """The driver outside an emulation."""

    def count(self) -> int:
        return 0

    def why_not(self) -> str:
        return "it is used in emulations only"

    def _device(self, index: int, function: str) -> Any:
        raise DeviceError(self.why_not(), call=function, device=f"{self.kind}:{index}")


def _real_driver(
    kind: str, count: int = 1, profile: str = "", memory: int | None = None, *, guard: bool = False, reserve: int = 0
) -> Driver:
    if kind == "mps" and count == 1 and not guard:
        return MetalDriver()
    return _emulated(kind, count, profile, memory, guard=guard, reserve=reserve)


backends.emulated_driver = _real_driver
backends._BUILT_IN["mps"] = (__name__, "NoDevices")  # noqa: SLF001 - the tests replace the backend
