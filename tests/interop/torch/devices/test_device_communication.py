"""DataParallel and torch.cuda.comm between emulated devices."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed; test_with_torch.py runs this file")

from torch.cuda import comm  # noqa: E402 -- as above


def test_data_parallel_is_the_module(emulated):
    torch.manual_seed(0)
    module = torch.nn.Linear(4, 3).cuda()
    x = torch.randn(6, 4, device="cuda")
    expected = module(x)
    expected.sum().backward()
    gradient, module.weight.grad = module.weight.grad, None
    result = torch.nn.DataParallel(module)(x)
    result.sum().backward()
    assert result.device.index == 0
    assert torch.allclose(result, expected)
    assert torch.allclose(module.weight.grad, gradient)


def test_functions_of_comm(emulated):
    x = torch.arange(6.0, device="cuda")
    copies = comm.broadcast(x, [0, 1])
    assert [each.device.index for each in copies] == [0, 1]
    assert copies[1].tolist() == x.tolist()
    parts = comm.scatter(x, [0, 1], chunk_sizes=[2, 4])
    assert [each.tolist() for each in parts] == [[0, 1], [2, 3, 4, 5]]
    assert parts[1].device.index == 1
    assert comm.gather(parts, destination=1).device.index == 1
    assert comm.gather(parts).tolist() == x.tolist()
    assert comm.reduce_add([x, x.to("cuda:1")]).tolist() == [0, 2, 4, 6, 8, 10]
