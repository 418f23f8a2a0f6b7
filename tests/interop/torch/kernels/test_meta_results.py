"""Operators without a kernel of the meta device: the same memory with values and without."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed; test_with_torch.py runs this file")

import forebay  # noqa: E402 -- needs torch
from forebay.interop.torch import patch  # noqa: E402 -- as above


def quantization(x):
    """Return results of the simulated quantization of quantization-aware training."""
    scales, points = torch.ones(6, device="cuda"), torch.zeros(6, device="cuda", dtype=torch.int32)
    one, zero = torch.ones(1, device="cuda"), torch.zeros(1, device="cuda")
    return [
        torch.fake_quantize_per_tensor_affine(x, 0.1, 0, 0, 255),
        torch.fake_quantize_per_tensor_affine(x, one, zero.int(), 0, 255),
        torch.fake_quantize_per_channel_affine(x, scales, points, 0, 0, 255),
        torch._fake_quantize_learnable_per_tensor_affine(x, one.requires_grad_(), zero, 0, 255),
        torch._fake_quantize_learnable_per_channel_affine(x, scales.requires_grad_(), points.float(), 0, 0, 255),
        torch.ao.quantization.FakeQuantize().cuda()(x),
    ]


CALLS = {
    "logcumsumexp": lambda x: [x.logcumsumexp(0), x.half().logcumsumexp(0)],
    "minimum and maximum": lambda x: [
        *torch.ops.aten._aminmax(x.detach()), *torch.ops.aten._aminmax.dim(x.detach(), 0, True)
    ],
    "quantization": quantization,
    "softmax with a mask": lambda x: [torch._masked_softmax(x, torch.zeros(6, 8, dtype=torch.bool).cuda(), -1, 0)],
    "statistics": lambda x: [*torch.batch_norm_update_stats(x.detach(), None, None, 0.1)],
    "gated unit": lambda x: torch.func.jvp(torch.nn.functional.glu, (x.detach(),), (x.detach(),)),
    "margins": lambda x: [torch.nn.functional.multi_margin_loss(x, torch.zeros(6, dtype=torch.long, device="cuda"))],
}  # fmt: skip


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:torch.ao", "ignore:.*is deprecated")
@pytest.mark.parametrize("name", CALLS)
def test_results_and_memory_are_those_with_values(name):
    found = []
    for mode in ("compute", "strict"):
        with forebay.emulate("cuda", profile="h200"), patch(mode):
            for x in (torch.rand(6, 8).cuda(), torch.rand(8, 6).cuda().t()):
                results = CALLS[name](x.requires_grad_())
                total = sum(each.float().sum() for each in results if each.requires_grad)
                gradients = torch.autograd.grad(total, x) if isinstance(total, torch.Tensor) else ()
                found.append([(each.shape, each.dtype, each.stride()) for each in (*results, *gradients)])
                found.append(torch.cuda.max_memory_allocated())
    assert found[:4] == found[4:]


def test_result_of_an_argument_gets_its_shape():
    with forebay.emulate("cuda", profile="h200"), patch("strict"):
        out = torch.empty(0, device="cuda")
        torch.logcumsumexp(torch.rand(6, 8, device="cuda"), 0, out=out)
        assert out.shape == (6, 8)
