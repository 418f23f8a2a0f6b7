"""forebay.mtia on emulated devices: memory, random numbers, graphs."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

import forebay
from forebay import mtia
from forebay.runtime.lifecycle.emulation import reset_kind


@pytest.fixture(autouse=True)
def two_devices():
    with forebay.emulate("mtia", count=2, memory="64MiB"):
        yield


def zeros_on(index=0, n=4):
    return forebay.zeros(n, dtype=np.uint8, device=f"mtia:{index}")


# Memory


def test_statistics_count_allocated_and_reserved_bytes():
    tensor = zeros_on(1, 3 << 20)
    stats = mtia.memory_stats(1)
    assert stats["dram"]["allocated_bytes"] == stats["dram"]["peak_bytes"] == 3 << 20
    assert stats["dram"]["reserved_bytes"] == 20 << 20
    assert (mtia.memory_allocated("mtia:1"), mtia.max_memory_allocated(1), mtia.memory_allocated(0)) == (
        3 << 20,
        3 << 20,
        0,
    )
    assert mtia.memory_stats(0)["dram"] == dict.fromkeys(stats["dram"], 0)
    del tensor
    assert (mtia.memory_allocated(1), mtia.max_memory_allocated(1)) == (0, 3 << 20)
    mtia.reset_peak_memory_stats(1)
    mtia.empty_cache()
    assert mtia.max_memory_allocated(1) == mtia.memory_stats(1)["dram"]["reserved_bytes"] == 0


def test_out_of_memory_observer_is_called_for_every_device():
    seen = []
    zeros_on(0)
    mtia.attach_out_of_memory_observer(lambda *arguments: seen.append(arguments))
    for index in (0, 1):  # the second device is opened afterwards
        with pytest.raises(forebay.OutOfMemory, match=r"MTIA out of memory\. Tried to allocate"):
            zeros_on(index, 100 << 20)
    assert [arguments[:3] for arguments in seen] == [(i, 100 << 20, 64 << 20) for i in (0, 1)]
    assert mtia.memory_stats(1)["dram"]["num_ooms"] == 1
    with pytest.raises(TypeError, match="observer must be callable, not int"):
        mtia.attach_out_of_memory_observer(3)


def test_out_of_memory_observer_is_removed_with_its_emulation():
    seen = []
    mtia.attach_out_of_memory_observer(lambda *arguments: seen.append(arguments))
    reset_kind("mtia")
    with pytest.raises(forebay.OutOfMemory):
        zeros_on(0, 100 << 20)
    assert seen == []


def test_history_records_allocations_until_it_is_stopped():
    mtia.init()
    mtia.record_memory_history()
    zeros_on(0, 1000)
    (trace, other) = mtia.snapshot()["device_traces"]
    assert [entry["action"] for entry in trace if entry["action"] in ("alloc", "free_requested")] == [
        "alloc",
        "free_requested",
    ]
    assert trace[0]["frames"][0]["filename"]
    assert other == []
    assert pickle.loads(pickle.dumps(mtia.snapshot(), 4))["segments"][0]["total_size"] == 2 << 20
    mtia.record_memory_history(None)
    zeros_on(0, 1000)
    assert mtia.snapshot()["device_traces"] == [[], []]


def test_history_keeps_max_entries_and_rejects_invalid_arguments():
    mtia.init()
    mtia.record_memory_history(max_entries=3)
    for _ in range(5):
        zeros_on(0, 1000)
    assert len(mtia.snapshot()["device_traces"][0]) == 3
    for arguments, error in (
        (("nonsense",), RuntimeError),
        (("all", "nonsense"), RuntimeError),
        (("all", "python", -1), ValueError),
        (("all", "python", "x"), TypeError),
        (("all", "python", 1.5), TypeError),
    ):
        with pytest.raises(error):
            mtia.record_memory_history(*arguments)
    mtia.record_memory_history("all", "cpp", 1 << 70)
    mtia.record_memory_history(None)


# Random numbers


def test_seeds_are_queued_until_the_first_use():
    mtia.manual_seed_all(3)
    mtia.manual_seed(5)
    assert not mtia.is_initialized()
    assert mtia.initial_seed() == 5
    assert mtia.get_rng_state(1).tolist()[0] == 3
    assert [generator.initial_seed() for generator in mtia.default_generators] == [5, 3]


def test_seed_functions_return_the_seed():
    mtia.init()
    assert mtia.seed() == mtia.initial_seed()
    seed = mtia.seed_all()
    assert [generator.initial_seed() for generator in mtia.default_generators] == [seed, seed]


def test_generator_states_resume_the_sequence():
    mtia.manual_seed_all(7)
    forebay.rand(10, device="mtia:1")
    state = mtia.get_rng_state("mtia:1")
    assert (state.dtype, list(state.shape)) == (np.uint8, [16])
    first = forebay.rand(10, device="mtia:1").tolist()
    mtia.set_rng_state(state, 1)
    assert forebay.rand(10, device="mtia:1").tolist() == first
    states = mtia.get_rng_state_all()
    mtia.seed_all()
    mtia.set_rng_state_all(states)
    assert [state.tolist() for state in mtia.get_rng_state_all()] == [state.tolist() for state in states]


@pytest.mark.parametrize("state", [3, None, "state", np.zeros(16), np.zeros(5, np.uint8)], ids=repr)
def test_set_rng_state_rejects_invalid_states(state):
    with pytest.raises((TypeError, RuntimeError)):
        mtia.set_rng_state(state)


def test_manual_seed_rejects_invalid_seeds():
    for wrong, error in (("x", ValueError), (None, TypeError), ([3], TypeError)):
        with pytest.raises(error):
            mtia.manual_seed(wrong)
        with pytest.raises(error):
            mtia.manual_seed_all(wrong)


# Graphs


def capture_and_replay(context, graph, tensor):
    with context(graph):
        tensor.fill_(7)
        assert mtia.is_current_stream_capturing()
    assert not mtia.is_current_stream_capturing()
    before = tensor.tolist()
    graph.replay()
    return before, tensor.tolist()


def test_graph_captures_the_current_stream():
    graph, tensor = mtia.MTIAGraph(), zeros_on()
    assert capture_and_replay(mtia.graph, graph, tensor) == ([0] * 4, [7] * 4)
    assert mtia.graph.default_capture_stream == mtia.default_stream()
    graph.reset()
    with pytest.raises(RuntimeError, match="Called MTIAGraph::pool"):
        graph.pool()


def test_graphs_share_a_pool_on_an_explicit_stream():
    pool, stream = mtia.graph_pool_handle(), mtia.Stream("mtia")
    graphs = [mtia.MTIAGraph() for _ in range(2)]
    for graph in graphs:
        values = capture_and_replay(lambda graph: mtia.graph(graph, pool, stream), graph, zeros_on())
        assert values == (
            [0] * 4,
            [7] * 4,
        )
    assert [graph.pool() for graph in graphs] == [pool] * 2
    assert mtia.current_stream() == mtia.default_stream()


def test_kept_graph_is_instantiated_explicitly():
    graph, tensor = mtia.MTIAGraph(keep_graph=True), zeros_on()
    graph.capture_begin((0, 0))
    tensor.fill_(7)
    graph.capture_end()
    graph.instantiate()
    graph.replay()
    assert tensor.tolist() == [7] * 4
    with pytest.raises(RuntimeError, match="already owns a captured graph"):
        graph.capture_begin((0, 0))


def test_default_stream_can_be_captured():
    graph, tensor = mtia.MTIAGraph(), zeros_on()
    graph.capture_begin((0, 0))
    assert mtia.is_current_stream_capturing()
    with mtia.stream(mtia.Stream()):
        assert not mtia.is_current_stream_capturing()
    tensor.fill_(7)
    graph.capture_end()
    assert not mtia.is_current_stream_capturing()


def test_default_capture_stream_is_the_first_current_stream(monkeypatch):
    """An explicit stream of the first graph does not change that."""
    monkeypatch.setattr(mtia.graph, "default_capture_stream", None)
    mtia.graph(mtia.MTIAGraph(), stream=mtia.Stream())
    with mtia.stream(mtia.Stream()):
        assert mtia.graph(mtia.MTIAGraph()).capture_stream == mtia.default_stream()


def test_exception_in_the_graph_context_ends_the_capture():
    graph = mtia.MTIAGraph()
    with pytest.raises(KeyError), pytest.warns(UserWarning, match="The MTIA Graph is empty"), mtia.graph(graph):
        raise KeyError("through")
    assert not mtia.is_current_stream_capturing()
    assert mtia.current_stream() == mtia.default_stream()


def test_invalid_captures_are_rejected():
    for wrong, error in ((None, AttributeError), (mtia.MTIAGraph, TypeError)):
        with pytest.raises(error), mtia.graph(wrong):
            pass
    with pytest.raises(TypeError, match="a memory pool must be"):
        mtia.MTIAGraph().capture_begin("pool")
    with pytest.raises(RuntimeError, match=r"capture_end\(\) called before capture_begin\(\)"):
        mtia.MTIAGraph().capture_end()
    assert mtia.current_stream() == mtia.default_stream()
