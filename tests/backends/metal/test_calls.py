"""Ownership of what Metal creates, with a PyObjC that takes it over and with one that does not; errors."""

from __future__ import annotations

import pytest
from support.metal_scenario import KEPT

from forebay.backends.metal import discovery
from forebay.backends.metal.calls import autorelease_pool, invoke, new, new_or_error
from forebay.errors import DeviceError

KERNEL = "kernel void nothing(device float* x) { x[0] = 1; }"


@pytest.fixture(params=[True, False], ids=["PyObjC retains", "PyObjC takes over"])
def device(mac, request):
    mac.over_retains = request.param
    with autorelease_pool():
        yield discovery.discover().device


def test_object_dies_with_its_last_reference(mac, device):
    buffer = new(device.newBufferWithLength_options_, 4096, 0)
    assert (buffer.length(), mac.live("MTLBuffer")) == (4096, 1)
    del buffer
    assert mac.live("MTLBuffer") == 0
    assert device.currentAllocatedSize() == 0


def test_object_of_a_method_with_an_error_dies_with_its_last_reference(mac, device):
    library, error = new_or_error(device.newLibraryWithSource_options_error_, KERNEL, None)
    assert error is None
    function = new(library.newFunctionWithName_, "nothing")
    pipeline, error = new_or_error(device.newComputePipelineStateWithFunction_error_, function)
    assert error is None
    del library, function, pipeline
    assert {*mac.live()} <= KEPT


def test_nothing_is_released_if_nothing_was_made(mac, device):
    library, error = new_or_error(device.newLibraryWithSource_options_error_, "kernel", None)
    assert library is None
    assert error.domain() == "MTLLibraryErrorDomain"
    mac.memory = 0
    assert new(device.newBufferWithLength_options_, 4096, 0) is None


def test_failure_names_the_method(mac, device):
    with pytest.raises(DeviceError, match=r"^mps:0: newBufferWithLength_options_ failed: .*depythonifying") as caught:
        invoke("mps:0", new, device.newBufferWithLength_options_, -1, 0)
    assert caught.value.call == "newBufferWithLength_options_"
