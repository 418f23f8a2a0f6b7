"""Layers of bitsandbytes with weights of 4 bits, which are the same in each call."""

from __future__ import annotations

import torch
from bitsandbytes import nn

ROWS = 400  # of a parameter of more than 100,000 elements: bitsandbytes pages the states of such only


def layer_of_4_bits(place, kind="nf4", dtype=torch.float32, nested=False, rows=192, columns=128):
    options = {"compute_dtype": dtype, "quant_type": kind, "compress_statistics": nested}
    layer = nn.Linear4bit(columns, rows, **options)
    generator = torch.Generator().manual_seed(1)
    layer.load_state_dict(
        {"weight": torch.randn(rows, columns, generator=generator), "bias": torch.randn(rows, generator=generator)}
    )
    return layer.to(place)


def forward_and_backward(layer, place, rows):
    given = torch.randn(rows, 128, generator=torch.Generator().manual_seed(2)).to(place).requires_grad_()
    result = layer(given)
    result.sum().backward()
    return result.detach(), given.grad
