"""A device to capture on, and a stream that is current there. The tests share `graph_scenes`."""

from __future__ import annotations

import gc
import sys
from pathlib import Path

import pytest

import penstock
from penstock.runtime import capturing

sys.path.insert(0, str(Path(__file__).parent))  # importlib mode would not find it


@pytest.fixture(params=["host", "cuda"])
def place(request):
    """The host's device, and one whose memory the host cannot read."""
    if request.param == "host":
        yield penstock.Device("host", 0)
    else:
        with penstock.emulate("cuda", count=2, profile="h200", memory=64 << 20):
            yield penstock.Device("cuda", 0)
    assert capturing.under_way == ()


@pytest.fixture(autouse=True)
def clean():
    """The host device holds no more afterwards than before."""
    held = penstock.memory.memory_allocated("host:0")
    yield
    gc.collect()
    penstock.synchronize("host:0")
    assert penstock.memory.memory_allocated("host:0") <= held


@pytest.fixture
def stream(place):
    with penstock.use_device(place), penstock.Stream(place) as stream:
        yield stream
        stream.synchronize()
