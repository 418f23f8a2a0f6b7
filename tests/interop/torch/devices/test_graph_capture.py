"""CUDA graphs of PyTorch programs."""

from __future__ import annotations

import copy
import warnings

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed; test_with_torch.py runs this file")

from torch import nn  # noqa: E402 -- as above

import forebay  # noqa: E402 -- as above
from forebay.interop.torch import patch  # noqa: E402 -- as above


def test_captured_work_runs_at_replay(emulated):
    x, total = torch.ones(4, device="cuda"), torch.zeros(4, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        assert torch.cuda.is_current_stream_capturing()
        y = x * 2
        total += y
    assert total.tolist() == [0] * 4
    for value in (5, 7):
        x.fill_(value)
        graph.replay()
    assert y.tolist() == [14] * 4
    assert total.tolist() == [24] * 4


def step(model, optimizer, x):
    optimizer.zero_grad(set_to_none=True)
    loss = model(x).square().mean()
    loss.backward()
    optimizer.step()
    return loss


def test_captured_training_step_is_the_eager_one(emulated):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 1)).cuda()
    twin = copy.deepcopy(model)
    optimizers = [torch.optim.Adam(each.parameters(), lr=0.01, capturable=True) for each in (model, twin)]
    x = torch.randn(4, 8, device="cuda")
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step(model, optimizers[0], x)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    optimizers[0].zero_grad(set_to_none=True)
    with torch.cuda.graph(graph):
        loss = step(model, optimizers[0], x)
    for _ in range(5):
        graph.replay()
    for _ in range(8):
        expected = step(twin, optimizers[1], x)
    assert loss.item() == expected.item()
    assert all(torch.equal(*pair) for pair in zip(model.parameters(), twin.parameters(), strict=True))


def test_each_replay_draws_new_numbers(emulated):
    x, graph = torch.empty(4, device="cuda"), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        x.uniform_()
        y = nn.functional.dropout(x.new_ones(64))
    drawn = []
    for _ in range(2):
        graph.replay()
        drawn.append((x.tolist(), y.tolist()))
    assert drawn[0][0] != drawn[1][0]
    assert drawn[0][1] != drawn[1][1]


def test_memory_of_a_graph_is_private_and_reused_within_it(emulated):
    x, graph = torch.ones(1 << 20, device="cuda"), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = x * 2
        address = y.data_ptr()
        y = y + 1
        z = y * 3
        assert z.data_ptr() == address  # the first product is free again
    pools = {segment["segment_pool_id"] for segment in torch.cuda.memory_snapshot()}
    assert graph.pool() in pools
    graph.replay()
    assert z[0].item() == 9


@pytest.mark.filterwarnings("ignore:The AccumulateGrad node.s stream does not match")  # as on a GPU
def test_graphed_callables(emulated):
    torch.manual_seed(0)
    module = nn.Linear(8, 8).cuda()
    twin = copy.deepcopy(module)
    graphed = torch.cuda.make_graphed_callables(module, (torch.randn(2, 8, device="cuda", requires_grad=True),))
    x = torch.randn(2, 8, device="cuda")
    graphed(x.requires_grad_()).sum().backward()
    twin(x).sum().backward()
    torch.testing.assert_close(module.weight.grad, twin.weight.grad)


WAITING = {
    "item": lambda x: x[0].item(),
    "a copy to the CPU": lambda x: torch.empty(4).pin_memory().copy_(x),
    "a copy from the CPU": lambda x: x.copy_(torch.zeros(4).pin_memory()),
    "nonzero": lambda x: x.nonzero(),
    "indices of the host": lambda x: x[torch.tensor([0, 1])],
    "a mask": lambda x: x[x > 0],
    "values at a mask": lambda x: x.index_put_((x > 0,), torch.ones(4, device="cuda")),
    "equal": lambda x: torch.equal(x, x),
    "repeat_interleave": lambda x: x.repeat_interleave(x.long()),
}
MODES = ["emulated", "shapes_only"]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", WAITING)
def test_what_waits_for_the_device_cannot_be_captured(request, mode, name):
    request.getfixturevalue(mode)
    x = torch.ones(4, device="cuda")
    with (
        pytest.raises(torch.AcceleratorError, match="during capture") as caught,
        torch.cuda.graph(torch.cuda.CUDAGraph()),
    ):
        WAITING[name](x)
    assert "operation not permitted when stream is capturing" in str(caught.value.__context__)
    assert (x + 1).sum() is not None


CAPTURED = {
    "indices": lambda x, pinned: x[torch.arange(2, device="cuda")],
    "a number at a mask": lambda x, pinned: x.index_put_((x > 0,), torch.tensor(3.0)),
    "a filled mask": lambda x, pinned: x.masked_fill(x > 0, 1),
    "a copy from pinned memory": lambda x, pinned: x.copy_(pinned, non_blocking=True),
    "repeats of a known number": lambda x, pinned: x.repeat_interleave(2),
    "random numbers": lambda x, pinned: torch.rand(4, device="cuda"),
    "a range": lambda x, pinned: torch.arange(3, device="cuda"),
    "a result that is resized": lambda x, pinned: torch.add(x, 1, out=torch.empty(0, device="cuda")),
}


@pytest.mark.filterwarnings("ignore:An output with one or more elements was resized")
@pytest.mark.parametrize("name", CAPTURED)
def test_captures_take_the_same_memory_without_values(name):
    peaks = []
    for mode in ("compute", "shapes"):
        with forebay.emulate("cuda", profile="h100"), patch(mode):
            x, pinned = torch.ones(4, device="cuda"), torch.zeros(4).pin_memory()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                kept = CAPTURED[name](x, pinned)
            for _ in range(2):
                graph.replay()
            peaks.append((kept.shape, torch.cuda.max_memory_allocated()))
    assert peaks[0] == peaks[1]


def test_a_captured_range_is_replayed(emulated):
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        numbers = torch.arange(3, device="cuda")
    graph.replay()
    assert numbers.tolist() == [0, 1, 2]


def test_waits_are_detected_in_the_debug_mode(emulated):
    x, pinned = torch.ones(2, device="cuda"), torch.ones(2).pin_memory()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.cuda.set_sync_debug_mode("error")
    try:
        for wait in (lambda: x.sum().item(), x.nonzero, lambda: x.copy_(pinned)):
            with pytest.raises(RuntimeError, match="called a synchronizing CUDA operation"):
                wait()
        x.copy_(pinned, non_blocking=True).mul_(2)
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_running_statistics_change_at_the_replay(emulated):
    layer = nn.BatchNorm2d(3, device="cuda")
    x = torch.full((2, 3, 4, 4), 10.0, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        layer(x)
    assert layer.running_mean.tolist() == [0] * 3
    graph.replay()
    assert layer.running_mean.tolist() == [1] * 3


def test_copies_of_unpinned_memory_are_refused_and_the_capture_goes_on(emulated):
    host, x = torch.ones(4), torch.zeros(4, device="cuda")
    graph, pinned = torch.cuda.CUDAGraph(), torch.ones(4).pin_memory()
    with torch.cuda.graph(graph):
        for call in (lambda: x.copy_(host), lambda: x.copy_(host, non_blocking=True), x.cpu):
            with pytest.raises(RuntimeError, match="during CUDA graph capture unless the CPU tensor is pinned"):
                call()
        x.copy_(pinned, non_blocking=True)
    graph.replay()
    assert x.tolist() == [1, 1, 1, 1]
