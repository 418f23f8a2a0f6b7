"""A training step with the layers and sizes of the program of ../shared/data/gpu-snapshots/train_older_format.pickle.

Written from what the recorded history shows, the sizes of allocations and the names of functions: a transformer of 22
layers whose weights have 4 bits, adapters of rank 16 for queries and values, attention with fewer heads for keys and
values, and single precision for all else. The 4-bit weights are those of bitsandbytes.
"""

from __future__ import annotations

import sys

import torch
from bitsandbytes import functional as quantization
from torch import nn
from torch.nn import functional

WIDTH, INNER, HEADS, PAIRS, LAYERS, WORDS, TIMES, RANK = 2048, 5632, 32, 4, 22, 32_000, 1000, 16
HEAD = WIDTH // HEADS
BLOCK = 64  # elements with one scale


class QuantizedProduct(torch.autograd.Function):
    """The product with a 4-bit weight as bitsandbytes computed it then: it dequantizes into half precision first."""

    @staticmethod
    def forward(ctx, given, weight, state):
        ctx.kept = given, weight, state
        return functional.linear(given, quantization.dequantize_4bit(weight, state).to(given.dtype))

    @staticmethod
    def backward(ctx, gradient):
        _, weight, state = ctx.kept
        return gradient @ quantization.dequantize_4bit(weight, state).to(gradient.dtype), None, None


class Mean(torch.autograd.Function):
    """The mean of the last dimension, which kept its argument for the backward pass then."""

    @staticmethod
    def forward(ctx, given):
        ctx.save_for_backward(given)
        return given.mean(-1, keepdim=True)

    @staticmethod
    def backward(ctx, gradient):
        (given,) = ctx.saved_tensors
        return gradient.expand(given.shape) / given.shape[-1]


class Quantized(nn.Module):
    """A linear layer with a weight of 4 bits, as it is read from a file."""

    def __init__(self, inputs, outputs):
        super().__init__()
        self.weight = torch.empty(inputs * outputs // 2, 1, dtype=torch.uint8, device="cuda")
        absmax = torch.empty(inputs * outputs // BLOCK, device="cuda")
        self.state = quantization.QuantState(
            absmax, torch.Size([outputs, inputs]), torch.empty(16, device="cuda"), BLOCK, "nf4", torch.float16
        )

    def forward(self, given):
        return QuantizedProduct.apply(given, self.weight, self.state)


class Adapted(nn.Module):
    """A quantized layer with an adapter of low rank."""

    def __init__(self, inputs, outputs):
        super().__init__()
        self.base = Quantized(inputs, outputs)

    def add_adapter(self):
        rows, columns = self.base.state.shape
        self.down, self.up = nn.Linear(columns, RANK, bias=False), nn.Linear(RANK, rows, bias=False)
        self.down.to("cuda")
        self.up.to("cuda")

    def forward(self, given):
        result = self.base(given).clone()
        change = self.up(self.down(functional.dropout(given, 0.05)))
        change = change * 2.0
        return result + change


class Norm(nn.Module):
    """Division by the root of the mean square."""

    def __init__(self):
        super().__init__()
        self.gains = nn.Parameter(torch.ones(WIDTH, dtype=torch.float16, device="cuda"), requires_grad=False)

    def forward(self, given):
        variance = Mean.apply(given.pow(2))
        given = given * torch.rsqrt(variance + 1e-5)
        return self.gains * given


def all_of(given, *dimensions):
    """Return full slices of dimensions, each of which was an operator of its own then."""
    for each in dimensions:
        given = torch.ops.aten.slice(given, each, 0, sys.maxsize)
    return given


def rotate_half(given):
    first, second = given[..., : HEAD // 2], given[..., HEAD // 2 :]
    return torch.cat((-second, first), dim=-1)


def rotate(queries, keys, cosine, sine):
    queries = queries * cosine + rotate_half(queries) * sine
    keys = keys * cosine + rotate_half(keys) * sine
    return queries, keys


def repeat(given):
    batch, heads, times, size = given.shape
    return (
        all_of(all_of(given, 0, 1)[:, :, None], 3, 4)
        .expand(batch, heads, HEADS // PAIRS, times, size)
        .reshape(batch, HEADS, times, size)
    )


class Attention(nn.Module):
    """Causal attention in which several heads share keys and values."""

    def __init__(self):
        super().__init__()
        self.queries, self.keys = Adapted(WIDTH, WIDTH), Quantized(WIDTH, PAIRS * HEAD)
        self.contents, self.out = Adapted(WIDTH, PAIRS * HEAD), Quantized(WIDTH, WIDTH)
        self.frequencies = torch.empty(HEAD // 2, device="cuda")

    @torch.no_grad()
    def angles(self, times):
        frequencies = self.frequencies[None, :, None]
        times = times[:, None, :].float()
        angles = (frequencies @ times).transpose(1, 2)
        angles = torch.cat((angles, angles), dim=-1)
        return angles.cos(), angles.sin()

    def forward(self, given, times):
        queries, keys, contents = self.queries(given), self.keys(given), self.contents(given)
        queries = queries.view(1, TIMES, HEADS, HEAD).transpose(1, 2)
        keys = keys.view(1, TIMES, PAIRS, HEAD).transpose(1, 2)
        contents = contents.view(1, TIMES, PAIRS, HEAD).transpose(1, 2)
        cosine, sine = self.angles(times)
        queries, keys = rotate(queries, keys, cosine.unsqueeze(1), sine.unsqueeze(1))
        keys = repeat(keys)
        contents = repeat(contents)
        mixed = functional.scaled_dot_product_attention(queries, keys, contents, is_causal=True)
        return self.out(mixed.transpose(1, 2).contiguous().view(1, TIMES, WIDTH))


class Block(nn.Module):
    """Attention and a gated layer."""

    def __init__(self):
        super().__init__()
        self.attention = Attention()
        self.gate, self.up, self.down = Quantized(WIDTH, INNER), Quantized(WIDTH, INNER), Quantized(INNER, WIDTH)
        self.first, self.second = Norm(), Norm()

    def forward(self, given, times):
        residual = given
        given = self.first(given)
        given = self.attention(given, times)
        given = residual + given
        residual = given
        given = self.second(given)
        given = self.down(functional.silu(self.gate(given)) * self.up(given))
        return residual + given


class LanguageModel(nn.Module):
    """The model of the recorded program, prepared for training as PEFT does it."""

    def __init__(self):
        super().__init__()
        half = {"dtype": torch.float16, "device": "cuda"}
        self.words = nn.Embedding(WORDS, WIDTH, **half)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm = Norm()
        self.head = nn.Linear(WIDTH, WORDS, bias=False, **half)
        for each in self.parameters():
            each.requires_grad = False
            each.data = each.data.float()
        for each in self.modules():
            if isinstance(each, Adapted):
                each.add_adapter()

    def forward(self, tokens):
        given = self.words(tokens).requires_grad_()
        times = torch.arange(TIMES, device="cuda").unsqueeze(0)
        for block in self.blocks:
            given = block(given, times)
        given = self.norm(given)
        del times
        logits = self.head(given)
        loss = functional.cross_entropy(all_of(logits[..., :-1, :], 2).reshape(-1, WORDS), tokens[..., 1:].reshape(-1))
        return logits, loss


def forward_and_backward(model, tokens):
    logits, loss = model(tokens)
    loss.backward()
    return logits, loss
