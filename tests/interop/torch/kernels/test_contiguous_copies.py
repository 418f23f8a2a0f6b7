"""Contiguous copies of gradients, which kernels of PyTorch's CUDA build take while they run."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed; test_with_torch.py runs this file")

from support.requested_sizes import requested  # noqa: E402 -- as above
from torch.nn import functional  # noqa: E402 -- as above

import forebay  # noqa: E402 -- as above
from forebay.interop.torch import patch  # noqa: E402 -- as above

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


# Sizes that the CUDA build requests, for an input of 2 x 8 x 12 x 10 in channels_last, and transposed, and for its
# gradient, if that of the result has its layout.
LAYOUTS = {
    "average pool": ("1920 | 7680", "1920 7680 | 7680 7680"),
    "largest pool": ("1920 3840 | 7680", "1920 3840 7680 | 7680 7680"),
    "average": ("576 | 7680", "7680 576 | 7680"),
    "nearest": ("30720 | 7680", "30720 7680 | 7680"),
    "bilinear": ("30720 | 7680", "30720 | 7680"),
    "largest": ("4 7680", "4 7680"),
    "columns": ("7680 7680 25344 | 25344", "7680 7680 25344 | 25344"),
}


@pytest.mark.parametrize("mode", ["compute", "shapes"])
def test_copies_follow_the_layout(mode):
    calls = FUNCTIONS | {
        "average": lambda x: functional.adaptive_avg_pool2d(x, 3), "largest": torch.max,
        "columns": lambda x: functional.unfold(x, 2),
    }  # fmt: skip
    found = {}
    with forebay.emulate("cuda", profile="h200"), patch(mode):
        last = torch.ones(2, 8, 12, 10, device="cuda").contiguous(memory_format=torch.channels_last)
        for name in LAYOUTS:
            for x in (last, torch.ones(2, 8, 10, 12, device="cuda").mT):
                x.requires_grad_()
                results = []
                text = requested(lambda name=name, x=x, into=results: into.append(calls[name](x)))
                if name != "largest":
                    outer = torch.ones_like(results[0])
                    text += " | " + requested(
                        lambda x=x, outer=outer, into=results: torch.autograd.grad(into[0], x, outer)
                    )
                found[name] = (*found.get(name, ()), text)
    assert found == LAYOUTS
