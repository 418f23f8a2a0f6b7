"""A device to capture on, and a stream that is current there. The tests share `graph_scenes`."""

from __future__ import annotations

import gc

import pytest

import forebay
from forebay.runtime.base import capture_state


@pytest.fixture(params=["host", "cuda"])
def place(request):
    """The host's device, and one whose memory the host cannot read."""
    if request.param == "host":
        yield forebay.Device("host", 0)
    else:
        with forebay.emulate("cuda", count=2, profile="h200", memory=64 << 20):
            yield forebay.Device("cuda", 0)
    assert capture_state.under_way == ()


@pytest.fixture(autouse=True)
def clean():
    """The host device holds no more afterwards than before."""
    held = forebay.memory.memory_allocated("host:0")
    yield
    gc.collect()
    forebay.synchronize("host:0")
    assert forebay.memory.memory_allocated("host:0") <= held


@pytest.fixture
def stream(place):
    with forebay.use_device(place), forebay.Stream(place) as stream:
        yield stream
        stream.synchronize()
