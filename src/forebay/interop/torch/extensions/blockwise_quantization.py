"""Quantization in blocks, each scaled by its largest absolute value (absmax), as bitsandbytes' kernels compute it."""

from __future__ import annotations

import torch

__all__ = ["BLOCK_OF_STATES", "absmax_of_rows", "dequantize", "quantize", "unpack"]

BLOCK_OF_STATES = 256  # elements of a block of an optimizer's state, and of a block of absmax values
# The levels of 4 bits: normal floats of "QLoRA: Efficient Finetuning of Quantized LLMs", and floats with two bits of
# exponent and one of mantissa, whose eight others are negative.
_NORMAL_FLOATS = (
    -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635, -0.18477343022823334,
    -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
    0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0,
)  # fmt: skip
_FLOATS = (0.0, 0.0625 / 12, 8 / 12, 1.0, 4 / 12, 6 / 12, 2 / 12, 3 / 12)
_FLOAT_CODES = (0, 1, 6, 7, 4, 5, 2, 3)  # by size, and the limits between them as the kernel rounds them
_FLOAT_LIMITS = (0.00260417, 0.0859375, 0.20833333, 0.29166667, 0.4166667, 0.583333, 0.8333333)
_NEGATIVE = 8  # the bit of the sign


def quantize(source: torch.Tensor, levels: torch.Tensor | str, block: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the codes of numbers of shape (n,), and the largest absolute value of each block.

    `levels` are the levels of codes of 8 bits in order, of shape (256,), or the name of those of 4 bits, "nf4" or
    "fp4". Codes are of uint8: one to a byte, or two to a byte if they have 4 bits. `block` is a number of elements.
    """
    blocks = _in_blocks(source.float(), block)
    absmax = absmax_of_rows(blocks)
    scaled = (blocks * (1 / absmax).unsqueeze(1)).flatten()[: source.numel()]
    if not isinstance(levels, str):
        codes = _nearest(scaled, levels)
    elif levels == "nf4":
        codes = _nearest(scaled, _table("nf4"))
    else:
        codes = torch.tensor(_FLOAT_CODES)[torch.bucketize(scaled.abs(), torch.tensor(_FLOAT_LIMITS))]
        codes = codes + _NEGATIVE * (scaled < 0)
    codes = torch.where(scaled.isnan(), 0, codes).to(torch.uint8)
    return (_pack(codes) if isinstance(levels, str) else codes), absmax


def dequantize(
    codes: torch.Tensor, absmax: torch.Tensor, levels: torch.Tensor | str, block: int, dtype: torch.dtype
) -> torch.Tensor:
    """Return the numbers, of shape (n,), of codes of uint8, one to a byte: see `quantize`."""
    table = _table(levels) if isinstance(levels, str) else levels
    scales = absmax.repeat_interleave(block)[: codes.numel()]
    return table[codes.int()].mul_(scales).to(dtype)


def absmax_of_rows(rows: torch.Tensor) -> torch.Tensor:
    """Return the largest absolute values of rows. As in the kernels, elements that are not numbers do not count."""
    return rows.abs().nan_to_num(nan=0.0, posinf=torch.inf).amax(dim=1)


def unpack(packed: torch.Tensor, count: int) -> torch.Tensor:
    """Return the first codes of 4 bits, one to a byte."""
    return torch.stack((packed >> 4, packed & 15), dim=-1).flatten()[:count]


def _table(name: str) -> torch.Tensor:
    levels = _NORMAL_FLOATS if name == "nf4" else (*_FLOATS, *(-each for each in _FLOATS))
    return torch.tensor(levels, dtype=torch.float32)


def _nearest(scaled: torch.Tensor, levels: torch.Tensor) -> torch.Tensor:
    """Return the positions of the nearest levels: in the middle of two, the lower one of 16, the even one of 256."""
    middles = (levels[1:] + levels[:-1]) * 0.5
    found = torch.bucketize(scaled, middles)
    if len(levels) == 16:
        return found
    is_middle = (found < len(middles)) & (scaled == middles[found.clamp(max=len(middles) - 1)])
    return torch.where(is_middle & (found % 2 == 1), found + 1, found)


def _in_blocks(source: torch.Tensor, block: int) -> torch.Tensor:
    return torch.nn.functional.pad(source, (0, -source.numel() % block)).view(-1, block)


def _pack(codes: torch.Tensor) -> torch.Tensor:
    even = torch.nn.functional.pad(codes, (0, codes.numel() % 2)).view(-1, 2)
    return even[:, 0] << 4 | even[:, 1]
