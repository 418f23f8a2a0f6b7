"""Why there is no MPS device, in each case."""

from __future__ import annotations

import builtins
import subprocess
import sys

import pytest
from softmetal.machines import MACHINES, Machine
from support.metal_scenario import KEPT

import forebay
from forebay.backends.metal import discovery
from forebay.backends.metal.driver import MetalDriver
from forebay.errors import DeviceError

EMULATE = "; forebay can emulate a GPU: forebay.emulate('mps')"


@pytest.mark.skipif(sys.platform == "darwin", reason="this is a Mac")
def test_other_systems_than_macos_are_named():
    assert forebay.why_not("mps") == f"Metal needs macOS, and this system is {discovery.system()[0]}{EMULATE}"
    assert not forebay.mps.is_available()


@pytest.mark.skipif(sys.platform == "darwin", reason="this is a Mac")
def test_import_is_free_of_metal():
    program = "import sys, forebay, forebay.mps; forebay.why_not('mps'); forebay.mps.is_available()"
    program += "; print(sorted({'Metal', 'objc', 'Foundation'} & {*sys.modules}))"
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert found.stdout == "[]\n"


def test_old_macos_is_named(mac, monkeypatch):
    monkeypatch.setattr(discovery, "system", lambda: ("macOS", "12.7.1"))
    assert MetalDriver().why_not() == f"macOS 12.7.1 is too old: Metal 3 needs macOS 13 or later{EMULATE}"


def test_missing_extra_is_named(mac, monkeypatch):
    real = builtins.__import__

    def without_metal(name, *arguments):
        if name == "Metal":
            raise ModuleNotFoundError("No module named 'Metal'", name="Metal")
        return real(name, *arguments)

    monkeypatch.setattr(builtins, "__import__", without_metal)
    reason = "pyobjc-framework-Metal is not installed (No module named 'Metal'): pip install 'forebay[metal]'"
    assert MetalDriver().why_not() == reason + EMULATE


@pytest.mark.parametrize(("processor", "kind"), [("x86_64", "Intel Mac"), ("arm64", "Mac")])
def test_gpu_without_metal_3_is_named(become, monkeypatch, processor, kind):
    become("intel-old", macos=(13, 6, 0))
    monkeypatch.setattr(discovery.platform, "machine", lambda: processor)
    reason = f"this {kind} has no GPU that supports Metal 3: Intel HD Graphics 5000 does not"
    assert MetalDriver().why_not() == reason + EMULATE


def test_machine_without_a_gpu_is_named(become):
    become("none")
    assert MetalDriver().why_not() == f"Metal finds no GPU: a virtual machine may have none{EMULATE}"
    assert MetalDriver().count() == 0
    with pytest.raises(DeviceError, match="Metal finds no GPU"):
        MetalDriver().open(0)


def test_failing_framework_is_named(mac):
    mac.fail("supportsFamily_", text="broken")
    assert "Metal cannot be initialised: " in MetalDriver().why_not()
    assert MetalDriver().why_not() == ""


def test_discovery_creates_nothing(mac):
    driver = MetalDriver()
    assert (driver.count(), driver.why_not()) == (1, "")
    driver.describe(0)
    assert {*mac.live()} <= KEPT


def test_device_is_that_of_torch_mps(become):
    intel = MACHINES["intel"].gpus[0]
    become(Machine((MACHINES["intel-old"].gpus[0], intel), 8 << 30))
    assert MetalDriver().count() == 1
    assert MetalDriver().describe(0).name == intel.name  # the one that does not save energy
