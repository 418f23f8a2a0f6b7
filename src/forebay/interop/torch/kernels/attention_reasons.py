"""Why a fused implementation of attention cannot be used: the checks of PyTorch's CUDA build, with its texts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch

__all__ = ["Call", "cudnn_reasons", "efficient_reasons", "flash_reasons"]

_HALVES = (torch.float16, torch.bfloat16)
_OLDEST, _OLDEST_EFFICIENT, _NEWEST = (8, 0), (5, 0), (12, 1)  # capabilities for which the kernels are built
_TYPES = {
    torch.float32: "float", torch.float64: "double", torch.float16: "c10::Half", torch.bfloat16: "c10::BFloat16",
    torch.int64: "long int", torch.int32: "int", torch.int16: "short int", torch.int8: "signed char",
    torch.uint8: "unsigned char", torch.bool: "bool", torch.complex64: "c10::complex<float>",
    torch.complex128: "c10::complex<double>",
}  # fmt: skip
_NAMES = {torch.float32: "Float", torch.float16: "Half", torch.bfloat16: "BFloat16"}


class Call(NamedTuple):
    """The arguments of a call of attention, and the compute capability of its device."""

    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    mask: torch.Tensor | None
    dropout: float
    is_causal: bool
    enable_gqa: bool
    capability: tuple[int, int]

    @property
    def needs_gradient(self) -> bool:
        tensors = (self.query, self.key, self.value)
        return torch.is_grad_enabled() and any(each.requires_grad for each in tensors)


def flash_reasons(call: Call) -> Iterator[str]:
    """Yield what prevents Flash Attention, in PyTorch's order: it reports the first one."""
    size, others, values = (each.shape[-1] for each in (call.query, call.key, call.value))
    if not torch._C._get_flash_sdp_enabled():
        yield "Flash attention has been runtime disabled."
    yield from _dimensions(call)
    if call.mask is not None:
        yield "Flash Attention does not support non-null attn_mask."
    if not size == others == values or size > 256:
        yield (
            "Flash attention requires q,k,v to have the same last dimension and to be less than or equal to 256. Got "
            f"Query.size(-1): {size}, Key.size(-1): {others}, Value.size(-1): {values} instead."
        )
    yield from _architecture(call, "Flash attention only supports", _OLDEST)
    is_small = (8, 6) <= call.capability <= (8, 9) or (12, 0) <= call.capability <= _NEWEST
    if call.needs_gradient and is_small and size > 192 and (call.dropout > 0 or size <= 224):
        yield (
            "Flash attention currently doesn't support training with head_dim ∈ (192, 224] or (head_dim ∈ (224, 256] "
            "and dropout > 0.0) on gpu architectures in the range[sm86, sm89].Attempting to run with dropout set to: "
            f"{call.dropout:g}and head_dim: {size} on a sm {_version(call)} gpu."
        )
    lengths = call.query.shape[-2], call.key.shape[-2]
    if call.is_causal and lengths[0] != lengths[1]:
        yield (
            "Flash attention does not support the is_causal flag when seqlen_q != seqlen_k. Got seqlen_q: "
            f"{lengths[0]} seqlen_k: {lengths[1]}. If you would like to use causal attention with non-square masks, "
            "please see CausalAttnMask."
        )
    yield from _types(call, _HALVES if call.capability >= _OLDEST else (torch.float16,))
    yield from _heads(call, grouped=True)
    yield from _lengths(call)
    yield from _strides(call, ignores_single=True)


def efficient_reasons(call: Call) -> Iterator[str]:
    """Yield what prevents memory-efficient attention, in PyTorch's order."""
    size, others, values = (each.shape[-1] for each in (call.query, call.key, call.value))
    is_half, major = call.query.dtype in _HALVES, call.capability[0]
    if not torch._C._get_mem_efficient_sdp_enabled():
        yield "Memory Efficient attention has been runtime disabled."
    yield from _architecture(call, "Mem Efficient Attention only supports", _OLDEST_EFFICIENT)
    yield from _dimensions(call)
    alignment = 4 if major >= 8 else 1
    if major >= 8 or (major == 7 and is_half):
        alignment = max(alignment, 8 if is_half else 4)
    if size != others or not size or size % alignment or not values or values % alignment:
        yield (
            f"Mem efficient attention requires last dimension of inputs to be divisible by {alignment}. Got "
            f"Query.size(-1): {size}, Key.size(-1): {others}, Value.size(-1): {values} instead."
        )
    yield from _lengths(call)
    yield from _strides(call, ignores_single=False)
    yield from _heads(call, grouped=False)
    halves = _HALVES if major >= 8 else (torch.float16,)
    yield from _types(call, (halves[0], torch.float32, *halves[1:]))


def cudnn_reasons(call: Call) -> Iterator[str]:
    """Yield what prevents cuDNN's attention, in PyTorch's order; "" for what it does not report."""
    size, values = call.query.shape[-1], call.value.shape[-1]
    if not torch._C._get_cudnn_sdp_enabled():
        yield "cuDNN attention has been runtime disabled."
    if call.dropout * 16 % 1:
        yield (
            "cuDNN dropout probability resolution is limited to 1/16.Use a dropout probability that is a multiple of "
            "1/16 to select the cuDNN backend"
        )
    yield from _dimensions(call)
    if torch.are_deterministic_algorithms_enabled() and not torch.is_deterministic_algorithms_warn_only_enabled():
        yield "cuDNN SDPA is not deterministic."
    yield from _types(call, _HALVES if call.capability >= _OLDEST else (torch.float16,))
    if call.mask is not None and call.mask.requires_grad:
        yield ""  # PyTorch says nothing
    if call.mask is not None and not _has_usable_mask(call):
        yield (
            "Please use the following attn mask shapes: 2d - ({Q_seq_len, 1}  x {KV_seq_len, 1}); 4d - ({Batch, 1} x "
            "{Num_heads, 1} x {Q_seq_len, 1}  x {KV_seq_len, 1})"
        )
    yield from _architecture(call, "cuDNN MHA only supports", _OLDEST)
    yield from _lengths(call)
    yield from _strides(call, ignores_single=True)
    yield from _heads(call, grouped=True)
    is_large = call.capability[0] == 10 and (size, values) == (192, 128)
    limit = 256 if call.capability == (9, 0) else 192 if is_large else 128
    if max(size, values) > limit:
        yield f"head_dim should be no more than {limit}"
    if size % 8 or values % 8:
        yield "head_dim should be a multiple of 8"
    if call.key.shape[-2] == 1:
        yield "cudnn SDPA does not support key/value sequence length 1."
    if call.query.shape[-2] == 1 and call.dropout:
        yield "cudnn SDPA does not support query sequence length 1 with dropout."


def _dimensions(call: Call) -> Iterator[str]:
    counts = call.query.dim(), call.key.dim(), call.value.dim()
    if counts != (4, 4, 4):
        yield (
            "All fused kernels requires query, key and value to be 4 dimensional, but got Query dim: "
            f"{counts[0]}, Key dim: {counts[1]}, Value dim: {counts[2]} instead."
        )


def _architecture(call: Call, start: str, oldest: tuple[int, int]) -> Iterator[str]:
    if not oldest <= call.capability <= _NEWEST:
        first, last = (f"sm{major}{minor}" for major, minor in (oldest, _NEWEST))
        yield (
            f"{start} gpu architectures in the range [{first}, {last}]. Attempting to run on a sm {_version(call)} gpu."
        )


def _version(call: Call) -> str:
    return f"{call.capability[0]}.{call.capability[1]}"


def _types(call: Call, usable: tuple[torch.dtype, ...]) -> Iterator[str]:
    types = call.query.dtype, call.key.dtype, call.value.dtype
    if types[0] not in usable or not types[0] == types[1] == types[2]:
        query, key, value = (_TYPES.get(each, str(each)) for each in types)
        yield (
            f"Expected query, key and value to all be of dtype: {{{', '.join(_NAMES[each] for each in usable)}}}. Got "
            f"Query dtype: {query}, Key dtype: {key}, and Value dtype: {value} instead."
        )


def _has_usable_mask(call: Call) -> bool:
    shape = call.mask.shape if call.mask is not None else ()
    if len(shape) not in (2, 4):
        return False
    sizes = (call.query.shape[0], call.query.shape[1], call.query.shape[2], call.key.shape[2])[-len(shape) :]
    return all(given in (1, size) for given, size in zip(shape, sizes, strict=True))


def _heads(call: Call, *, grouped: bool) -> Iterator[str]:
    batches = [each.shape[0] for each in (call.query, call.key, call.value)]
    heads = [each.shape[-3] for each in (call.query, call.key, call.value)]
    advice = "To broadcast dense inputs, try using unsqueeze and expand_to before passing them into the kernel."
    if not batches[0] == batches[1] == batches[2]:  # no set: in a graph they may be symbols, which have no hash
        yield (
            "For dense inputs, both fused kernels require query, key and value to have the same batch_size. Got Query "
            f"batch_size: {batches[0]}, Key batch_size: {batches[1]}, Value batch_size: {batches[2]} instead. {advice}"
        )
    if grouped and call.enable_gqa:
        if heads[1] != heads[2]:
            sizes = (str([*each.shape]) for each in (call.key, call.value, call.query))
            key, value, query = sizes
            yield (
                "Both fused kernels require key and value to have the same num_heads and batch_size but got: Key "
                f"sizes: {key}, Value sizes: {value}, Query sizes: {query} instead."
            )
        elif not heads[1] or heads[0] % heads[1]:
            yield (
                "FlashAttentionV2 only supports grouped query attention, where the number of heads in key/value must "
                "divide number of heads in query."
            )
    elif not heads[0] == heads[1] == heads[2]:
        yield (
            "For dense input, both fused kernels require query, key and value to have the same num_heads. Got Query "
            f"num_heads: {heads[0]}, Key num_heads: {heads[1]}, Value num_heads: {heads[2]} instead. {advice}"
        )


def _lengths(call: Call) -> Iterator[str]:
    if not call.query.shape[-2] or not call.key.shape[-2]:
        yield "All fused kernels do not support zero seq_len_q or seq_len_kv."


def _strides(call: Call, *, ignores_single: bool) -> Iterator[str]:
    strides = [each.stride(-1) for each in (call.query, call.key, call.value)]
    is_usable = strides == [1, 1, 1] or (ignores_single and call.query.shape[-1] == 1)
    if is_usable and (call.mask is None or call.mask.stride(-1) == 1):
        return
    mask = "" if call.mask is None else (
        f", Attn_mask.stride(-1): {call.mask.stride(-1)} (GPU backends require attn_mask's last dimension to have "
        "stride 1 while the CPU does not)."
    )  # fmt: skip
    yield (
        "All fused kernels require the last dimension of the input to have stride 1. Got Query.stride(-1): "
        f"{strides[0]}, Key.stride(-1): {strides[1]}, Value.stride(-1): {strides[2]}{mask}"
    )
