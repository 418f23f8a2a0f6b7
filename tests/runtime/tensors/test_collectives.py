"""Collective operations: results, stream order, and that the host does not block."""

from __future__ import annotations

import math
import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import forebay
from forebay import cuda
from forebay.cuda import comm, nccl

DEVICES = 3
OPS = {"sum": 0, "prod": 1, "max": 2, "min": 3, "avg": 4}
KINDS = ("float32", "float64", "float16", "bfloat16", "int8", "uint8", "int32", "int64")


@pytest.fixture
def devices():
    with forebay.emulate("cuda", count=DEVICES, memory=64 << 20):
        yield [f"cuda:{index}" for index in range(DEVICES)]


def spread(arrays):
    """Return one tensor per device, ready for work on any stream."""
    tensors = [forebay.tensor(array, device=f"cuda:{rank}") for rank, array in enumerate(arrays)]
    for tensor in tensors:
        forebay.synchronize(tensor.device)
    return tensors


def ranks_of(kind, length=6, ranks=DEVICES):
    numbers = np.arange(ranks * length).reshape(ranks, length) - ranks
    return list(numbers.astype(forebay._base.dtypes.as_dtype(kind)))


def exact(arrays, op):
    """Reduce with Python's numbers, without overflow or rounding."""
    columns = zip(*([each.item() for each in array] for array in arrays), strict=True)
    reductions = {
        "sum": sum,
        "prod": math.prod,
        "max": max,
        "min": min,
        "avg": lambda column: type(column[0])(sum(column) / len(column)),
    }
    return [reductions[op](column) for column in columns]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("op", OPS)
def test_all_reduce_combines_all_ranks(devices, kind, op):
    arrays = [np.abs(each).astype(each.dtype) % 5 for each in ranks_of("int64")]
    arrays = [each.astype(forebay._base.dtypes.as_dtype(kind)) for each in arrays]
    tensors = spread(arrays)
    nccl.all_reduce(tensors, op=OPS[op])
    expected = np.array(exact(arrays, op)).astype(arrays[0].dtype)
    for tensor in tensors:
        np.testing.assert_allclose(
            np.array(tensor.tolist(), "f8"),
            expected.astype("f8"),
            rtol={"float16": 1e-3, "bfloat16": 1e-2}.get(kind, 1e-6),
        )


@given(
    arrays=st.integers(1, DEVICES).flatmap(
        lambda ranks: st.lists(st.lists(st.integers(-128, 127), min_size=4, max_size=4), min_size=ranks, max_size=ranks)
    ),
    op=st.sampled_from(sorted(OPS)),
)
@settings(deadline=None, max_examples=60)
def test_integers_wrap_and_averages_round_towards_zero(arrays, op):
    with forebay.emulate("cuda", count=DEVICES, memory=64 << 20):
        tensors = spread([np.array(each, "i1") for each in arrays])
        nccl.all_reduce(tensors, op=OPS[op])
        found = [tensor.tolist() for tensor in tensors]
    columns = list(zip(*arrays, strict=True))
    wrapped = [np.array(sum(column)).astype("i1").item() for column in columns]
    reductions = {
        "sum": wrapped,
        "prod": [np.array(math.prod(column)).astype("i1").item() for column in columns],
        "max": [max(column) for column in columns],
        "min": [min(column) for column in columns],
        "avg": [int(total / len(arrays)) for total in wrapped],
    }
    assert found == [reductions[op]] * len(arrays)


@pytest.mark.parametrize(
    ("op", "expected"),
    [("sum", [1, 1, 0]), ("prod", [1, 0, 0]), ("max", [1, 1, 0]), ("min", [1, 0, 0]), ("avg", [1, 0, 0])],
)
def test_bools_are_reduced_as_bytes_and_stay_bools(devices, op, expected):
    tensors = spread([np.array([True, False, False]), np.array([True, True, False])])
    nccl.all_reduce(tensors, op=OPS[op])
    assert [tensor.view("uint8").tolist() for tensor in tensors] == [expected, expected]


def test_maximum_ignores_nan(devices):
    tensors = spread([np.array([np.nan, 1.0, np.nan]), np.array([2.0, np.nan, np.nan])])
    nccl.all_reduce(tensors, op=OPS["max"])
    np.testing.assert_array_equal(tensors[0].tolist(), [2.0, 1.0, np.nan])


def test_reduce_changes_only_the_output(devices):
    arrays = ranks_of("float32")
    tensors, output = spread(arrays), forebay.zeros(6, device="cuda:1")
    nccl.reduce(tensors, output, root=1)
    assert output.tolist() == sum(arrays).tolist()
    assert [tensor.tolist() for tensor in tensors] == [array.tolist() for array in arrays]
    nccl.reduce(tensors, root=2)
    assert tensors[2].tolist() == sum(arrays).tolist()
    assert tensors[0].tolist() == arrays[0].tolist()


def test_broadcast_copies_the_root_tensor(devices):
    tensors = spread(ranks_of("int64"))
    nccl.broadcast(tensors, root=1)
    assert [tensor.tolist() for tensor in tensors] == [ranks_of("int64")[1].tolist()] * DEVICES


def test_reduce_scatter_inverts_all_gather(devices):
    arrays = ranks_of("float32", length=DEVICES * 2)
    gathered = [forebay.zeros(DEVICES * 2 * DEVICES, device=device) for device in devices]
    nccl.all_gather(spread(arrays), gathered)
    assert [each.tolist() for each in gathered] == [np.concatenate(arrays).tolist()] * DEVICES
    parts = [forebay.zeros(2, device=device) for device in devices]
    nccl.reduce_scatter(spread(arrays), parts)
    assert np.concatenate([part.tolist() for part in parts]).tolist() == sum(arrays).tolist()


@pytest.mark.parametrize("size", [0, 1])
def test_empty_tensors_and_single_rank(devices, size):
    alone = [forebay.full((size,), 4.0, device="cuda:0")]
    out = [forebay.zeros(size, device="cuda:0")]
    nccl.all_reduce(alone, out, op=OPS["avg"])
    assert out[0].tolist() == [4.0] * size
    nccl.all_gather(alone, out)
    nccl.reduce_scatter(alone, out)
    nccl.broadcast(alone)
    assert out[0].tolist() == [4.0] * size


class HeldStream:
    """A stream whose work waits until `release` is called."""

    def __init__(self, device):
        self.stream = forebay.Stream(device)
        self._released, self.started = threading.Event(), threading.Event()
        self.stream.queue.call(self._wait)

    def _wait(self):
        self.started.set()
        assert self._released.wait(30)

    def release(self):
        self._released.set()


def test_operation_waits_for_all_ranks_without_blocking_host(devices):
    tensors, held = spread(ranks_of("float32")[:2]), HeldStream("cuda:1")
    other = forebay.Stream("cuda:0")
    try:
        nccl.all_reduce(tensors, streams=[other, held.stream])
        assert held.started.wait(30)
        assert not other.query()
        assert tensors[0].tolist() == ranks_of("float32")[0].tolist()  # the default stream is not blocked
    finally:
        held.release()
    other.synchronize()
    assert tensors[1].tolist() == sum(ranks_of("float32")[:2]).tolist()


def test_operation_blocks_all_ranks_until_done(devices):
    tensors = spread(ranks_of("float32")[:2])
    streams = [forebay.Stream(device) for device in devices[:2]]
    for stream in streams:
        stream.wait_stream(forebay.current_stream(stream.device))
    held = HeldStream("cuda:0")
    streams[0].wait_stream(held.stream)
    nccl.all_reduce(tensors, streams=streams)
    with streams[1]:
        after = tensors[1].clone()
    assert not streams[1].query()
    held.release()
    with streams[1]:
        assert after.tolist() == sum(ranks_of("float32")[:2]).tolist()


def test_memory_freed_during_operation_is_not_reused(devices):
    tensors, held = spread([np.full(1 << 18, rank + 1.0, "f4") for rank in range(2)]), HeldStream("cuda:1")
    other, out = forebay.Stream("cuda:0"), forebay.empty(1 << 18, device="cuda:1")
    nccl.reduce(tensors, out, root=1, streams=[other, held.stream])
    address = tensors[0].data_ptr()
    del tensors
    unrelated = forebay.full((1 << 18,), 9.0, device="cuda:0")
    assert unrelated.data_ptr() != address
    held.release()
    held.stream.synchronize()
    assert set(out.tolist()) == {3.0}


def test_stream_of_another_device_raises(devices):
    with pytest.raises(RuntimeError, match="the stream at index 0 is on cuda:1, but its tensor is on cuda:0"):
        nccl.all_reduce(spread(ranks_of("float32")[:1]), streams=[forebay.Stream("cuda:1")])


def test_invalid_operation_raises(devices):
    with pytest.raises(RuntimeError, match="NCCL Error 4: invalid argument"):
        nccl.all_reduce(spread(ranks_of("float32")), op=9)
    with pytest.raises(TypeError):
        nccl.all_reduce(spread(ranks_of("float32")), op="sum")


def test_communicators_must_cover_every_rank_in_order(devices):
    uid = nccl.unique_id()
    comms = [nccl.init_rank(2, uid, rank) for rank in range(2)]
    tensors = spread(ranks_of("float32")[:2])
    nccl.all_reduce(tensors, comms=comms)
    assert tensors[0].tolist() == sum(ranks_of("float32")[:2]).tolist()
    for wrong in (comms[::-1], [comms[0], nccl.init_rank(2, nccl.unique_id(), 1)]):
        with pytest.raises(forebay.Unsupported, match="every rank of a group"):
            nccl.all_reduce(tensors, comms=wrong)


@pytest.mark.parametrize(
    ("arguments", "error"),
    [((1, b"x", 0), ValueError), ((1, "x" * 128, 0), ValueError), ((0, b"x" * 128, 0), ValueError),
     ((1, b"x" * 128, 1), ValueError), (("1", b"x" * 128, 0), TypeError)],
    ids=["short id", "str id", "no ranks", "rank too large", "str count"],
)  # fmt: skip
def test_init_rank_rejects_invalid_arguments(arguments, error):
    with pytest.raises(error):
        nccl.init_rank(*arguments)


def test_reduce_add_returns_result_on_destination(devices):
    arrays = ranks_of("float32")
    assert comm.reduce_add(spread(arrays), 1).tolist() == sum(arrays).tolist()
    assert comm.reduce_add(spread(arrays), "cuda:2").device == forebay.device("cuda:2")


def test_reduce_add_converts_inputs_for_nccl(devices):
    here = forebay.tensor([[1.0, 2.0], [3.0, 4.0]], device="cuda:0")
    there = forebay.tensor([[10, 20], [30, 40]], device="cuda:0")
    found = comm.reduce_add([here, there.transpose(0, 1)])
    assert found.tolist() == [[11.0, 32.0], [23.0, 44.0]]


def test_coalesced_operations_handle_each_tensor(devices):
    groups = [
        [forebay.full((length,), rank + 1.0, device=device) for length in (2, 3)] for rank, device in enumerate(devices)
    ]
    assert [each.tolist() for each in comm.reduce_add_coalesced(groups)] == [[6.0] * 2, [6.0] * 3]
    copies = comm.broadcast_coalesced(groups[0], devices)
    assert [[str(each.device) for each in group] for group in copies] == [[device] * 2 for device in devices]
    assert copies[0][0] is groups[0][0]
    with pytest.raises(RuntimeError, match="at least one device"):
        comm.broadcast_coalesced(groups[0], [])


def test_graph_replays_collective_with_current_inputs(devices):
    tensors, graph = [forebay.full((2,), 1.0, device="cuda:0")], cuda.CUDAGraph()
    out = forebay.zeros(2, device="cuda:0")
    forebay.synchronize("cuda:0")
    with cuda.graph(graph):
        nccl.all_reduce(tensors, [out])
    tensors[0].fill_(5.0)
    assert out.tolist() == [0.0] * 2
    graph.replay()
    assert out.tolist() == [5.0] * 2
