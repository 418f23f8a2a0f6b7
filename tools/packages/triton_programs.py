"""Programs over packages of Triton's kernels, and kernels in the manner of Triton's tutorials.

On the CPU, operators of PyTorch compute the same.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from packages.program import mean_of_squares, program

_LIGER, _FLA = ("liger_kernel", "triton"), ("fla", "triton")


def drawn(place: str, *shape: int, gradient: bool = True) -> torch.Tensor:
    """Return normally distributed numbers, which are equal on all devices."""
    made = torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))).to(place)
    return made.requires_grad_(gradient)


def backward(result: Any, *inputs: torch.Tensor) -> torch.Tensor:
    """Return a number that depends on a result and on the gradients of inputs."""
    mean_of_squares(result).backward()
    return mean_of_squares(result).detach() + sum(
        mean_of_squares(each.grad) for each in inputs if each.grad is not None
    )


def choose(place: str, package: str, name: str, reference: Any) -> Any:
    """Return what a package has under a name, on the CPU its reference."""
    if place == "cpu":
        return reference
    return getattr(__import__(package, fromlist=[name]), name)


@program("Liger-Kernel normalizations", needs=_LIGER)
def liger_normalizations(place: str) -> torch.Tensor:
    rms = choose(place, "liger_kernel.transformers.rms_norm", "LigerRMSNorm", nn.RMSNorm)
    layer = choose(place, "liger_kernel.transformers.layer_norm", "LigerLayerNorm", nn.LayerNorm)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 64), rms(64, eps=1e-6), nn.Linear(64, 64), layer(64, eps=1e-6)).to(place)
    x = drawn(place, 4, 8, 32)
    return backward(model(x), x, *model.parameters())


@program("Liger-Kernel cross entropy", needs=_LIGER)
def liger_cross_entropy(place: str) -> torch.Tensor:
    loss = choose(place, "liger_kernel.transformers.cross_entropy", "LigerCrossEntropyLoss", nn.CrossEntropyLoss)()
    x, target = drawn(place, 16, 100), torch.arange(16, device=place) * 5
    found = loss(x * 2, target)
    found.backward()
    return found.detach() + mean_of_squares(x.grad) * 100


@program("Liger-Kernel fused linear cross entropy", needs=_LIGER)
def liger_linear_cross_entropy(place: str) -> torch.Tensor:
    def reference(weight: torch.Tensor, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return functional.cross_entropy(x @ weight.t(), target)

    package = "liger_kernel.transformers.fused_linear_cross_entropy"
    made = choose(place, package, "LigerFusedLinearCrossEntropyLoss", lambda: reference)()
    weight, x, target = drawn(place, 100, 32), drawn(place, 16, 32), torch.arange(16, device=place) * 5
    found = made(weight, x, target)
    found.backward()
    return found.detach() + mean_of_squares(x.grad) * 100 + mean_of_squares(weight.grad) * 100


@program("Liger-Kernel SwiGLU, GeGLU", needs=_LIGER)
def liger_gated(place: str) -> torch.Tensor:
    one, other = drawn(place, 4, 8, 64), drawn(place, 4, 64, 8).detach().reshape(4, 8, 64).requires_grad_()
    if place == "cpu":
        found = functional.silu(one) * other + functional.gelu(one, approximate="tanh") * other
    else:
        from liger_kernel.ops.geglu import LigerGELUMulFunction
        from liger_kernel.ops.swiglu import LigerSiLUMulFunction

        found = LigerSiLUMulFunction.apply(one, other) + LigerGELUMulFunction.apply(one, other)
    return backward(found, one, other)


@program("Liger-Kernel rotary embeddings", needs=_LIGER)
def liger_rotary(place: str) -> torch.Tensor:
    query, key = drawn(place, 2, 4, 8, 16), drawn(place, 2, 2, 8, 16)
    angles = drawn(place, 1, 8, 8, gradient=False).repeat(1, 1, 2)
    cosine, sine = angles.cos(), angles.sin()
    if place == "cpu":
        found = [each * cosine.unsqueeze(1) + _turned(each) * sine.unsqueeze(1) for each in (query, key)]
    else:
        from liger_kernel.transformers.rope import liger_rotary_pos_emb

        found = [*liger_rotary_pos_emb(query * 1, key * 1, cosine, sine)]
    return backward(torch.cat([each.flatten() for each in found]), query, key)


def _turned(x: torch.Tensor) -> torch.Tensor:
    first, second = x.chunk(2, -1)
    return torch.cat([-second, first], -1)


def _recurrence(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, decay: torch.Tensor | None = None,
    strength: torch.Tensor | None = None,
) -> torch.Tensor:  # fmt: skip
    """Return linear attention of tensors [batch, time, heads, size], step by step."""
    batch, steps, heads, size = query.shape
    state = torch.zeros(batch, heads, size, value.shape[-1])
    found = []
    for at in range(steps):
        if decay is not None:
            state = state * decay[:, at].reshape(batch, heads, -1, 1).exp()
        new = value[:, at]
        if strength is not None:
            new = strength[:, at, :, None] * (new - (state * key[:, at, :, :, None]).sum(-2))
        state = state + key[:, at, :, :, None] * new[:, :, None]
        found.append((state * query[:, at, :, :, None]).sum(-2) * size**-0.5)
    return torch.stack(found, 1)


def _attended(place: str, function: Callable[..., Any], *others: torch.Tensor, **named: Any) -> torch.Tensor:
    query, key, value = (drawn(place, 1, 64, 2, 16 + at)[..., :16].detach().requires_grad_() for at in range(3))
    key_of_one = functional.normalize(key, dim=-1)
    found = function(query, key_of_one, value, *others, **named)
    return backward(found[0] if isinstance(found, tuple) else found, query, key, value)


@program("fla linear attention", needs=_FLA)
def fla_linear(place: str) -> torch.Tensor:
    function = choose(place, "fla.ops.linear_attn", "chunk_linear_attn", _recurrence)
    return _attended(place, function, **({} if place == "cpu" else {"normalize": False}))


@program("fla gated linear attention", needs=_FLA)
def fla_gated(place: str) -> torch.Tensor:
    gate = functional.logsigmoid(drawn(place, 1, 64, 2, 16, gradient=False))
    return _attended(place, choose(place, "fla.ops.gla", "chunk_gla", _recurrence), gate)


@program("fla gated delta rule", needs=_FLA)
def fla_delta(place: str) -> torch.Tensor:
    decay = functional.logsigmoid(drawn(place, 1, 64, 2, gradient=False))
    strength = drawn(place, 2, 1, 64, gradient=False).reshape(1, 64, 2).sigmoid()
    if place == "cpu":
        return _attended(place, _recurrence, decay, strength)
    from fla.ops.gated_delta_rule import chunk_gated_delta_rule

    return _attended(place, chunk_gated_delta_rule, g=decay, beta=strength)


@program("fla short convolution", needs=_FLA)
def fla_convolution(place: str) -> torch.Tensor:
    from fla.modules import ShortConvolution

    torch.manual_seed(0)
    layer = ShortConvolution(16, 4, activation=None).to(place)
    x = drawn(place, 2, 32, 16)
    if place == "cpu":
        bias = layer.bias
        found = functional.conv1d(x.mT, layer.weight.view(16, 1, 4), bias, padding=3, groups=16)[..., :32].mT
    else:
        made = layer(x)
        found = made[0] if isinstance(made, tuple) else made
    return backward(found, x, layer.weight)


if find_spec("triton") is not None:  # whose decorator needs it
    from packages import triton_kernels  # noqa: F401 -- adds programs to the list
