"""Fixtures for graph tests: a device to capture on and a current stream. Helpers are in `support.graph_scenes`."""

from __future__ import annotations

import gc

import pytest

import forebay
from forebay.runtime.base import capture_state


@pytest.fixture(params=["cpu", "cuda"])
def place(request):
    """The CPU device, and an emulated device whose memory the host cannot read."""
    if request.param == "cpu":
        yield forebay.device("cpu")
    else:
        with forebay.emulate("cuda", count=2, profile="h200", memory=64 << 20):
            yield forebay.device("cuda", 0)
    assert capture_state.active == ()


@pytest.fixture(autouse=True)
def clean():
    """Check that the test frees all memory of the CPU device."""
    before = forebay.memory.memory_allocated("cpu")
    yield
    gc.collect()
    forebay.synchronize("cpu")
    assert forebay.memory.memory_allocated("cpu") <= before


@pytest.fixture
def stream(place):
    with forebay.use_device(place), forebay.Stream(place) as stream:
        yield stream
        stream.synchronize()
