"""Tests of runtime graphs on devices whose queues have the ability Captures: capture, replay, memory, errors."""

from __future__ import annotations

import gc
from collections.abc import Callable

import pytest

import forebay
from forebay import DeviceError, Stream, Tensor
from forebay import memory as mem
from forebay._base.device_spec import Device
from forebay.runtime.graphs.graph import Graph
from forebay.spi import Captures, Launches, RandomNumbers
from forebay.testing.conformance.helpers import MIB, needs, needs_memory

__all__ = [
    "test_captured_tensor_work_does_not_run",
    "test_each_replay_draws_new_random_numbers",
    "test_failed_capture_leaves_stream_usable",
    "test_graph_owns_its_memory_until_deleted",
    "test_graph_replays_on_any_stream",
    "test_invalid_replay_and_capture_raise",
    "test_replay_reads_current_inputs",
    "test_streams_fork_and_join_in_capture",
    "test_synchronization_during_capture_raises",
]


def _capture(device: Device, work: Callable[[], object]) -> Graph:
    """Return a graph of the work, captured on a new stream."""
    graph = Graph()
    with Stream(device):
        graph.capture_begin()
        work()
        graph.capture_end()
    return graph


def _filled(device: Device, value: int) -> Tensor:
    """Return a tensor of bytes, which queues of every backend can fill."""
    return forebay.empty(8, dtype="uint8", device=device).fill_(value)


def _synchronize(device: Device) -> None:
    """Complete the work of the default stream, on which the inputs of the captures are created."""
    forebay.synchronize(device)


@needs(Captures)
@needs_memory
def test_captured_tensor_work_does_not_run(device: Device) -> None:
    numbers = _filled(device, 1)
    _synchronize(device)
    graph = _capture(device, lambda: numbers.fill_(7))
    assert numbers.tolist() == [1] * 8
    for _ in range(2):
        numbers.fill_(2)
        graph.replay()
        assert numbers.tolist() == [7] * 8


@needs(Captures)
@needs_memory
def test_replay_reads_current_inputs(device: Device) -> None:
    source, target = _filled(device, 0), _filled(device, 0)
    _synchronize(device)
    graph = _capture(device, lambda: target.copy_(source))
    for value in (3, 4):
        source.fill_(value)
        graph.replay()
        assert target.tolist() == [value] * 8


@needs(Captures)
@needs_memory
def test_graph_replays_on_any_stream(device: Device) -> None:
    numbers = _filled(device, 0)
    _synchronize(device)
    graph = _capture(device, lambda: numbers.fill_(9))
    with Stream(device) as stream:
        graph.replay()
        stream.synchronize()
    assert numbers.tolist() == [9] * 8


@needs(Captures)
@needs_memory
def test_streams_fork_and_join_in_capture(device: Device) -> None:
    one, other, graph = _filled(device, 0), _filled(device, 0), Graph()
    _synchronize(device)
    side = Stream(device)
    with Stream(device) as stream:
        graph.capture_begin()
        one.fill_(5)
        side.wait_stream(stream)
        with side:
            other.copy_(one)
        stream.wait_stream(side)
        graph.capture_end()
    graph.replay()
    assert other.tolist() == [5] * 8


@needs(Captures, RandomNumbers)
@needs_memory
def test_each_replay_draws_new_random_numbers(device: Device) -> None:
    eager = forebay.Generator(device).manual_seed(3)
    expected = [forebay.rand(4, device=device, generator=eager).tolist() for _ in range(2)]
    drawn, generator = forebay.empty(4, device=device), forebay.Generator(device).manual_seed(3)
    _synchronize(device)
    graph = _capture(device, lambda: drawn.uniform_(generator=generator))
    found = []
    for _ in range(2):
        graph.replay()
        found.append(drawn.tolist())
    assert found == expected
    assert generator.get_offset() == eager.get_offset()


@needs(Captures)
@needs_memory
def test_graph_owns_its_memory_until_deleted(device: Device) -> None:
    mem.empty_cache(device)
    reserved, tensors = mem.memory_reserved(device), []
    graph = _capture(device, lambda: tensors.append(forebay.empty(MIB, dtype="uint8", device=device).fill_(6)))
    graph.replay()
    assert tensors[0][:3].tolist() == [6] * 3
    tensors.clear()
    mem.empty_cache(device)
    assert mem.memory_reserved(device) > reserved
    del graph
    gc.collect()
    mem.empty_cache(device)
    assert mem.memory_reserved(device) == reserved


@needs(Captures)
@pytest.mark.parametrize(
    "forbidden", [Stream.synchronize, Stream.query, lambda stream: forebay.synchronize(stream.device)]
)
def test_synchronization_during_capture_raises(device: Device, forbidden: Callable[[Stream], object]) -> None:
    graph = Graph()
    with Stream(device) as stream:
        graph.capture_begin()
        with pytest.raises(DeviceError) as caught:
            forbidden(stream)
        assert caught.value.code == 900
        with pytest.raises(DeviceError):
            graph.capture_end()
        graph.reset()
        assert not stream.is_capturing()
        stream.synchronize()


@needs(Captures, Launches)
@needs_memory
def test_failed_capture_leaves_stream_usable(device: Device) -> None:
    numbers = _filled(device, 0)
    _synchronize(device)
    reserved = mem.memory_reserved(device)
    for _ in range(3):
        graph = Graph()
        with Stream(device) as stream:
            graph.capture_begin()
            tensor = forebay.empty(MIB, dtype="uint8", device=device)
            with pytest.raises(DeviceError):
                stream.synchronize()
            del tensor
            with pytest.raises(DeviceError):
                graph.capture_end()
            graph.reset()
            numbers.fill_(8)
            stream.synchronize()
        del graph
    mem.empty_cache(device)
    assert numbers.tolist() == [8] * 8
    assert mem.memory_reserved(device) <= reserved


@needs(Captures)
def test_invalid_replay_and_capture_raise(device: Device) -> None:
    with Stream(device), pytest.raises(RuntimeError):
        Graph().replay()
    with forebay.default_stream(device), pytest.raises(RuntimeError, match="non-default stream"):
        Graph().capture_begin()
