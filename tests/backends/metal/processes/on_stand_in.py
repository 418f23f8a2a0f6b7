"""Plugin of pytest: `forebay.emulate("mps")` uses the device of tests/softmetal instead of an emulated one.

It has the memory and the properties of the profile. Outside an emulation there is no MPS device, as on the machines for
which the tests were written. An emulation of several devices, or with a guard, is still one.
"""

from __future__ import annotations

import pytest
from softmetal.control import control
from softmetal.machines import M1, Machine

from forebay import backends, profiles
from forebay.backends.metal import discovery
from forebay.backends.metal.driver import MetalDriver
from forebay.errors import DeviceError

_emulated = backends.emulated_driver
_HIDDEN = discovery.Discovery(reason="it is used in emulations only")


class NoDevices(MetalDriver):
    """The driver outside an emulation."""

    def count(self) -> int:
        return 0

    def why_not(self) -> str:
        return _HIDDEN.text()

    def _device(self, index, function):
        raise DeviceError(self.why_not(), call=function, device=f"{self.kind}:{index}")


def _on_stand_in(kind, count=1, profile="", memory=None, *, guard=False, reserve=0):
    if kind != "mps" or count != 1 or guard:
        return _emulated(kind, count, profile, memory, guard=guard, reserve=reserve)
    properties = profiles.load(profile or "apple_m3_max").properties
    total = memory or properties["total_memory"]
    recommended, longest = (
        max(properties[name] * total // properties["total_memory"], 1)
        for name in ("recommended_max_memory", "max_buffer_length")
    )
    gpu = M1.__class__(
        properties["name"], total, recommended, longest, M1.families, heap_alignment=properties["buffer_alignment"]
    )
    control.use(Machine((gpu,), total))
    discovery._found = None
    return MetalDriver()


backends.emulated_driver = _on_stand_in
backends._BUILT_IN["mps"] = (__name__, "NoDevices")


@pytest.fixture(autouse=True)
def _rules():
    """No test breaks a rule of Metal."""
    yield
    control.check()
