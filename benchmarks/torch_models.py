"""Transformers of the sizes of GPT-2 small and of Llama 7B, and one of 80 layers, with PyTorch's layers only."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional


class Attention(nn.Module):
    """Causal self-attention; with `rotary`, positions are rotations of queries and keys."""

    def __init__(self, width: int, heads: int, *, bias: bool, rotary: bool) -> None:
        super().__init__()
        self.heads, self.rotary = heads, rotary
        self.qkv = nn.Linear(width, 3 * width, bias=bias)
        self.out = nn.Linear(width, width, bias=bias)

    def forward(self, x: torch.Tensor, angles: torch.Tensor | None) -> torch.Tensor:
        batch, length, width = x.shape
        q, k, v = (
            part.view(batch, length, self.heads, -1).transpose(1, 2) for part in self.qkv(x).chunk(3, dim=-1)
        )  # fmt: skip
        if angles is not None:
            q, k = rotate(q, angles), rotate(k, angles)
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(1, 2).reshape(batch, length, width))


def rotate(x: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
    first, second = x.chunk(2, dim=-1)
    cosine, sine = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    return torch.cat([first * cosine - second * sine, first * sine + second * cosine], dim=-1)


class Gelu(nn.Module):
    """The feed-forward layer of GPT-2."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(functional.gelu(self.up(x), approximate="tanh"))


class Gated(nn.Module):
    """The feed-forward layer of Llama."""

    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.gate, self.up = nn.Linear(width, inner, bias=False), nn.Linear(width, inner, bias=False)
        self.down = nn.Linear(inner, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(functional.silu(self.gate(x)) * self.up(x))


class Layer(nn.Module):
    def __init__(self, width: int, attention: Attention, feed: nn.Module, norm: type[nn.Module]) -> None:
        super().__init__()
        self.norm_1, self.attention = norm(width), attention
        self.norm_2, self.feed = norm(width), feed

    def forward(self, x: torch.Tensor, angles: torch.Tensor | None) -> torch.Tensor:
        x = x + self.attention(self.norm_1(x), angles)
        return x + self.feed(self.norm_2(x))


class Transformer(nn.Module):
    """A language model that returns the loss."""

    def __init__(self, layers: int, width: int, heads: int, vocabulary: int, *, positions: int = 0, inner: int = 0):
        super().__init__()
        llama = inner > 0
        norm = nn.RMSNorm if llama else nn.LayerNorm
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(positions, width) if positions else None
        self.layers = nn.ModuleList(
            Layer(
                width, Attention(width, heads, bias=not llama, rotary=llama),
                Gated(width, inner) if llama else Gelu(width), norm,
            )
            for _ in range(layers)
        )  # fmt: skip
        self.norm = norm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        if not llama:
            self.head.weight = self.tokens.weight
        self.half = width // heads // 2

    def forward(self, ids: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        at = torch.arange(ids.shape[1], device=ids.device)
        x = self.tokens(ids)
        angles = None
        if self.positions is not None:
            x = x + self.positions(at)
        else:
            frequencies = 10000.0 ** (-torch.arange(self.half, device=ids.device) / self.half)
            angles = at[:, None] * frequencies
        for layer in self.layers:
            x = layer(x, angles)
        logits = self.head(self.norm(x))
        return functional.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())


def gpt2_small() -> Transformer:
    return Transformer(12, 768, 12, 50257, positions=1024)


def llama_7b() -> Transformer:
    return Transformer(32, 4096, 32, 32000, inner=11008)


def eighty_layers() -> Transformer:
    return Transformer(80, 8192, 64, 32000, inner=28672)


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(784, 4096), nn.ReLU(), nn.Linear(4096, 4096), nn.ReLU(), nn.Linear(4096, 10))


MODELS = {"gpt2": gpt2_small, "llama": llama_7b, "80-layers": eighty_layers}
