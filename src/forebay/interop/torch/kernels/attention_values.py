"""Values of scaled dot product attention and its gradients, as PyTorch computes them on the CPU.

Where PyTorch's CPU kernel cannot compute a case (dropout, different head sizes), the formula is used.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch

from forebay.interop.torch.kernels.wide_types import over_values

__all__ = ["Attention", "backward", "forward", "score_gradient"]

_compute = over_values(torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default)
_compute_backward = over_values(torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward.default)


class Attention(NamedTuple):
    """The arguments of one call, over values."""

    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    mask: torch.Tensor | None
    dropout: float
    is_causal: bool
    scale: float | None
    seed: int = 0


def _is_computed_by_cpu(given: Attention) -> bool:
    same = given.query.shape[-1] == given.key.shape[-1] == given.value.shape[-1]
    return same and not given.dropout and not (given.mask is not None and given.is_causal)


def _repeated(given: Attention) -> Attention:
    """Return the arguments with keys and values for each head."""
    groups = given.query.shape[1] // given.key.shape[1]
    if groups == 1:
        return given
    return given._replace(key=given.key.repeat_interleave(groups, 1), value=given.value.repeat_interleave(groups, 1))


def _probabilities(given: Attention) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the weights before dropout, and the log-sum-exp of the scores."""
    scale = 1 / math.sqrt(given.query.shape[-1]) if given.scale is None else given.scale
    scores = given.query.float() @ given.key.float().transpose(-1, -2) * scale
    if given.is_causal:
        allowed = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
        scores = scores.masked_fill(~allowed, -math.inf)
    if given.mask is not None:
        scores = scores.masked_fill(~given.mask, -math.inf) if given.mask.dtype == torch.bool else scores + given.mask
    return scores.softmax(-1), scores.logsumexp(-1)


def _kept(given: Attention, weights: torch.Tensor) -> torch.Tensor | float:
    """Return the factors of dropout."""
    if not given.dropout:
        return 1.0
    drawn = torch.rand(weights.shape, generator=torch.Generator().manual_seed(given.seed))
    return (drawn >= given.dropout).float() / (1 - given.dropout)


def forward(given: Attention) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the result and the log-sum-exp in single precision, of the shape [batch, heads, queries]."""
    given = _repeated(given)
    if _is_computed_by_cpu(given):
        result, sums = _compute(
            given.query, given.key, given.value, 0.0, given.is_causal, attn_mask=given.mask, scale=given.scale
        )
        return result, sums.float()
    weights, sums = _probabilities(given)
    return ((weights * _kept(given, weights)) @ given.value.float()).to(given.query.dtype), sums


def backward(
    given: Attention, gradient: torch.Tensor, result: torch.Tensor, sums: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the gradients of query, key, value and scores before softmax (empty if the CPU's kernel computes)."""
    heads = given.key.shape[1]
    full = _repeated(given)
    scores = torch.empty(0)
    if _is_computed_by_cpu(full):
        query, key, value = _compute_backward(
            gradient, full.query, full.key, full.value, result, sums, 0.0, full.is_causal,
            attn_mask=full.mask, scale=full.scale,
        )  # fmt: skip
    else:
        query, key, value, scores = _by_formula(full, gradient)
    if full.key.shape[1] != heads:
        key, value = (each.unflatten(1, (heads, -1)).sum(2) for each in (key, value))
    return query, key, value, scores


def score_gradient(given: Attention, gradient: torch.Tensor) -> torch.Tensor:
    """Return the gradient of the scores before softmax."""
    return _by_formula(_repeated(given), gradient)[3]


def _by_formula(
    given: Attention, gradient: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    scale = 1 / math.sqrt(given.query.shape[-1]) if given.scale is None else given.scale
    weights, _ = _probabilities(given)
    kept = _kept(given, weights)
    outer = gradient.float()
    of_value = (weights * kept).transpose(-1, -2) @ outer
    of_weights = outer @ given.value.float().transpose(-1, -2) * kept
    scores = weights * (of_weights - (weights * of_weights).sum(-1, keepdim=True))
    query = scores @ given.key.float() * scale
    key = scores.transpose(-1, -2) @ given.query.float() * scale
    dtype = given.query.dtype
    return query.to(dtype), key.to(dtype), of_value.to(dtype), scores
