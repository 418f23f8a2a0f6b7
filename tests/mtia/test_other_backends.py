"""Who drives forebay.mtia: nobody, a driver without devices, or one that has no more than the contract asks for."""

from __future__ import annotations

import pytest

import forebay
from forebay import backends, mtia
from forebay.runtime.lifecycle.emulation import forget_kind
from forebay.testing.fake import FakeDriver


@pytest.fixture
def vendor():
    """Two devices of somebody's driver, which has no more than the contract asks for."""
    driver = FakeDriver(2, kind="mtia")
    with backends.registered(driver):
        yield driver
        forget_kind("mtia")


@pytest.mark.parametrize(
    ("use", "error", "words"),
    [
        (mtia.init, AssertionError, "Torch not compiled with MTIA enabled"),
        (mtia.current_device, forebay.ForebayError, r"Cannot execute getCurrentDevice\(\) without MTIA backend\."),
        (mtia.MTIAGraph, forebay.ForebayError, r"Cannot execute mtiagraphCreate\(\) without MTIA backend\."),
    ],
)
def test_without_a_backend_the_next_step_is_on_the_next_line(use, error, words):
    with pytest.raises(error, match=rf"^{words}\nthis version of forebay .* forebay\.emulate\('mtia'\)$"):
        use()


def test_a_backend_without_a_device_says_why():
    with backends.registered(FakeDriver(0, kind="mtia")):
        assert (mtia._is_compiled(), mtia.is_available(), mtia.get_rng_state_all()) == (True, False, [])
        for use in (mtia.init, mtia.current_device, lambda: mtia.set_device(0), lambda: mtia.current_stream(0)):
            with pytest.raises(forebay.ForebayError, match="this fake driver was made without devices"):
                use()


def test_a_vendors_devices_are_mtias(vendor):
    assert (mtia.is_available(), mtia.device_count(), mtia.is_initialized()) == (True, 2, False)
    with mtia.device(1):
        block = forebay.allocate(1 << 20)
        assert (block.size, mtia.memory_allocated(), mtia.memory_allocated(0)) == (1 << 20, 1 << 20, 0)
    assert mtia.get_device_properties(1) == {"name": "fake device", "total_memory": 1 << 30}
    with pytest.raises(forebay.Unsupported, match="the driver of fake device does not tell its capability"):
        mtia.get_device_capability()
    with mtia.stream(mtia.Stream("mtia:1")):
        assert mtia.current_device() == 1
    block.free()
    mtia.empty_cache()
    assert {call[0] for port in vendor.ports for call in port.calls} == {"queue", "reserve", "release"}
    assert forebay.accelerator.current_accelerator() == forebay.Device("mtia")


def test_a_vendor_that_records_nothing_says_so(vendor):
    with pytest.raises(forebay.Unsupported, match="mtia records no graphs"), mtia.graph(mtia.MTIAGraph()):
        pass
    assert mtia.current_stream() == mtia.default_stream()
