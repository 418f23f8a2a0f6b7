"""Scaled dot product attention on emulated devices: the memory of PyTorch's fused kernels, with the CPU's values.

As observed of PyTorch 2.15: statistics and gradients, the accumulators of Flash Attention's splits and of its backward
pass, and the workspace of the memory-efficient backward pass on devices of capability 8.0 and later. The workspace
that cuDNN asks for is not documented: the accumulator of its backward pass is an estimate.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch

from forebay.interop.torch.devices import values
from forebay.interop.torch.devices.emulated_memory import adopt, alias, open_torch_device
from forebay.interop.torch.devices.other_cards import answer, card_bytes
from forebay.interop.torch.kernels import attention_values
from forebay.interop.torch.kernels.attention_choice import Implementation, choose, needs_logsumexp
from forebay.interop.torch.kernels.attention_memory import (
    HALVES,
    efficient_workspace,
    flash_size,
    numbers,
    round_up,
    seed_of,
)  # fmt: skip
from forebay.interop.torch.kernels.attention_values import Attention
from forebay.interop.torch.kernels.scratch_memory import Scratch, first_of, nbytes_of
from forebay.runtime.devices.open_device import OpenDevice

__all__ = ["ATTENTION_COMPOSITES", "ATTENTION_KERNELS"]

_aten = torch.ops.aten
_PROCESSORS = ("multi_processor_count",)


def _attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0, is_causal: bool = False, *, scale: float | None = None, enable_gqa: bool = False,
) -> torch.Tensor:  # fmt: skip
    """Return what torch.nn.functional.scaled_dot_product_attention does, by differentiable operators."""
    _check(query, key, value, attn_mask, is_causal)
    if query.dim() == key.dim() == value.dim() == 3 and (attn_mask is None or attn_mask.dim() in (2, 3)):
        mask = attn_mask if attn_mask is None or attn_mask.dim() == 2 else attn_mask.unsqueeze(0)
        query, key, value = query.unsqueeze(0), key.unsqueeze(0), value.unsqueeze(0)
        return _attention(query, key, value, mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa).squeeze(0)
    chosen = choose(query, key, value, attn_mask, dropout_p, is_causal, enable_gqa)
    mask = attn_mask
    if chosen != Implementation.FLASH and mask is not None and mask.dtype == torch.bool:
        options = {"dtype": query.dtype, "device": query.device}
        zero, low = torch.scalar_tensor(0.0, **options), torch.scalar_tensor(-math.inf, **options)
        mask = torch.where(mask, zero, low)
        del low, zero
    if chosen == Implementation.FLASH:
        size = query.shape[-1]
        padded = [_pad(each) for each in (query, key, value)]
        factor = 1 / math.sqrt(size) if scale is None else scale
        result: torch.Tensor = first_of(
            _aten._scaled_dot_product_flash_attention(*padded, dropout_p, is_causal, False, scale=factor)
        )
        return result[..., :size] if size % 8 else result
    wants_sums = needs_logsumexp(query, key, value, *([] if mask is None else [mask]))
    if chosen == Implementation.EFFICIENT:
        if mask is not None:
            mask = _aligned_mask(mask, query, key)
        return first_of(
            _aten._scaled_dot_product_efficient_attention(
                query, key, value, mask, wants_sums, dropout_p, is_causal, scale=scale
            )
        )
    if chosen == Implementation.CUDNN:
        return first_of(
            _aten._scaled_dot_product_cudnn_attention(
                query, key, value, mask, wants_sums, dropout_p, is_causal, False, scale=scale
            )
        )
    return first_of(
        _aten._scaled_dot_product_attention_math(
            query, key, value, mask, dropout_p, is_causal, None, scale=scale, enable_gqa=enable_gqa
        )
    )


def _check(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None, is_causal: bool
) -> None:
    if not query.device == key.device == value.device:
        raise RuntimeError(
            "Expected query, key, and value to have the same device type, but got query.device: "
            f"{query.device} key.device: {key.device} and value.device: {value.device} instead."
        )
    if not query.dtype == key.dtype == value.dtype:
        raise RuntimeError(
            "Expected query, key, and value to have the same dtype, but got query.dtype: "
            f"{query.dtype} key.dtype: {key.dtype} and value.dtype: {value.dtype} instead."
        )
    if min(query.dim(), key.dim(), value.dim()) < 2:
        raise RuntimeError(
            "Expected query, key, and value to all be  at least 2 dimensional, but got query.dim: "
            f"{query.dim()} key.dim: {key.dim()} and value.dim: {value.dim()} instead."
        )
    if mask is not None and is_causal:
        raise RuntimeError("_scaled_dot_product_attention: Explicit attn_mask should not be set when is_causal=True")


def _pad(tensor: torch.Tensor) -> torch.Tensor:
    missing = -tensor.shape[-1] % 8
    return torch.nn.functional.pad(tensor, (0, missing)) if missing else tensor


def _aligned_mask(mask: torch.Tensor, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
    """Return the mask for all heads, whose rows begin at multiples of 16 elements."""
    length = mask.shape[-1]
    if length % 16 or mask.stride(-1) != 1 or any(each % 16 for each in mask.stride()[:-1]):
        mask = torch.nn.functional.pad(mask, (0, -length % 16))[..., :length]
    return mask.expand(query.shape[0], query.shape[1], query.shape[2], key.shape[2])


def _choice(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0, is_causal: bool = False, *, scale: float | None = None, enable_gqa: bool = False,
) -> int:  # fmt: skip
    return int(choose(query, key, value, attn_mask, dropout_p, is_causal, enable_gqa))


def _compute(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None, dropout: float,
    is_causal: bool, scale: float | None, seed: int,
) -> tuple[torch.Tensor, torch.Tensor] | None:  # fmt: skip
    """Return the result and the log-sum-exp, if values are computed."""
    if not values.is_computed():
        return None
    masked = None if mask is None else alias(mask)
    return attention_values.forward(
        Attention(alias(query), alias(key), alias(value), masked, dropout, is_causal, scale, seed)
    )


def _new(
    like: torch.Tensor, shape: Sequence[int], opened: OpenDevice, filled: torch.Tensor | None, dtype: Any = None
) -> Any:
    """Return a tensor of the device with the values, in the layout of `like` if it has the same shape."""
    dtype = like.dtype if dtype is None else dtype
    place = values.device()
    if tuple(shape) == tuple(like.shape):
        made = torch.empty_like(like, dtype=dtype, device=place)
    else:
        made = torch.empty(shape, dtype=dtype, device=place)
    if filled is not None:
        made[tuple(slice(length) for length in filled.shape)].copy_(filled)
    return adopt(made, opened)


def _by_time(tensor: torch.Tensor) -> torch.Tensor:
    """Return a view whose heads follow the time, as fused kernels take it."""
    return tensor.transpose(1, 2)


def _flash(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, dropout_p: float = 0.0, is_causal: bool = False,
    return_debug_mask: bool = False, *, scale: float | None = None,
) -> tuple[Any, ...]:  # fmt: skip
    opened = open_torch_device(query.device)
    seed = seed_of(query.device, dropout_p)
    computed = _compute(query, key, value, None, dropout_p, is_causal, scale, seed)
    batch, heads, time, _ = query.shape
    result = _new(query, query.shape, opened, computed and computed[0])
    sums = _new(query, (batch, heads, time), opened, computed and computed[1], torch.float32)
    with Scratch(opened) as scratch:
        taken = [] if dropout_p else _take_splits(scratch, query, key)
        state = numbers(opened, 2, torch.uint64, seed)
        unused = numbers(opened, None, torch.int64, 0)
        if dropout_p:
            state = numbers(opened, 2, torch.uint64, seed)
        debug = torch.empty(0, dtype=query.dtype, device=query.device)
        for each in taken:
            scratch.free(each)
    return result, sums, None, None, time, key.shape[2], state, unused, debug


def _take_splits(scratch: Scratch, query: torch.Tensor, key: torch.Tensor) -> list[int]:
    """Take the buffers of the parts of the keys, if they are divided."""
    batch, heads, time, size = query.shape
    splits = partial(_flash_splits, query, key)
    if not answer(scratch.opened, _PROCESSORS, lambda count: splits(count) > 1):
        return []
    taken = []
    for nbytes in (4, flash_size(size) * 4):
        one = batch * heads * time * nbytes
        taken.append(scratch.take(card_bytes(scratch.opened, _PROCESSORS, lambda count, one=one: splits(count) * one)))
    return taken


def _flash_splits(query: torch.Tensor, key: torch.Tensor, multiprocessors: int) -> int:
    """Return in how many parts the keys are divided if there are too few queries for all multiprocessors."""
    batch, heads, time, size = query.shape
    if time == 1 and heads > key.shape[1]:  # the queries of a group become rows
        heads, time = key.shape[1], heads // key.shape[1]
    block = 256 if size <= 64 else 128 if size <= 128 else 64
    blocks = -(-key.shape[2] // block)
    rows = batch * heads * -(-time // 64)
    processors = multiprocessors * 2
    if not processors or rows >= 0.8 * processors:
        return 1
    most = min(128, processors, blocks)
    usable = [n for n in range(1, most + 1) if n == 1 or -(-blocks // n) != -(-blocks // (n - 1))]
    waves = {n: rows * n / processors for n in usable}
    efficiency = {n: waves[n] / math.ceil(waves[n]) for n in usable}
    best = max(efficiency.values())
    return next(n for n in usable if efficiency[n] >= 0.85 * best)


def _gradients(
    gradient: torch.Tensor, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None,
    result: torch.Tensor, sums: torch.Tensor, dropout: float, is_causal: bool, scale: float | None, seed: int,
) -> tuple[torch.Tensor, ...] | None:  # fmt: skip
    if not values.is_computed():
        return None
    given = Attention(
        alias(query), alias(key), alias(value), None if mask is None else alias(mask), dropout, is_causal, scale, seed
    )
    parts = alias(sums)[:, :, : query.shape[2]]
    parts = parts if parts.dim() == 3 else parts[..., 0]
    return attention_values.backward(given, alias(gradient), alias(result), parts)


def _flash_backward(
    grad_out: torch.Tensor, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, out: torch.Tensor,
    logsumexp: torch.Tensor, cum_seq_q: Any, cum_seq_k: Any, max_q: int, max_k: int, dropout_p: float,
    is_causal: bool, philox_seed: torch.Tensor, philox_offset: Any, *, scale: float | None = None,
) -> tuple[Any, ...]:  # fmt: skip
    opened = open_torch_device(query.device)
    seed = int(alias(philox_seed).view(torch.int64)[0]) if dropout_p and values.is_computed() else 0
    computed = _gradients(
        grad_out, query, key, value, None, out, logsumexp, dropout_p, is_causal, scale, seed
    )  # fmt: skip
    batch, heads, time, size = query.shape
    with Scratch(opened) as outer:
        outer.contiguous(_by_time(grad_out))
        outer.contiguous(_by_time(out))
        of_query = _new(query, query.shape, opened, computed and computed[0])
        of_key = _new(key, key.shape, opened, computed and computed[1])
        of_value = _new(value, value.shape, opened, computed and computed[2])
        rows = round_up(time, 128)
        with Scratch(opened) as scratch:
            scratch.take(batch * heads * rows * 4)
            one = batch * heads * rows * flash_size(size) * 4
            if torch.are_deterministic_algorithms_enabled():
                one = card_bytes(opened, _PROCESSORS, lambda count: -(-count // (batch * heads)) * one)
            scratch.take(one)
            if key.shape[1] != heads:  # gradients of each head, which are then summed
                scratch.take(nbytes_of(key) // key.shape[1] * heads)
                scratch.take(nbytes_of(value) // value.shape[1] * heads)
    return of_query, of_key, of_value


def _efficient(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, attn_bias: torch.Tensor | None,
    compute_log_sumexp: bool, dropout_p: float = 0.0, is_causal: bool = False, *, scale: float | None = None,
) -> tuple[Any, ...]:  # fmt: skip
    opened = open_torch_device(query.device)
    seed = seed_of(query.device, dropout_p)
    computed = _compute(query, key, value, attn_bias, dropout_p, is_causal, scale, seed)
    batch, heads, time, _ = query.shape
    if dropout_p:
        first, second = torch.tensor(seed), torch.tensor(0)
    else:
        first, second = numbers(opened, None, torch.int64, 0), numbers(opened, None, torch.int64, 0)
    layout = torch.empty(batch, time, heads, value.shape[3], dtype=query.dtype, device="meta").transpose(1, 2)
    result = _new(layout, layout.shape, opened, computed and computed[0])
    if compute_log_sumexp:
        sums = _new(query, (batch, heads, round_up(time, 32)), opened, computed and computed[1], torch.float32)
    else:
        sums = torch.empty(batch, heads, 0, dtype=torch.float32, device=query.device)
    if query.dtype in HALVES and value.shape[3] > 128:
        with Scratch(opened) as scratch:
            scratch.take(result.numel() * 4)
    return result, sums, first, second


def _efficient_backward(
    grad_out_: torch.Tensor | None, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, attn_bias: Any,
    out: torch.Tensor, logsumexp: torch.Tensor, philox_seed: torch.Tensor, philox_offset: torch.Tensor,
    dropout_p: float, grad_input_mask: Sequence[bool], is_causal: bool = False, *, scale: float | None = None,
) -> tuple[Any, ...]:  # fmt: skip
    if grad_out_ is None:
        return None, None, None, None
    opened = open_torch_device(query.device)
    seed = int(philox_seed) if dropout_p and values.is_computed() else 0
    computed = _gradients(
        grad_out_, query, key, value, attn_bias, out, logsumexp, dropout_p, is_causal, scale, seed
    )  # fmt: skip
    batch, heads, time, _ = query.shape
    of_mask = None
    with Scratch(opened) as outer:
        outer.contiguous(_by_time(grad_out_))
        layouts = [
            torch.empty_like(_by_time(each), device="meta", memory_format=torch.contiguous_format).transpose(1, 2)
            for each in (query, key, value)
        ]
        gradients = [_new(each, each.shape, opened, computed and computed[at]) for at, each in enumerate(layouts)]
        if attn_bias is not None and grad_input_mask[3]:
            of_mask = _mask_gradient(attn_bias, grad_out_, query, key, value, dropout_p, is_causal, scale, seed, opened)
        with Scratch(opened) as scratch:
            rows = batch * heads * time * 4
            if query.dtype in HALVES and of_mask is None:
                scratch.take(rows)
            else:
                product = scratch.take(batch * heads * time * value.shape[3] * 4)
                total = scratch.take(rows)
                scratch.take(rows)
                scratch.free(total)
                scratch.free(product)
            workspace = Scratch(opened)
            workspace.take(efficient_workspace(query.dtype, (*query.shape,), key.shape[2], value.shape[3]))
            scratch.close()
            workspace.close()
    return (*gradients, of_mask)


def _mask_gradient(
    mask: torch.Tensor, gradient: torch.Tensor, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor,
    dropout: float, is_causal: bool, scale: float | None, seed: int, opened: OpenDevice,
) -> torch.Tensor:  # fmt: skip
    batch, heads, time, _ = query.shape
    length = key.shape[2]
    made = torch.empty(batch, heads, time, round_up(length, 16), dtype=query.dtype, device=values.device())
    if values.is_computed():
        given = Attention(alias(query), alias(key), alias(value), alias(mask), dropout, is_causal, scale, seed)
        made[..., :length].copy_(attention_values.score_gradient(given, alias(gradient)))
    return adopt(made, opened)[..., :length]


def _cudnn(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, attn_bias: torch.Tensor | None,
    compute_log_sumexp: bool, dropout_p: float = 0.0, is_causal: bool = False, return_debug_mask: bool = False, *,
    scale: float | None = None,
) -> tuple[Any, ...]:  # fmt: skip
    opened = open_torch_device(query.device)
    seed = seed_of(query.device, dropout_p)
    computed = _compute(query, key, value, attn_bias, dropout_p, is_causal, scale, seed)
    batch, heads, time, _ = query.shape
    first, second = numbers(opened, None, torch.int64, seed), numbers(opened, None, torch.int64, 0)
    result = _new(query, (batch, heads, time, value.shape[3]), opened, computed and computed[0])
    sums = None
    if compute_log_sumexp:
        filled = computed and computed[1].unsqueeze(-1)
        sums = _new(query, (batch, heads, time, 1), opened, filled, torch.float32)
    return result, sums, None, None, time, key.shape[2], first, second, None


def _cudnn_backward(
    grad_out: torch.Tensor, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, out: torch.Tensor,
    logsumexp: torch.Tensor, philox_seed: torch.Tensor, philox_offset: torch.Tensor, attn_bias: torch.Tensor | None,
    cum_seq_q: Any, cum_seq_k: Any, max_q: int, max_k: int, dropout_p: float, is_causal: bool, *,
    scale: float | None = None,
) -> tuple[Any, ...]:  # fmt: skip
    opened = open_torch_device(query.device)
    seed = int(alias(philox_seed)) if dropout_p and values.is_computed() else 0
    computed = _gradients(
        grad_out, query, key, value, attn_bias, out, logsumexp, dropout_p, is_causal, scale, seed
    )  # fmt: skip
    batch, heads, time, size = query.shape
    gradients = tuple(
        _new(each, each.shape, opened, computed and computed[at]) for at, each in enumerate((query, key, value))
    )
    with Scratch(opened) as scratch:
        if grad_out.stride() != out.stride():
            scratch.take(nbytes_of(grad_out))
        scratch.take(batch * heads * time * (size + 1) * 4)  # the queries' gradient, and a sum for each query
    return gradients


ATTENTION_KERNELS: dict[str, Callable[..., Any]] = {
    "aten::_fused_sdp_choice": _choice,
    "aten::_scaled_dot_product_flash_attention": _flash,
    "aten::_scaled_dot_product_flash_attention_backward": _flash_backward,
    "aten::_scaled_dot_product_efficient_attention": _efficient,
    "aten::_scaled_dot_product_efficient_attention_backward": _efficient_backward,
    "aten::_scaled_dot_product_cudnn_attention": _cudnn,
    "aten::_scaled_dot_product_cudnn_attention_backward": _cudnn_backward,
}
ATTENTION_COMPOSITES: dict[str, Callable[..., Any]] = {"aten::scaled_dot_product_attention": _attention}
