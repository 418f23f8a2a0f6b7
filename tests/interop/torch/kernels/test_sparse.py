"""Sparse tensors of emulated devices."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed; test_with_torch.py runs this file")

from forebay.interop.torch.devices.values import DataDependent  # noqa: E402 -- needs torch


def coo(device):
    indices = torch.tensor([[0, 1, 1], [1, 0, 0]], device=device)
    return torch.sparse_coo_tensor(
        indices, torch.tensor([1.0, 2.0, 3.0], device=device), (2, 2), check_invariants=False
    )


OPERATIONS = {
    "to_dense": lambda s: s.to_dense(),
    "coalesce": lambda s: s.coalesce(),
    "sum": lambda s: s + s,
    "product": lambda s: s @ torch.ones(2, 3, device=s.device),
    "scaled": lambda s: s * 2,
    "transposed": lambda s: s.t(),
    "from dense": lambda s: torch.eye(2, device=s.device).to_sparse(),
    "total": torch.sparse.sum,
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_operators_are_those_of_the_cpu(emulated, name):
    made, expected = OPERATIONS[name](coo("cuda")), OPERATIONS[name](coo("cpu"))
    assert made.is_cuda
    assert made.layout == expected.layout
    assert torch.equal(made.cpu().to_dense() if made.is_sparse else made.cpu(), expected.to_dense())


def test_sparse_gradients_are_accumulated_and_applied(emulated):
    weights = []
    for device in ("cuda", "cpu"):
        torch.manual_seed(0)
        table = torch.nn.Embedding(5, 3, sparse=True).to(device)
        optimizer = torch.optim.SGD(table.parameters(), lr=0.1)
        for rows in ([1, 1], [1, 2]):
            table(torch.tensor(rows, device=device)).sum().backward()
        assert table.weight.grad.is_sparse
        assert table.weight.grad.device.type == device
        optimizer.step()
        weights.append(table.weight.detach().cpu())
    assert torch.equal(*weights)


def test_memory_of_indices_and_elements_is_counted(emulated):
    s = coo("cuda")
    assert torch.cuda.memory_allocated() == 1024
    del s
    assert torch.cuda.memory_allocated() == 0


def test_sparse_operators_need_values(shapes_only):
    with pytest.raises(DataDependent, match=r"the sparse operator _coalesce\(\) needs the values"):
        coo("cuda").coalesce()
