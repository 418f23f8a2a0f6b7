"""Graphs of the runtime, on any kind of device whose queues can record: captured once, replayed, ended, gone wrong."""

from __future__ import annotations

import gc
from collections.abc import Callable

import pytest

import forebay
from forebay import Device, DeviceError, Stream, Tensor
from forebay import memory as mem
from forebay.runtime.graphs.graph import Graph
from forebay.spi import Captures, Launches, Randoms
from forebay.testing.conformance.scenes import MIB, needs, not_imaginary

__all__ = [
    "test_a_broken_capture_leaves_the_stream_usable",
    "test_a_graph_keeps_what_it_made_until_it_goes",
    "test_a_graph_replays_on_any_stream",
    "test_a_replay_reads_what_is_there_then",
    "test_each_replay_draws_new_numbers",
    "test_nothing_runs_while_it_is_captured",
    "test_streams_fork_and_join_in_a_capture",
    "test_what_a_capture_forbids",
    "test_what_is_no_graph_is_not_replayed",
]


def _captured(device: Device, work: Callable[[], object]) -> Graph:
    graph = Graph()
    with Stream(device):
        graph.capture_begin()
        work()
        graph.capture_end()
    return graph


def _filled(device: Device, value: int) -> Tensor:
    """Bytes, as every queue can fill them."""
    return forebay.empty(8, dtype="uint8", device=device).fill_(value)


def _ready(device: Device) -> None:
    """What was made on the default stream is there for those that capture."""
    forebay.synchronize(device)


@needs(Captures)
@not_imaginary
def test_nothing_runs_while_it_is_captured(device: Device) -> None:
    numbers = _filled(device, 1)
    _ready(device)
    graph = _captured(device, lambda: numbers.fill_(7))
    assert numbers.tolist() == [1] * 8
    for _ in range(2):
        numbers.fill_(2)
        graph.replay()
        assert numbers.tolist() == [7] * 8


@needs(Captures)
@not_imaginary
def test_a_replay_reads_what_is_there_then(device: Device) -> None:
    given, out = _filled(device, 0), _filled(device, 0)
    _ready(device)
    graph = _captured(device, lambda: out.copy_(given))
    for value in (3, 4):
        given.fill_(value)
        graph.replay()
        assert out.tolist() == [value] * 8


@needs(Captures)
@not_imaginary
def test_a_graph_replays_on_any_stream(device: Device) -> None:
    numbers = _filled(device, 0)
    _ready(device)
    graph = _captured(device, lambda: numbers.fill_(9))
    with Stream(device) as stream:
        graph.replay()
        stream.synchronize()
    assert numbers.tolist() == [9] * 8


@needs(Captures)
@not_imaginary
def test_streams_fork_and_join_in_a_capture(device: Device) -> None:
    one, other, graph = _filled(device, 0), _filled(device, 0), Graph()
    _ready(device)
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


@needs(Captures, Randoms)
@not_imaginary
def test_each_replay_draws_new_numbers(device: Device) -> None:
    eager = forebay.Generator(device).manual_seed(3)
    expected = [forebay.rand(4, device=device, generator=eager).tolist() for _ in range(2)]
    drawn, generator = forebay.empty(4, device=device), forebay.Generator(device).manual_seed(3)
    _ready(device)
    graph = _captured(device, lambda: drawn.uniform_(generator=generator))
    found = []
    for _ in range(2):
        graph.replay()
        found.append(drawn.tolist())
    assert found == expected
    assert generator.get_offset() == eager.get_offset()


@needs(Captures)
@not_imaginary
def test_a_graph_keeps_what_it_made_until_it_goes(device: Device) -> None:
    mem.empty_cache(device)
    reserved, made = mem.memory_reserved(device), []
    graph = _captured(device, lambda: made.append(forebay.empty(MIB, dtype="uint8", device=device).fill_(6)))
    graph.replay()
    assert made[0][:3].tolist() == [6] * 3
    made.clear()
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
def test_what_a_capture_forbids(device: Device, forbidden: Callable[[Stream], object]) -> None:
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
@not_imaginary
def test_a_broken_capture_leaves_the_stream_usable(device: Device) -> None:
    numbers = _filled(device, 0)
    _ready(device)
    reserved = mem.memory_reserved(device)
    for _ in range(3):
        graph = Graph()
        with Stream(device) as stream:
            graph.capture_begin()
            kept = forebay.empty(MIB, dtype="uint8", device=device)
            with pytest.raises(DeviceError):
                stream.synchronize()
            del kept
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
def test_what_is_no_graph_is_not_replayed(device: Device) -> None:
    with Stream(device), pytest.raises(RuntimeError):
        Graph().replay()
    with forebay.default_stream(device), pytest.raises(RuntimeError, match="non-default stream"):
        Graph().capture_begin()
