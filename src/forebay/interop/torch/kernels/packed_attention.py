"""Attention of sequences that are packed in one tensor, as those of jagged tensors and of `varlen_attn`.

A packed tensor has the dimensions [time, heads, size]; an integer tensor has the position at which each sequence
begins, and the end. Without it, tensors have a dimension for the sequences: [batch, time, heads, size].
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, TypeAlias

import torch

from forebay.errors import Unsupported
from forebay.interop.torch.devices import values
from forebay.interop.torch.devices.emulated_memory import adopt, alias, open_torch_device
from forebay.interop.torch.kernels import attention_values
from forebay.interop.torch.kernels.attention_memory import (
    HALVES,
    efficient_workspace,
    flash_size,
    numbers,
    round_up,
    seed_of,
)  # fmt: skip
from forebay.interop.torch.kernels.attention_values import Attention
from forebay.interop.torch.kernels.scratch_memory import Scratch, check_devices, nbytes_of

__all__ = ["PACKED_KERNELS"]

_TOP_LEFT, _BOTTOM_RIGHT = 1, 2  # of `custom_mask_type`: where the diagonal of a causal mask begins
_Optional: TypeAlias = torch.Tensor | None


class _Options(NamedTuple):
    """Options that all sequences of a call share."""

    dropout: float
    diagonal: int  # 0 without a causal mask, _TOP_LEFT or _BOTTOM_RIGHT
    scale: float | None
    seed: int
    before: int | None = None  # positions before and after the diagonal that a query sees; None for all
    after: int | None = None

    def attention(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, number: int) -> Attention:
        """Return the arguments for one sequence: [time, heads, size]."""
        queries, keys = query.shape[0], key.shape[0]
        is_causal = bool(self.diagonal)
        mask: _Optional = None
        if self.before is not None or self.after is not None or (is_causal and queries != keys):
            shift = keys - queries if self.diagonal != _TOP_LEFT else 0
            distance = torch.arange(keys) - torch.arange(queries)[:, None] - shift
            allowed = torch.ones(queries, keys, dtype=torch.bool)
            after = 0 if is_causal else self.after
            if after is not None:
                allowed &= distance <= after
            if self.before is not None:
                allowed &= distance >= -self.before
            mask = torch.zeros(queries, keys, dtype=query.dtype).masked_fill(~allowed, -math.inf)
            is_causal = False
        first, second, third = (each.transpose(0, 1)[None] for each in (query, key, value))
        return Attention(first, second, third, mask, self.dropout, is_causal, self.scale, self.seed + number)


def _sequences(
    tensors: tuple[torch.Tensor, ...], starts_q: _Optional, starts_k: _Optional, of_queries: tuple[bool, ...]
) -> Iterator[tuple[torch.Tensor, ...]]:
    """Yield the parts of each sequence, as views over the values: [time, heads, size]."""
    if starts_q is None:
        yield from zip(*tensors, strict=True)
        return
    queries = alias(starts_q).tolist()
    keys = queries if starts_k is None else alias(starts_k).tolist()
    for number in range(len(queries) - 1):
        yield tuple(
            each[slice(*(queries if by_query else keys)[number : number + 2])]
            for each, by_query in zip(tensors, of_queries, strict=True)
        )


def _place(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    return torch.zeros(shape, dtype=dtype) if values.is_computed() else torch.empty(shape, dtype=dtype, device="meta")


def _forward(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, starts: tuple[_Optional, _Optional],
    options: _Options, keep: Callable[[int, torch.Tensor], None],
) -> torch.Tensor:  # fmt: skip
    """Return the result over values, and pass the log-sum-exp [heads, time] of each sequence to `keep`."""
    result = _place((*query.shape[:-1], value.shape[-1]), query.dtype)
    if values.is_computed():
        tensors = (alias(query), alias(key), alias(value), result)
        for number, parts in enumerate(_sequences(tensors, *starts, (True, False, False, True))):
            queries, keys = parts[0].shape[0], parts[1].shape[0]
            if not queries or not keys:
                keep(number, torch.full((query.shape[-2], queries), math.inf))
                continue
            made, sums = attention_values.forward(options.attention(parts[0], parts[1], parts[2], number))
            parts[3].copy_(made[0].transpose(0, 1))
            keep(number, sums[0])
    return result


def _backward(
    gradient: torch.Tensor, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, result: torch.Tensor,
    starts: tuple[_Optional, _Optional], options: _Options, sums_of: Callable[[int, int], torch.Tensor],
) -> list[torch.Tensor]:  # fmt: skip
    """Return the gradients over values. `sums_of` returns the log-sum-exp of a sequence by number and length."""
    made = [_place(tuple(each.shape), each.dtype) for each in (query, key, value)]
    if values.is_computed():
        tensors = (*map(alias, (gradient, query, key, value, result)), *made)
        of_queries = (True, True, False, False, True, True, False, False)
        for number, parts in enumerate(_sequences(tensors, *starts, of_queries)):
            if not parts[1].shape[0] or not parts[2].shape[0]:
                continue
            given = options.attention(parts[1], parts[2], parts[3], number)
            sums = sums_of(number, parts[1].shape[0])[None]
            outer, inner = (each.transpose(0, 1)[None] for each in (parts[0], parts[4]))
            found = attention_values.backward(given, outer, inner, sums)
            for place, each in zip(parts[5:], found, strict=False):
                place.copy_(each[0].transpose(0, 1))
    return made


def _refuse(**arguments: Any) -> None:
    for name, given in arguments.items():
        if given is not None:
            raise Unsupported(f"attention on emulated devices does not support the argument {name!r}")


def _window(size: int | None) -> int | None:
    return None if size is None or size < 0 else size


def _flash(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, cum_seq_q: _Optional, cum_seq_k: _Optional,
    max_q: int, max_k: int, dropout_p: float, is_causal: bool, return_debug_mask: bool, *,
    scale: float | None = None, window_size_left: int | None = None, window_size_right: int | None = None,
    seqused_k: Any = None, alibi_slopes: Any = None, block_table: Any = None, num_splits: int | None = None,
) -> tuple[torch.Tensor, ...]:  # fmt: skip
    check_devices(query, key, value, cum_seq_q, cum_seq_k)
    _refuse(seqused_k=seqused_k, alibi_slopes=alibi_slopes, block_table=block_table)
    opened = open_torch_device(query.device)
    seed = seed_of(query.device, dropout_p)
    diagonal = _BOTTOM_RIGHT if is_causal else 0
    options = _Options(dropout_p, diagonal, scale, seed, _window(window_size_left), _window(window_size_right))
    heads = query.shape[-2]
    shape = (heads, query.shape[0]) if cum_seq_q is not None else (query.shape[0], heads, query.shape[1])
    sums = _place(shape, torch.float32)
    ends = alias(cum_seq_q).tolist() if cum_seq_q is not None and values.is_computed() else []

    def keep(number: int, found: torch.Tensor) -> None:
        place = sums[:, ends[number] : ends[number + 1]] if ends else sums[number]
        place.copy_(found)

    result = adopt(_forward(query, key, value, (cum_seq_q, cum_seq_k), options, keep), opened)
    of_sums = adopt(sums, opened)
    state, unused = numbers(opened, 2, torch.uint64, seed), numbers(opened, None, torch.uint64, 0)
    if dropout_p:
        state = numbers(opened, 2, torch.uint64, seed)
    return result, of_sums, state, unused, torch.empty(0, dtype=query.dtype, device=query.device)


def _flash_backward(
    grad_out: torch.Tensor, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, out: torch.Tensor,
    logsumexp: torch.Tensor, cum_seq_q: _Optional, cum_seq_k: _Optional, max_q: int, max_k: int, dropout_p: float,
    is_causal: bool, rng_state: torch.Tensor, unused: torch.Tensor, *, scale: float | None = None,
    window_size_left: int | None = None, window_size_right: int | None = None,
) -> tuple[torch.Tensor, ...]:  # fmt: skip
    opened = open_torch_device(query.device)
    seed = int(alias(rng_state).view(torch.int64)[0]) if dropout_p and values.is_computed() else 0
    diagonal = _BOTTOM_RIGHT if is_causal else 0
    options = _Options(dropout_p, diagonal, scale, seed, _window(window_size_left), _window(window_size_right))
    ends = alias(cum_seq_q).tolist() if cum_seq_q is not None and values.is_computed() else []

    def sums_of(number: int, length: int) -> torch.Tensor:
        sums = alias(logsumexp)
        return sums[:, ends[number] : ends[number + 1]] if ends else sums[number]

    found = _backward(grad_out, query, key, value, out, (cum_seq_q, cum_seq_k), options, sums_of)
    heads, size = query.shape[-2:]
    if cum_seq_q is not None:
        rows = heads * (query.shape[0] + 128 * (cum_seq_q.shape[0] - 1))
    else:
        rows = query.shape[0] * heads * round_up(query.shape[1], 128)
    with Scratch(opened) as outer:
        outer.contiguous(grad_out)
        if not query.is_contiguous():  # its layout is that of the result
            outer.take(nbytes_of(out))
        gradients = tuple(adopt(each, opened) for each in found)
        with Scratch(opened) as scratch:
            scratch.take(rows * 4)
            scratch.take(rows * flash_size(size) * 4)
            if key.shape[-2] != heads:  # gradients of each head, which are then summed
                scratch.take(nbytes_of(key) // key.shape[-2] * heads)
                scratch.take(nbytes_of(value) // value.shape[-2] * heads)
    return gradients


def _efficient(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, bias: _Optional, cu_seqlens_q: _Optional,
    cu_seqlens_k: _Optional, max_seqlen_q: int | None, max_seqlen_k: int | None, dropout_p: float,
    custom_mask_type: int, compute_log_sumexp: bool = False, *, scale: float | None = None, seqlen_k: Any = None,
    window_size: int | None = None,
) -> tuple[Any, ...]:  # fmt: skip
    check_devices(query, key, value, cu_seqlens_q, cu_seqlens_k)
    _refuse(bias=bias, seqlen_k=seqlen_k, window_size=window_size)
    opened = open_torch_device(query.device)
    seed = seed_of(query.device, dropout_p)
    options = _Options(dropout_p, custom_mask_type, scale, seed)
    packed = cu_seqlens_q is not None
    count = query.shape[0] if cu_seqlens_q is None else cu_seqlens_q.shape[0] - 1
    longest = query.shape[1] if max_seqlen_q is None else max_seqlen_q
    of_keys = key.shape[1] if max_seqlen_k is None else max_seqlen_k
    sums = _place((count, query.shape[2], round_up(longest, 32) if compute_log_sumexp else 0), torch.float32)
    if dropout_p:
        state = torch.tensor(seed), torch.tensor(0)
    else:
        state = numbers(opened, None, torch.int64, 0), numbers(opened, None, torch.int64, 0)

    def keep(number: int, found: torch.Tensor) -> None:
        if compute_log_sumexp:
            sums[number, :, : found.shape[1]].copy_(found)

    tensors = [each[0] if packed else each for each in (query, key, value)]
    made = _forward(tensors[0], tensors[1], tensors[2], (cu_seqlens_q, cu_seqlens_k), options, keep)
    result = adopt(made[None] if packed else made, opened)
    of_sums = adopt(sums, opened)
    if query.dtype in HALVES and value.shape[3] > 128:
        with Scratch(opened) as scratch:
            scratch.take(result.numel() * 4)
    return result, of_sums, *state, longest, of_keys


def _efficient_backward(
    grad_out_: torch.Tensor, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, bias: _Optional,
    out: torch.Tensor, cu_seqlens_q: _Optional, cu_seqlens_k: _Optional, max_seqlen_q: int, max_seqlen_k: int,
    logsumexp: torch.Tensor, dropout_p: float, philox_seed: torch.Tensor, philox_offset: torch.Tensor,
    custom_mask_type: int, bias_requires_grad: bool, *, scale: float | None = None,
    num_splits_key: int | None = None, window_size: int | None = None, shared_storage_dqdkdv: bool = False,
) -> tuple[_Optional, ...]:  # fmt: skip
    _refuse(bias=bias, window_size=window_size)
    opened = open_torch_device(query.device)
    seed = int(philox_seed) if dropout_p and values.is_computed() else 0
    options = _Options(dropout_p, custom_mask_type, scale, seed)
    packed = cu_seqlens_q is not None
    count = query.shape[0] if cu_seqlens_q is None else cu_seqlens_q.shape[0] - 1

    def sums_of(number: int, length: int) -> torch.Tensor:
        return alias(logsumexp)[number, :, :length]

    tensors = [each[0] if packed else each for each in (grad_out_, query, key, value, out)]
    starts = cu_seqlens_q, cu_seqlens_k
    found = _backward(tensors[0], tensors[1], tensors[2], tensors[3], tensors[4], starts, options, sums_of)
    heads = query.shape[2]
    with Scratch(opened) as outer:
        outer.contiguous(grad_out_)
        gradients = [adopt(each[None] if packed else each, opened) for each in found]
        with Scratch(opened) as scratch:
            rows = math.prod(query.shape[:3]) * 4
            if query.dtype in HALVES:
                scratch.take(rows)
            else:
                product = scratch.take(rows * value.shape[3])
                total = scratch.take(rows)
                scratch.take(rows)
                scratch.free(total)
                scratch.free(product)
            workspace = Scratch(opened)
            queries = count, heads, max_seqlen_q, query.shape[3]
            workspace.take(efficient_workspace(query.dtype, queries, max_seqlen_k, value.shape[3]))
            scratch.close()
            workspace.close()
    return (*gradients, None)


PACKED_KERNELS: dict[str, Callable[..., Any]] = {
    "aten::_flash_attention_forward": _flash,
    "aten::_flash_attention_backward": _flash_backward,
    "aten::_efficient_attention_forward": _efficient,
    "aten::_efficient_attention_backward": _efficient_backward,
}
