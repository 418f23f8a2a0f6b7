"""Operators that `torch.use_deterministic_algorithms` refuses."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed; test_with_torch.py runs this file")

from torch.nn import functional  # noqa: E402 -- after PyTorch, without which the file is skipped


def leaf(*shape):
    return torch.ones(*shape, device="cuda", requires_grad=True)


REFUSED = {
    "adaptive_avg_pool2d_backward_cuda": lambda: functional.adaptive_avg_pool2d(leaf(1, 1, 8, 8), 3).sum().backward(),
    "max_pool3d_with_indices_backward_cuda": lambda: functional.max_pool3d(leaf(1, 1, 4, 4, 4), 2).sum().backward(),
    "upsample_linear1d_backward_out_cuda": (
        lambda: functional.interpolate(leaf(1, 1, 8), 12, mode="linear").sum().backward()
    ),
    "nll_loss2d_forward_out_cuda_template": (
        lambda: functional.nll_loss(leaf(2, 3, 4, 4), torch.zeros(2, 4, 4, dtype=torch.int64, device="cuda"))
    ),
    "embedding_bag_backward_cuda_max": lambda: (
        functional.embedding_bag(torch.zeros(2, 2, dtype=torch.int64, device="cuda"), leaf(4, 3), mode="max")
        .sum()
        .backward()
    ),
    "median CUDA with indices output": lambda: leaf(3, 3).detach().median(0),
    "_histc_cuda with floating point input": lambda: torch.histc(leaf(3).detach()),
    "_bincount_cuda": lambda: torch.bincount(torch.ones(3, dtype=torch.int64, device="cuda"), leaf(3).detach()),
    "scatter_reduce_cuda_prod_": lambda: torch.scatter_reduce(
        leaf(3).detach(), 0, torch.zeros(3, dtype=torch.int64, device="cuda"), leaf(3).detach(), "prod"
    ),
}
ACCEPTED = {
    "median": lambda: leaf(3).detach().median(),
    "bincount": lambda: torch.bincount(torch.ones(3, dtype=torch.int64, device="cuda")),
    "avg_pool2d": lambda: functional.avg_pool2d(leaf(1, 1, 8, 8), 2).sum().backward(),
}


@pytest.fixture(params=["emulated", "shapes_only"])
def mode(request):
    request.getfixturevalue(request.param)
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize("caller", REFUSED)
def test_operators_without_a_deterministic_kernel_are_refused(mode, caller):
    with pytest.raises(RuntimeError, match=f"^{caller} does not have a deterministic implementation"):
        REFUSED[caller]()
    torch.use_deterministic_algorithms(True, warn_only=True)
    with pytest.warns(UserWarning, match=f"^{caller} does not .* warn_only=True"):
        REFUSED[caller]()
    torch.use_deterministic_algorithms(False)
    REFUSED[caller]()


@pytest.mark.parametrize("name", [*ACCEPTED])
def test_deterministic_operators_are_accepted(mode, name):
    ACCEPTED[name]()
