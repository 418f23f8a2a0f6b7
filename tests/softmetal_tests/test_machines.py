"""The machines that the stand-in can be."""

from __future__ import annotations

import pytest
from softmetal.machines import MACHINES

GIB = 1 << 30


@pytest.fixture
def machine(request):
    return getattr(request, "param", {})


@pytest.mark.parametrize("machine", [{"machine": "m2-ultra-192gib"}], indirect=True)
def test_large_machine(metal):
    device = metal.device
    found = device.name(), device.recommendedMaxWorkingSetSize(), device.maxBufferLength()
    assert found == ("Apple M2 Ultra", 154618822656, 115964116992)


def test_small_machine(metal):
    from Foundation import NSProcessInfo

    device, names = metal.device, metal.Metal
    assert (device.name(), device.maxBufferLength()) == ("Apple M1", 4 * GIB)
    families = [names.MTLGPUFamilyApple7, names.MTLGPUFamilyMetal3, names.MTLGPUFamilyMac2]
    assert all(device.supportsFamily_(family) for family in families)
    assert not device.supportsFamily_(names.MTLGPUFamilyApple8)
    assert (device.hasUnifiedMemory(), device.isLowPower(), device.isRemovable()) == (True, False, False)
    process = NSProcessInfo.processInfo()
    assert (process.physicalMemory(), tuple(process.operatingSystemVersion())) == (8 * GIB, (14, 5, 0))
    assert process.isOperatingSystemAtLeastVersion_((13, 3, 0))
    assert process.thermalState() == 0


@pytest.mark.parametrize("machine", [{"machine": "two"}], indirect=True)
def test_two_devices(metal):
    devices = metal.Metal.MTLCopyAllDevices()
    assert [device.registryID() for device in devices] == [0x100000300, 0x100000301]
    assert metal.device is devices[0]


@pytest.mark.parametrize("machine", [{"machine": "intel"}], indirect=True)
def test_device_without_unified_memory(metal):
    assert not metal.device.hasUnifiedMemory()
    managed = metal.buffer(64, metal.Metal.MTLResourceStorageModeManaged)
    managed.didModifyRange_((0, 4))
    encoder = metal.queue.commandBuffer().blitCommandEncoder()
    encoder.synchronizeResource_(managed)
    encoder.endEncoding()
    assert metal.device.counterSets() == ()


@pytest.mark.parametrize("machine", [{"machine": "none"}], indirect=True)
def test_machine_without_a_device(machine):
    from support.software_metal import installed

    with installed(**machine):
        import Metal

        assert Metal.MTLCreateSystemDefaultDevice() is None
        assert Metal.MTLCopyAllDevices() == ()


@pytest.mark.parametrize("machine", [{"machine": "old-macos"}], indirect=True)
def test_old_macos_does_not_know_new_languages(metal):
    options = metal.Metal.MTLCompileOptions.new()
    options.setLanguageVersion_(metal.Metal.MTLLanguageVersion3_0)
    _, error = metal.device.newLibraryWithSource_options_error_("kernel void f() {}", options, None)
    assert error.code() == metal.Metal.MTLLibraryErrorUnsupported


@pytest.mark.parametrize("machine", [{"memory": 1 * GIB, "unified": False}], indirect=True)
def test_properties_can_be_changed(metal):
    assert not metal.device.hasUnifiedMemory()
    assert metal.buffer(2 * GIB) is None


def test_machines_are_consistent():
    for machine in MACHINES.values():
        for gpu in machine.gpus:
            assert gpu.max_buffer <= gpu.memory <= machine.memory
            assert gpu.working_set <= gpu.memory
