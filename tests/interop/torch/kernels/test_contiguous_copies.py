"""Contiguous copies of gradients, which kernels of PyTorch's CUDA build take while they run."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed; test_with_torch.py runs this file")

from torch.nn import functional  # noqa: E402 -- as above

FUNCTIONS = {
    "average pool": lambda x: functional.avg_pool2d(x, 2),
    "largest pool": lambda x: functional.max_pool2d(x, 2),
    "adaptive pool": lambda x: functional.adaptive_max_pool2d(x, 2),
    "nearest": lambda x: functional.interpolate(x, scale_factor=2),
    "bilinear": lambda x: functional.interpolate(x, scale_factor=2, mode="bilinear"),
    "bicubic": lambda x: functional.interpolate(x, scale_factor=2, mode="bicubic"),
    "reflected": lambda x: functional.pad(x, (1, 1, 1, 1), mode="reflect"),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_gradient_that_is_not_contiguous_is_copied(emulated, name):
    extra = []
    for expanded in (False, True):
        x = torch.ones(2, 4, 64, 64, device="cuda", requires_grad=True)
        result = FUNCTIONS[name](x)
        outer = torch.ones((), device="cuda").expand_as(result)
        outer = outer if expanded else outer.contiguous()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        (gradient,) = torch.autograd.grad(result, x, outer)
        extra.append(torch.cuda.max_memory_allocated() - before - gradient.nbytes)
        del x, result, outer, gradient
    assert extra[1] - extra[0] == -(-FUNCTIONS[name](torch.ones(2, 4, 64, 64)).nbytes // 512) * 512
