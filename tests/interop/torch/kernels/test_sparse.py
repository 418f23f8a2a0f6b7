"""Sparse tensors of emulated devices."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed; test_with_torch.py runs this file")

from forebay.interop.torch.devices.values import DataDependent  # noqa: E402 -- needs torch
from forebay.interop.torch.processes import assumed_values  # noqa: E402 -- needs torch

pytestmark = pytest.mark.filterwarnings("ignore:Sparse .* tensor support is in beta state")


def coo(device):
    indices = torch.tensor([[0, 1, 1], [1, 0, 0]], device=device)
    return torch.sparse_coo_tensor(
        indices, torch.tensor([1.0, 2.0, 3.0], device=device), (2, 2), check_invariants=False
    )


def matrix(layout, device):
    """Return a sparse matrix with another layout, whose values are on the device."""
    options = {"blocksize": (2, 2)} if layout in ("bsr", "bsc") else {}
    dense = torch.tensor([[1.0, 0, 0, 2], [0, 3, 0, 0], [0, 0, 0, 0], [4, 0, 0, 5]])
    return getattr(dense, f"to_sparse_{layout}" if layout != "coo" else "to_sparse")(**options).to(device)


LAYOUTS = ["coo", "csr", "csc", "bsr", "bsc"]
OPERATIONS = {
    "to_dense": lambda s: s.to_dense(),
    "coalesce": lambda s: s.coalesce(),
    "sum": lambda s: s + s,
    "product": lambda s: s @ torch.ones(2, 3, device=s.device),
    "scaled": lambda s: s * 2,
    "transposed": lambda s: s.t(),
    "from dense": lambda s: torch.eye(2, device=s.device).to_sparse(),
    "total": torch.sparse.sum,
    "joined": lambda s: torch.cat([s, s]),
    "result of a sum": lambda s: torch.add(s, s, out=torch.zeros(2, 2, device=s.device).to_sparse()),
    "result of a product": lambda s: torch.mm(
        s, torch.ones(2, 3, device=s.device), out=torch.empty(0, device=s.device)
    ),
    "added to dense": lambda s: torch.ones(2, 2, device=s.device).add_(s),
    "by rows": lambda s: s.coalesce().to_sparse_csr(),
}
# Of compressed rows, which have most operators.
OPERATIONS_BY_ROWS = {
    "product": lambda s: s @ torch.ones(4, 3, device=s.device),
    "product with a vector": lambda s: s @ torch.ones(4, device=s.device),
    "sum": lambda s: s + s,
    "scaled": lambda s: s * 2,
    "negated": lambda s: s.clone().neg_(),
    "total": lambda s: s.sum(),
    "row": lambda s: s[3],
    "coordinates": lambda s: s.to_sparse(),
    "affine": lambda s: torch.addmm(torch.ones(4, 2, device=s.device), s, torch.ones(4, 2, device=s.device)),
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_operators_are_those_of_the_cpu(emulated, name):
    made, expected = OPERATIONS[name](coo("cuda")), OPERATIONS[name](coo("cpu"))
    assert made.is_cuda
    assert made.layout == expected.layout
    assert torch.equal(made.cpu().to_dense(), expected.to_dense())


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_is_moved_and_becomes_dense(emulated, layout):
    made, expected = matrix(layout, "cuda"), matrix(layout, "cpu")
    assert (made.device, made.layout, made.shape) == (torch.device("cuda:0"), expected.layout, expected.shape)
    assert torch.equal(made.to_dense().cpu(), expected.to_dense())
    for moved in (made.to("cuda:1"), made.cpu(), made.clone()):
        assert torch.equal(moved.to_dense().cpu(), expected.to_dense())


@pytest.mark.parametrize("name", OPERATIONS_BY_ROWS)
def test_operators_of_compressed_rows_are_those_of_the_cpu(emulated, name):
    made, expected = (OPERATIONS_BY_ROWS[name](matrix("csr", device)) for device in ("cuda", "cpu"))
    assert made.is_cuda
    assert made.layout == expected.layout
    assert torch.equal(made.cpu().to_dense(), expected.to_dense())


def test_compressed_rows_of_the_device_have_gradients(emulated):
    rows, columns = torch.tensor([0, 1, 2], device="cuda"), torch.tensor([1, 0], device="cuda")
    s = torch.sparse_csr_tensor(rows, columns, torch.tensor([2.0, 3.0], device="cuda"), (2, 2), check_invariants=False)
    dense = torch.ones(2, 3, device="cuda", requires_grad=True)
    (s @ dense).sum().backward()
    assert dense.grad.tolist() == [[3] * 3, [2] * 3]


def test_written_tensors_keep_their_memory(emulated):
    s = coo("cuda").coalesce()
    address, before = s.values().data_ptr(), torch.cuda.memory_allocated()
    s.neg_()
    assert (s.values().data_ptr(), torch.cuda.memory_allocated()) == (address, before)
    assert s.to_dense().tolist() == [[0, -1], [-5, 0]]
    assert coo("cuda").mul_(2).to_dense().tolist() == [[0, 2], [10, 0]]  # gets new memory, also on the CPU


def test_tensors_of_two_devices_do_not_mix(emulated):
    for other in (coo("cpu"), coo("cuda:1")):
        with pytest.raises(RuntimeError, match="Expected all tensors to be on the same device"):
            coo("cuda:0") + other
    target = coo("cpu")
    assert torch.equal(target.copy_(coo("cuda")).to_dense(), coo("cpu").to_dense())


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


@pytest.mark.parametrize("mode", ["emulated", "shapes_only"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_memory_of_indices_and_elements_is_counted(request, mode, layout):
    request.getfixturevalue(mode)
    s = matrix(layout, "cuda")
    assert torch.cuda.memory_allocated() == 512 * (2 if layout == "coo" else 3)
    del s
    assert torch.cuda.memory_allocated() == 0


@pytest.mark.parametrize("layout", LAYOUTS)
def test_shapes_are_known_without_values(shapes_only, layout):
    s = matrix(layout, "cuda")
    assert (s.to_dense().shape, s.clone().layout) == (torch.Size([4, 4]), s.layout)
    assert (s @ torch.ones(4, 3, device="cuda")).shape == (4, 3)


def test_sparse_operators_need_values(shapes_only):
    with pytest.raises(DataDependent, match=r"the sparse operator add\(\) needs the values"):
        coo("cuda") + coo("cuda")


def test_unknown_indices_are_assumed_to_differ(with_assumptions):
    indices = torch.empty(2, 100, dtype=torch.long, device="cuda")
    given = torch.sparse_coo_tensor(indices, torch.empty(100, 3, device="cuda"), (50, 50, 3), check_invariants=False)
    before = torch.cuda.memory_allocated()
    made = given.coalesce()
    assert made.is_coalesced()
    assert (made._nnz(), made.shape, made.dtype) == (100, given.shape, torch.float32)
    assert torch.cuda.memory_allocated() - before == 2048 + 1536  # indices and elements
    assert any("100 of 100 indices differ (coalesce)" in str(each) for each in assumed_values.found())


@pytest.mark.filterwarnings("ignore:Sparse")
def test_product_has_the_most_elements_without_values(with_assumptions):
    indices = torch.randint(0, 50, (2, 12)).cuda()
    left = torch.sparse_coo_tensor(indices, torch.ones(12, device="cuda"), (50, 50)).coalesce()
    assert (left @ left).indices().shape == (2, 144)
    rows, columns = torch.arange(51, device="cuda") * 2, torch.zeros(100, dtype=torch.long, device="cuda")
    by_rows = torch.sparse_csr_tensor(rows, columns, torch.rand(100, device="cuda"), (50, 50))
    product = (by_rows @ by_rows).to_sparse_coo()
    assert product.is_coalesced()
    assert (product.indices().shape, product.values().shape) == ((2, 2500), (2500,))
    assert (product @ torch.rand(50, 4, device="cuda")).shape == (50, 4)
