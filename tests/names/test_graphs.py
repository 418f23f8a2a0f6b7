"""Graph capture through forebay.cuda.graphs and forebay.accelerator.graphs."""

from __future__ import annotations

import gzip
import json
import pickle

import pytest

import forebay
from forebay import cuda
from forebay.accelerator.graphs import Graph as AcceleratorGraph
from forebay.cuda import graph_annotations, graphs
from forebay.errors import DeviceError


@pytest.fixture(autouse=True)
def emulation():
    with forebay.emulate("cuda", count=2, profile="h200", memory=64 << 20), forebay.use_device("cuda:0"):
        yield


def ones(*shape):
    return forebay.full(shape, 1.0, device="cuda")


def test_context_manager_captures():
    numbers, graph = forebay.zeros(3), cuda.CUDAGraph()
    with cuda.graph(graph):
        numbers.fill_(4)
        assert cuda.is_current_stream_capturing()
        assert cuda.CUDAGraph.get_currently_capturing_graph() is graph
    with pytest.raises(RuntimeError, match="The current stream is not currently capturing"):
        cuda.CUDAGraph.get_currently_capturing_graph()
    assert not cuda.is_current_stream_capturing()
    assert numbers.tolist() == [0] * 3
    graph.replay()
    assert numbers.tolist() == [4] * 3


def test_default_capture_stream_is_reused_while_its_device_exists():
    with cuda.graph(cuda.CUDAGraph()):
        ones(1)
    first = cuda.graph.default_capture_stream
    with cuda.graph(cuda.CUDAGraph()):
        ones(1)
    assert cuda.graph.default_capture_stream is first
    assert first.opened.unusable == ""  # not the stream of the previous test's emulation


def test_invalidated_capture_restores_the_stream():
    before, numbers = cuda.current_stream(), forebay.zeros(1)
    with (
        pytest.raises(DeviceError, match="CUDA error: operation failed due to a previous error"),
        cuda.graph(cuda.CUDAGraph()),
    ):
        cuda.synchronize()
    assert cuda.current_stream() == before
    numbers.fill_(1)
    assert numbers.tolist() == [1]


def test_failed_capture_begin_restores_the_stream():
    before = cuda.current_stream()
    with (
        pytest.raises(RuntimeError, match="Unknown capture error mode"),
        cuda.graph(cuda.CUDAGraph(), capture_error_mode="x"),
    ):
        pass
    assert cuda.current_stream() == before


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"key_by": "source"}, "sourceGraphNodeId"),
        ({"backend": "cupti"}, "backend='cupti' could not register CUPTI"),
        ({"record_py_stacks": True}, "record_py_stacks=True could not register CUPTI"),
    ],
)
def test_annotation_options_that_need_a_driver_profiler_are_rejected(config, message):
    with (
        pytest.raises(RuntimeError, match=message),
        cuda.graph(cuda.CUDAGraph(), enable_annotations=True, annotation_config=config),
    ):
        pass
    with cuda.graph(cuda.CUDAGraph(), annotation_config=config):  # annotations are disabled
        ones(1)


def test_annotations_are_removed_with_their_graph():
    graph, numbers = cuda.CUDAGraph(keep_graph=True), forebay.zeros(3)
    with cuda.graph(graph, enable_annotations=True):
        numbers.fill_(1)
        with graph_annotations.mark_kernels({"name": "outer", "of": 1}):
            numbers.fill_(2)
            with graph_annotations.mark_kernels("inner"):
                numbers.uniform_()
    assert dict(graph_annotations.get_kernel_annotations()) == {}
    destroyed = []
    with graphs.register_graph_destroy_hook(destroyed.append):
        graph.instantiate()
        graph.instantiate()
        nodes = graph.get_graph_data()["nodes"]
        found = graph_annotations.get_kernel_annotations()
        assert [found.get(node["tools_id"]) for node in nodes] == [
            None,
            [{"name": "outer", "of": 1}],
            [{"name": "inner", "of": 1}],
        ]
        assert len(found) == 2
        graph.reset()
    assert len(destroyed) == 1
    assert len(destroyed[0]) == 2
    assert dict(found) == {}


def test_annotation_scopes_outside_an_annotated_capture_record_nothing(tmp_path):
    with graph_annotations.mark_kernels("nothing"):
        ones(1)
    with cuda.graph(cuda.CUDAGraph()), graph_annotations.mark_kernels("disabled"):
        ones(1)
    assert dict(graph_annotations.get_kernel_annotations()) == {}
    with pytest.warns(FutureWarning, match="is deprecated"):
        graph_annotations.clear_kernel_annotations()
    graph_annotations.dump_kernel_py_stacks(str(tmp_path / "stacks"))
    assert json.loads(gzip.decompress((tmp_path / "stacks").read_bytes())) == {}
    assert graph_annotations.is_available()


def test_graphed_callable_replays_the_captured_work():
    calls, weights = [], ones(2)

    def work(source, options):
        calls.append(1)
        out = forebay.empty(2).copy_(source)
        return {"out": out, "both": (out, options["x"].clone())}

    graphed = cuda.make_graphed_callables(work, (forebay.zeros(2), {"x": weights}), num_warmup_iters=2)
    assert len(calls) == 3
    source = forebay.zeros(2)
    for number in (1, 2):
        source.fill_(number)
        result = graphed(source, {"x": weights})
        assert result["out"].tolist() == result["both"][0].tolist() == [number] * 2
        assert result["both"][1].tolist() == [1, 1]
    assert len(calls) == 3
    with pytest.raises(TypeError, match="captured with 2 tensor arguments, called with 1"):
        graphed(source)


def test_tuple_of_callables_shares_a_pool():
    first, second = cuda.make_graphed_callables(
        (lambda x: x.clone(), lambda x: forebay.empty(1).copy_(x)), ((ones(1),), (ones(1),))
    )
    assert first(forebay.zeros(1)).tolist() == [0]
    assert second(ones(1)).tolist() == [1]


@pytest.mark.parametrize("sample", [(3,), (ones, 3), ([3],)], ids=["an int", "a function", "a list"])
def test_sample_arguments_must_be_tensors(sample):
    with pytest.raises(AssertionError, match="sample_args for each callable must contain only Tensors"):
        cuda.make_graphed_callables(lambda x: x, sample)


def test_failing_callable_ends_the_capture():
    def work(_):
        raise KeyError("in work")

    with pytest.raises(KeyError), pytest.warns(UserWarning, match="empty"):
        cuda.make_graphed_callables(work, (ones(1),), num_warmup_iters=0)
    assert not cuda.is_current_stream_capturing()


def test_export_hooks_write_files(tmp_path):
    graph, numbers = cuda.CUDAGraph(), forebay.zeros(2)
    graph.register_capture_end_hook(cuda.export_dot(str(tmp_path / "dot")))
    graph.register_post_instantiate_hook(cuda.export_graph_data(str(tmp_path / "data")))
    with cuda.graph(graph):
        numbers.zero_()
    assert "fill 8 B" in (tmp_path / "dot").read_text()
    data = pickle.loads((tmp_path / "data").read_bytes())
    assert data["exec_graph_id"] == graph.raw_cuda_graph_exec()
    assert [node["node_type"] for node in data["nodes"]] == ["memset"]


def test_accelerator_graph_captures_and_replays():
    numbers, graph = forebay.zeros(2), AcceleratorGraph(pool=cuda.graph_pool_handle(), capture_error_mode="relaxed")
    with forebay.Stream("cuda:0"), graph:
        numbers.fill_(3)
    graph.replay()
    assert numbers.tolist() == [3, 3]
    assert graph.pool() == graph.graph_pool
    with (
        pytest.raises(RuntimeError, match="Expected `default`, `global`, `thread_local`, or `relaxed`, got x"),
        forebay.Stream(),
    ):
        AcceleratorGraph(capture_error_mode="x").capture_begin()
    graph = AcceleratorGraph(keep_graph=True)
    assert (graph.graph_pool, graph.capture_error_mode) == (None, "default")


def test_graph_replays_on_its_own_device():
    with cuda.device(1):
        numbers, graph = forebay.zeros(2, device="cuda:1"), cuda.CUDAGraph()
        with cuda.graph(graph, stream=cuda.Stream()):
            numbers.fill_(2)
    graph.replay()  # cuda:0 is current
    with cuda.device(1):
        cuda.synchronize()
        assert numbers.tolist() == [2, 2]


def test_register_generator_state_is_deprecated():
    with pytest.warns(UserWarning, match=r"register_generator_state\(\) is deprecated"):
        cuda.CUDAGraph().register_generator_state(forebay.Generator("cuda"))
