"""Memory that PyTorch's fused kernels of attention take: sizes of tiles, states of dropout and workspaces."""

from __future__ import annotations

import torch

from forebay.interop.torch.devices import values
from forebay.interop.torch.devices.emulated_memory import adopt
from forebay.interop.torch.devices.generators import host_generator
from forebay.runtime.devices.open_device import OpenDevice

__all__ = ["HALVES", "efficient_workspace", "flash_size", "numbers", "round_up", "seed_of"]

HALVES = (torch.float16, torch.bfloat16)


def round_up(number: int, unit: int) -> int:
    """Return the next multiple of `unit`."""
    return -(-number // unit) * unit


def flash_size(size: int) -> int:
    """Return the size of heads to which Flash Attention pads its accumulators."""
    return round_up(size, 32 if size <= 128 else 64)


def seed_of(device: torch.device, dropout: float) -> int:
    """Return the seed of a call's dropout; 0 without."""
    return host_generator(device).initial_seed() if dropout and values.is_computed() else 0


def numbers(opened: OpenDevice, length: int | None, dtype: torch.dtype, first: int) -> torch.Tensor:
    """Return a tensor of the device with a number, as the state of dropout."""
    made = torch.empty([] if length is None else [length], dtype=dtype, device=values.device())
    if values.is_computed():
        made.view(-1).view(torch.int64)[0] = first
    return adopt(made, opened)


def efficient_workspace(dtype: torch.dtype, queries: tuple[int, int, int, int], keys: int, value_size: int) -> int:
    """Return the bytes of the accumulators of the efficient backward pass.

    Their tiles depend on the sizes of the heads. `queries` are the sequences, heads, queries of the longest sequence,
    and size of a head; `keys` the keys of the longest sequence; `value_size` is the size of a head of the values.
    """
    batch, heads, time, size = queries
    widest = max(size, value_size)
    is_half = dtype in HALVES
    rows, columns = (64, 64) if widest <= 64 else (128, 128) if is_half and 96 < widest <= 128 else (128, 64)
    width = 128 if is_half and 64 < widest <= 128 else 64  # of the product that accumulates the queries' gradient
    elements = -(-time // rows) * -(-size // width) * (rows * width + 4)
    if is_half and widest > 128:
        elements += round_up(keys, columns) * (round_up(size, rows) + round_up(value_size, rows))
    return batch * heads * round_up(elements, 4) * 4
