"""Captured copies between a device and pinned memory."""

from __future__ import annotations

import gc

import numpy as np
import pytest
from support.graph_scenes import error_codes

import forebay
from forebay import cuda


@pytest.fixture(autouse=True)
def device():
    with forebay.emulate("cuda"):
        yield


@pytest.fixture
def graph():
    return cuda.CUDAGraph()


def pinned(values, dtype=forebay.float32):
    return forebay.tensor(values, dtype=dtype, pin_memory=True)


def test_replay_reads_and_writes_pinned_memory(graph):
    given, on_device, result = pinned([0.0, 0.0]), forebay.zeros(2, device="cuda"), pinned([0.0, 0.0])
    with cuda.graph(graph):
        on_device.copy_(given, non_blocking=True)
        result.copy_(on_device, non_blocking=True)
    assert [node.op for node in graph.work] == ["copy", "copy"]
    assert result.tolist() == [0, 0]
    for number in range(3):
        given.fill_(number)  # queued on the CPU; PyTorch would have done it
        graph.replay()
        cuda.synchronize()
        assert result.tolist() == [number, number]


def test_captured_copies_convert(graph):
    given, on_device = pinned([1.5, 2.5]), forebay.zeros(2, dtype=forebay.int32, device="cuda")
    with cuda.graph(graph):
        on_device.copy_(given, non_blocking=True)
        result = on_device.to("cpu", forebay.float64, non_blocking=True)
    graph.replay()
    cuda.synchronize()
    assert (result.dtype, result.tolist()) == (forebay.float64, [1, 2])


def test_graph_keeps_pinned_memory(graph):
    given, on_device = pinned([7.0]), forebay.zeros(1, device="cuda")
    with cuda.graph(graph):
        on_device.copy_(given, non_blocking=True)
    address = given.data_ptr()
    del given
    gc.collect()
    assert pinned([0.0]).data_ptr() != address
    graph.replay()
    assert on_device.tolist() == [7]


def test_graph_in_a_capture_waits_for_the_cpu(graph):
    given, on_device, outer = pinned([0.0]), forebay.zeros(1, device="cuda"), cuda.CUDAGraph()
    with cuda.graph(graph):
        on_device.copy_(given, non_blocking=True)
    with cuda.graph(outer):
        graph.replay()
    given.fill_(5)
    outer.replay()
    assert on_device.tolist() == [5]


@pytest.mark.parametrize("call", ["to device", "to host", "item", "float"])
def test_blocking_call_breaks_the_capture(graph, call):
    host, on_device = pinned([0.0]), forebay.zeros(1, device="cuda")
    calls = {
        "to device": lambda: on_device.copy_(host),
        "to host": lambda: host.copy_(on_device),
        "item": on_device.item,
        "float": lambda: float(forebay.zeros((), device="cuda")),
    }
    with cuda.stream(cuda.Stream()):
        graph.capture_begin()
        assert error_codes(graph, calls[call]) == [900, 901]


def test_unpinned_copy_leaves_the_capture_intact(graph):
    host, on_device = forebay.zeros(1), forebay.zeros(1, device="cuda")
    with cuda.graph(graph):
        with pytest.raises(RuntimeError, match="unless the CPU tensor is pinned"):
            on_device.copy_(host, non_blocking=True)
        with pytest.raises(RuntimeError, match="unless the CPU tensor is pinned"):
            on_device.copy_(np.zeros(1), non_blocking=True)
        on_device.fill_(3)
    graph.replay()
    assert on_device.tolist() == [3]
