"""The functions of torch._C behind torch.accelerator."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed; test_with_torch.py runs this file")


def test_functions_are_those_of_the_emulated_device(emulated):
    c = torch._C
    x = torch.empty(1 << 20, device="cuda", dtype=torch.uint8)
    assert c._accelerator_getDeviceStats(0)["allocated_bytes"]["all"]["current"] == 1 << 20
    assert c._accelerator_isAllocatorInitialized()
    assert c._accelerator_getMemoryInfo(0) == torch.cuda.mem_get_info(0)
    assert c._accelerator_getStream(1).device_index == 1
    stream = torch.cuda.Stream()
    c._accelerator_setStream(stream)
    assert torch.cuda.current_stream() == stream
    c._accelerator_synchronizeDevice(0)
    assert (c._accelerator_exchangeDevice(1), c._accelerator_getDeviceIndex()) == (0, 1)
    c._accelerator_setDeviceIndex(0)
    del x
    c._accelerator_emptyCache()
    assert torch.cuda.memory_reserved() == 0
    c._accelerator_resetPeakStats(0)
    assert c._accelerator_getDeviceStats(0)["allocated_bytes"]["all"]["peak"] == 0


def test_settings_take_effect(emulated):
    before = torch._C._accelerator_getAllocatorSettings()
    torch._C._accelerator_setAllocatorSettings("roundup_power2_divisions:2")
    try:
        assert torch._C._accelerator_getAllocatorSettings() == "roundup_power2_divisions:2"
        x = torch.empty(5000, device="cuda", dtype=torch.uint8)
        assert torch.cuda.memory_allocated() == 6144
        del x
    finally:
        torch._C._accelerator_setAllocatorSettings(before)
