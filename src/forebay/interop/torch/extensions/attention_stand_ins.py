"""Functions of flash-attn and xformers that PyTorch's attention computes, with the memory of their kernels.

PyTorch's operator is the kernel of flash-attn: besides the result, it allocates the log-sum-exp of each query.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.functional import pad, scaled_dot_product_attention

from forebay.errors import Unsupported

__all__ = [
    "FLASH",
    "PADDING",
    "XFORMERS",
    "LowerTriangularMask",
    "flash_attn_func",
    "flash_attn_kvpacked_func",
    "flash_attn_qkvpacked_func",
    "flash_attn_varlen_func",
    "flash_attn_varlen_kvpacked_func",
    "flash_attn_varlen_qkvpacked_func",
    "flash_attn_with_kvcache",
    "index_first_axis",
    "memory_efficient_attention",
    "pad_input",
    "unpad_input",
]

_attend = torch.ops.aten._flash_attention_forward
_MULTIPLE = 8  # of the size of a head, to which flash-attn pads
_Window = tuple[int, int]


def flash_attn_func(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, dropout_p: float = 0.0, softmax_scale: float | None = None,
    causal: bool = False, window_size: _Window = (-1, -1), softcap: float = 0.0,
    alibi_slopes: torch.Tensor | None = None, deterministic: bool = False, return_attn_probs: bool = False,
) -> Any:  # fmt: skip
    """Return the attention of tensors [batch, time, heads, size]."""
    del deterministic  # which changes the order of additions
    return _flash(
        (q, k, v), (None, None), (q.shape[1], k.shape[1]), dropout_p, softmax_scale, causal, window_size, softcap,
        alibi_slopes, return_attn_probs,
    )  # fmt: skip


def flash_attn_varlen_func(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, cu_seqlens_q: torch.Tensor, cu_seqlens_k: torch.Tensor,
    max_seqlen_q: int, max_seqlen_k: int, dropout_p: float = 0.0, softmax_scale: float | None = None,
    causal: bool = False, window_size: _Window = (-1, -1), softcap: float = 0.0,
    alibi_slopes: torch.Tensor | None = None, deterministic: bool = False, return_attn_probs: bool = False,
    block_table: torch.Tensor | None = None,
) -> Any:  # fmt: skip
    """Return the attention of packed sequences [time, heads, size], which begin at `cu_seqlens`."""
    del deterministic
    if block_table is not None:
        raise Unsupported("flash_attn is not installed, and its stand-in has no paged caches: install flash-attn")
    return _flash(
        (q, k, v), (cu_seqlens_q, cu_seqlens_k), (int(max_seqlen_q), int(max_seqlen_k)), dropout_p, softmax_scale,
        causal, window_size, softcap, alibi_slopes, return_attn_probs,
    )  # fmt: skip


def flash_attn_qkvpacked_func(qkv: torch.Tensor, *args: Any, **keywords: Any) -> Any:
    """Return the attention of one tensor [batch, time, 3, heads, size]."""
    return flash_attn_func(*qkv.unbind(2), *args, **keywords)


def flash_attn_kvpacked_func(q: torch.Tensor, kv: torch.Tensor, *args: Any, **keywords: Any) -> Any:
    """Return the attention with keys and values in one tensor [batch, time, 2, heads, size]."""
    return flash_attn_func(q, *kv.unbind(2), *args, **keywords)


def flash_attn_varlen_qkvpacked_func(
    qkv: torch.Tensor, cu_seqlens: torch.Tensor, max_seqlen: int, *args: Any, **keywords: Any
) -> Any:
    """Return the attention of packed sequences in one tensor [time, 3, heads, size]."""
    q, k, v = qkv.unbind(1)
    return flash_attn_varlen_func(q, k, v, cu_seqlens, cu_seqlens, max_seqlen, max_seqlen, *args, **keywords)


def flash_attn_varlen_kvpacked_func(
    q: torch.Tensor, kv: torch.Tensor, cu_seqlens_q: torch.Tensor, cu_seqlens_k: torch.Tensor, max_seqlen_q: int,
    max_seqlen_k: int, *args: Any, **keywords: Any,
) -> Any:  # fmt: skip
    """Return the attention of packed sequences with keys and values in one tensor [time, 2, heads, size]."""
    k, v = kv.unbind(1)
    return flash_attn_varlen_func(
        q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, *args, **keywords
    )  # fmt: skip


def flash_attn_with_kvcache(*_: Any, **__: Any) -> Any:
    """Raise Unsupported: PyTorch has no attention that writes a cache."""
    raise Unsupported("flash_attn is not installed, and its stand-in has no flash_attn_with_kvcache(): install it")


def _flash(
    tensors: tuple[torch.Tensor, torch.Tensor, torch.Tensor], starts: tuple[Any, Any], longest: tuple[int, int],
    dropout: float, scale: float | None, causal: bool, window: _Window, softcap: float, slopes: torch.Tensor | None,
    with_sums: bool,
) -> Any:  # fmt: skip
    if softcap or slopes is not None:
        raise Unsupported(
            "flash_attn is not installed, and its stand-in has neither softcap nor alibi_slopes: install it, or use "
            "another implementation of attention"
        )
    size = tensors[0].shape[-1]
    if missing := -size % _MULTIPLE:
        tensors = tuple(pad(each, (0, missing)) for each in tensors)
    before, after = (None if each < 0 else each for each in window)
    result, sums, *_ = _attend(
        *tensors, *starts, *longest, dropout, causal, False, scale=size**-0.5 if scale is None else scale,
        window_size_left=before, window_size_right=after,
    )  # fmt: skip
    if missing:
        result = result[..., :size]
    return (result, sums, None) if with_sums else result


def index_first_axis(tensor: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
    """Return the rows of a tensor."""
    return tensor[indices]


def unpad_input(
    hidden_states: torch.Tensor, attention_mask: torch.Tensor, unused_mask: torch.Tensor | None = None
) -> tuple[Any, ...]:
    """Return the elements of the sequences, their indices, where they begin, the longest, and their lengths."""
    used = attention_mask if unused_mask is None else attention_mask + unused_mask
    lengths = used.sum(dim=-1, dtype=torch.int32)
    indices = torch.nonzero(used.flatten(), as_tuple=False).flatten()
    starts = pad(torch.cumsum(lengths, dim=0, dtype=torch.int32), (1, 0))
    flat = hidden_states.reshape(-1, *hidden_states.shape[2:])
    return flat[indices], indices, starts, int(lengths.max().item()), attention_mask.sum(dim=-1, dtype=torch.int32)


def pad_input(hidden_states: torch.Tensor, indices: torch.Tensor, batch: int, seqlen: int) -> torch.Tensor:
    """Return the elements at their places in a tensor [batch, time, ...]."""
    made = hidden_states.new_zeros(batch * seqlen, *hidden_states.shape[1:])
    made[indices] = hidden_states
    return made.view(batch, seqlen, *hidden_states.shape[1:])


class LowerTriangularMask:
    """The causal mask of xformers, which has no memory."""


def memory_efficient_attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, attn_bias: Any = None, p: float = 0.0,
    scale: float | None = None, **_: Any,
) -> torch.Tensor:  # fmt: skip
    """Return the attention of tensors [batch, time, heads, size], or [batch, time, size]."""
    is_flat = query.dim() == 3
    if is_flat:
        query, key, value = (each.unsqueeze(2) for each in (query, key, value))
    if query.dim() != 4 or not (attn_bias is None or isinstance(attn_bias, (torch.Tensor, LowerTriangularMask, type))):
        raise Unsupported(
            "xformers is not installed, and its stand-in has only masks that are tensors or LowerTriangularMask"
        )
    mask = attn_bias if isinstance(attn_bias, torch.Tensor) else None
    result = scaled_dot_product_attention(
        *(each.transpose(1, 2) for each in (query, key, value)), mask, p, attn_bias is not None and mask is None,
        scale=scale,
    ).transpose(1, 2)  # fmt: skip
    return result.squeeze(2) if is_flat else result


FLASH = {
    each.__name__: each
    for each in (
        flash_attn_func, flash_attn_varlen_func, flash_attn_qkvpacked_func, flash_attn_kvpacked_func,
        flash_attn_varlen_qkvpacked_func, flash_attn_varlen_kvpacked_func, flash_attn_with_kvcache,
    )
}  # fmt: skip
PADDING = {each.__name__: each for each in (index_first_axis, pad_input, unpad_input)}
XFORMERS = {"LowerTriangularMask": LowerTriangularMask, "memory_efficient_attention": memory_efficient_attention}
