"""forebay.mtia without a backend, with a driver without devices, and with a driver that has only required methods."""

from __future__ import annotations

import pytest

import forebay
from forebay import backends, mtia
from forebay.runtime.lifecycle.emulation import reset_kind
from forebay.testing.fake import FakeDriver


@pytest.fixture
def vendor():
    """A third-party driver with two devices and only the methods that the contract requires."""
    driver = FakeDriver(2, kind="mtia")
    with backends.override_driver(driver):
        yield driver
        reset_kind("mtia")


@pytest.mark.parametrize(
    ("use", "error", "message"),
    [
        (mtia.init, AssertionError, "Torch not compiled with MTIA enabled"),
        (mtia.current_device, forebay.ForebayError, r"Cannot execute getCurrentDevice\(\) without MTIA backend\."),
        (mtia.MTIAGraph, forebay.ForebayError, r"Cannot execute mtiagraphCreate\(\) without MTIA backend\."),
    ],
)
def test_error_without_a_backend_suggests_emulation(use, error, message):
    with pytest.raises(error, match=rf"^{message}\nthis version of forebay .* forebay\.emulate\('mtia'\)$"):
        use()


def test_backend_without_devices_reports_the_reason():
    with backends.override_driver(FakeDriver(0, kind="mtia")):
        assert (mtia._is_compiled(), mtia.is_available(), mtia.get_rng_state_all()) == (True, False, [])
        for use in (mtia.init, mtia.current_device, lambda: mtia.set_device(0), lambda: mtia.current_stream(0)):
            with pytest.raises(forebay.ForebayError, match="this fake driver was made without devices"):
                use()


def test_vendor_driver_serves_mtia_devices(vendor):
    assert (mtia.is_available(), mtia.device_count(), mtia.is_initialized()) == (True, 2, False)
    with mtia.device(1):
        block = forebay.allocate(1 << 20)
        assert (block.size, mtia.memory_allocated(), mtia.memory_allocated(0)) == (1 << 20, 1 << 20, 0)
    assert mtia.get_device_properties(1) == {"name": "fake device", "total_memory": 1 << 30}
    with pytest.raises(forebay.Unsupported, match="the driver of fake device does not report a capability"):
        mtia.get_device_capability()
    with mtia.stream(mtia.Stream("mtia:1")):
        assert mtia.current_device() == 1
    block.free()
    mtia.empty_cache()
    assert {call[0] for port in vendor.ports for call in port.calls} == {"queue", "reserve", "release"}
    assert forebay.accelerator.current_accelerator() == forebay.device("mtia")


def test_vendor_without_graph_support_is_reported(vendor):
    with pytest.raises(forebay.Unsupported, match="mtia does not support graph capture"), mtia.graph(mtia.MTIAGraph()):
        pass
    assert mtia.current_stream() == mtia.default_stream()
