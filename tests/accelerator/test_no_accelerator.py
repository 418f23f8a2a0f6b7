"""forebay.accelerator on a machine without an accelerator, against PyTorch 2.13's CPU build."""

from __future__ import annotations

import re

import pytest

import forebay
from forebay import accelerator
from forebay._base.device_spec import NO_ACCELERATOR

CALLS = {
    "current_device_index": accelerator.current_device_index,
    "set_device_index": lambda: accelerator.set_device_index(0),
    "device_index": lambda: accelerator.device_index(0).__enter__(),
    "current_stream": accelerator.current_stream,
    "current_stream with an index": lambda: accelerator.current_stream(0),
    "set_stream": lambda: accelerator.set_stream(forebay.Stream()),
    "synchronize": accelerator.synchronize,
    "synchronize with an index": lambda: accelerator.synchronize(0),
    "empty_cache": accelerator.empty_cache,
    "empty_host_cache": accelerator.empty_host_cache,
    "memory_stats": accelerator.memory_stats,
    "memory_allocated": accelerator.memory_allocated,
    "memory_allocated with an index": lambda: accelerator.memory_allocated(0),
    "max_memory_allocated": accelerator.max_memory_allocated,
    "memory_reserved": accelerator.memory_reserved,
    "max_memory_reserved": accelerator.max_memory_reserved,
    "reset_peak_memory_stats": accelerator.reset_peak_memory_stats,
    "reset_accumulated_memory_stats": accelerator.reset_accumulated_memory_stats,
    "get_memory_info": accelerator.get_memory_info,
    "get_device_capability": accelerator.get_device_capability,
    "get_device_capability with an index": lambda: accelerator.get_device_capability(0),
    "synchronize with a negative index": lambda: accelerator.synchronize(-1),
    "Graph": accelerator.Graph,
    "random.get_rng_state": accelerator.random.get_rng_state,
    "Tensor.pin_memory": lambda: forebay.empty(2).pin_memory(),
    "device": lambda: forebay.device(0),
    "empty": lambda: forebay.empty(1, device=0),
}


@pytest.mark.parametrize("name", CALLS)
def test_functions_raise_pytorchs_error(name):
    with pytest.raises(RuntimeError, match=f"^{re.escape(NO_ACCELERATOR)}$"):
        CALLS[name]()


def test_queries_report_no_accelerator():
    assert accelerator.is_available() is False
    assert accelerator.current_accelerator() is None
    assert accelerator.current_accelerator(check_available=True) is None
    assert accelerator.device_count() == 0


@pytest.mark.parametrize(
    "call",
    [accelerator.set_device_index, accelerator.synchronize, accelerator.current_stream, accelerator.get_memory_info],
)
def test_cpu_is_no_accelerator(call):
    with pytest.raises(RuntimeError, match=r"^Accelerator expected$"):
        call("cpu")


@pytest.mark.parametrize("call", [accelerator.current_stream, accelerator.get_memory_info, accelerator.synchronize])
def test_invalid_strings_are_refused_first(call):
    with pytest.raises(RuntimeError, match=r"^Expected one of cpu, cuda"):
        call("abc")


@pytest.mark.parametrize("device", [None, 1.5])
def test_set_device_index_needs_an_index(device):
    with pytest.raises(ValueError, match=rf"^Expected a torch.device with a specified index .* got:{device}$"):
        accelerator.set_device_index(device)


def test_set_stream_checks_the_type_first():
    with pytest.raises(TypeError):
        accelerator.set_stream(3)


def test_negative_and_missing_indices_change_nothing():
    assert accelerator.set_device_index(-1) is None
    with accelerator.device_index(None):
        assert forebay.current_device() == forebay.device("cpu")


def test_pinned_factories_need_an_accelerator():
    with pytest.raises(RuntimeError, match=r"^pin_memory=True requires a CUDA or other accelerator backend"):
        forebay.empty(2, pin_memory=True)
    assert forebay.empty(2).is_pinned() is False


def test_streams_and_events_use_the_cpu():
    assert forebay.Stream().device == forebay.device("cpu")
    event = forebay.Event()
    event.record()
    assert event.device == forebay.device("cpu")
