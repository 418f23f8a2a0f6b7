"""Pinned tensors: when their memory is pinned and released. Their spellings are in names/scenes/tensor_arguments.py."""

from __future__ import annotations

import gc
import threading

import numpy as np
import pytest

import forebay
from forebay.runtime.devices import open_device, retired_devices

pytestmark = pytest.mark.usefixtures("clean")


@pytest.fixture
def remaining_ports():
    """Return a function that lists the ports of emulations that ended during the test and are still open."""
    earlier = retired_devices.remaining()

    def listed():
        return [opened.port for opened in retired_devices.remaining() if opened not in earlier]

    return listed


def test_pinning_does_not_initialise_the_accelerator():
    with forebay.emulate("cuda"):
        made = forebay.ones(3).pin_memory()
        assert made.is_pinned()
        assert not forebay.cuda.is_initialized()
        assert open_device.get_open_device(forebay.device("cuda:0")) is None
        forebay.empty(1, device="cuda")
        assert open_device.open_device(forebay.device("cuda:0")).pinned.in_use()
        assert forebay.cuda.host_memory_stats()["num_host_alloc"] == 1


@pytest.mark.parametrize("opens", [False, True])
def test_pinned_tensor_outlives_its_emulation(opens, remaining_ports):
    with forebay.emulate("cuda"):
        made = forebay.tensor([1.0, 2.0], pin_memory=True)
        if opens:
            forebay.empty(1, device="cuda")
    assert made.tolist() == [1, 2]
    made.fill_(3)
    assert made.tolist() == [3, 3]
    assert len(remaining_ports()) == 1
    del made
    gc.collect()
    retired_devices.close_unused()  # marks the use by the CPU's queue
    forebay.synchronize("cpu")
    retired_devices.close_unused()
    assert remaining_ports() == []


def test_queued_copy_to_pinned_memory_outlives_the_emulation(remaining_ports):
    gate = threading.Event()
    with forebay.emulate("cuda"):
        source = forebay.tensor(np.arange(1000.0))
        forebay.synchronize("cpu")
        made = source.pin_memory()
        forebay.current_stream("cpu").queue.call(lambda: gate.wait(60))
        made.copy_(source, non_blocking=True)
        del made
    assert len(remaining_ports()) == 1  # the CPU's queue writes to the memory
    gate.set()
    forebay.synchronize("cpu")
    retired_devices.close_unused()
    forebay.synchronize("cpu")
    retired_devices.close_unused()
    assert remaining_ports() == []


def test_unused_pinned_memory_ends_with_the_emulation(remaining_ports):
    with forebay.emulate("cuda"):
        forebay.ones(3).pin_memory()
        forebay.synchronize("cpu")
        gc.collect()
    assert remaining_ports() == []
