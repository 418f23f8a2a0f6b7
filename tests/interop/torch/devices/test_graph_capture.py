"""CUDA graphs of PyTorch programs."""

from __future__ import annotations

import copy

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed; test_with_torch.py runs this file")

from torch import nn  # noqa: E402 -- as above


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
