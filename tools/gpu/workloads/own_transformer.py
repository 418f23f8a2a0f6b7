"""A language model of plain PyTorch, as many people write their own: training, checkpoints, and a cache of its own."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 -- its usual name
from torch.utils.checkpoint import checkpoint

from gpu.workloads.training import ADAMW_FUSED, Recipe, training
from gpu.workloads.workload import Setting, Step, workload

__all__ = ["LanguageModel", "language_model"]

VOCABULARY, WIDTH, HEADS, LAYERS, LENGTH = 8192, 512, 8, 6, 512


class Block(nn.Module):
    """Causal attention and a feed-forward network."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention, self.projection = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.network = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Any, cache: Any = None, at: int = 0) -> Any:
        batch, times, width = x.shape
        q, k, v = self.attention(self.first(x)).view(batch, times, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        if cache is not None:
            cache[0][:, :, at : at + times] = k
            cache[1][:, :, at : at + times] = v
            k, v = cache[0][:, :, : at + times], cache[1][:, :, : at + times]
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=times > 1)
        x = x + self.projection(mixed.transpose(1, 2).reshape(batch, times, width))
        return x + self.network(self.second(x))


class LanguageModel(nn.Module):
    """Embeddings, blocks and logits; the weights of the first and the last layer are the same."""

    def __init__(self, layers: int, width: int = WIDTH, *, checkpoints: bool = False) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(VOCABULARY, width), nn.Embedding(LENGTH, width)
        self.blocks = nn.ModuleList(Block(width, HEADS) for _ in range(layers))
        self.last = nn.LayerNorm(width)
        self.checkpoints = checkpoints

    def forward(self, tokens: Any, caches: Any = None, at: int = 0) -> Any:
        times = torch.arange(at, at + tokens.shape[1], device=tokens.device)
        x = self.tokens(tokens) + self.positions(times)
        for number, block in enumerate(self.blocks):
            if self.checkpoints:
                x = checkpoint(block, x, use_reentrant=False)
            else:
                x = block(x, None if caches is None else caches[number], at)
        return F.linear(self.last(x), self.tokens.weight)


def language_model(
    setting: Setting, recipe: Recipe, *, batch: int = 8, checkpoints: bool = False, compiled: bool = False
) -> Step:
    """Return a training step of the language model."""
    model: Any = LanguageModel(setting.layers(LAYERS), checkpoints=checkpoints).to(setting.device)
    called = torch.compile(model) if compiled else model
    shape = setting.batch(batch), setting.length(LENGTH) + 1
    tokens = torch.randint(VOCABULARY, shape, device=setting.device)

    def loss() -> Any:
        logits = called(tokens[:, :-1])
        return F.cross_entropy(logits.flatten(0, 1).float(), tokens[:, 1:].flatten())

    return training(setting, model, loss, recipe)


@workload("own_gpt_fp32")
def own_gpt_fp32(setting: Setting) -> Step:
    return language_model(setting, Recipe(ADAMW_FUSED))


@workload("own_gpt_bf16_clipped")
def own_gpt_bf16_clipped(setting: Setting) -> Step:
    return language_model(setting, Recipe(autocast="bf16", most_norm=1.0, cleared_last=True))


@workload("own_gpt_checkpoints")
def own_gpt_checkpoints(setting: Setting) -> Step:
    return language_model(setting, Recipe(autocast="bf16"), batch=16, checkpoints=True)


@workload("own_gpt_accumulated")
def own_gpt_accumulated(setting: Setting) -> Step:
    return language_model(setting, Recipe(autocast="bf16", to_zero=True, accumulated=3), batch=4)


@workload("own_gpt_generate")
def own_gpt_generate(setting: Setting) -> Step:
    """Generate greedily with a cache of constant size."""
    dtype = torch.bfloat16
    layers = setting.layers(LAYERS)
    model = LanguageModel(layers).to(setting.device, dtype).eval()
    batch, start, added = setting.batch(8), setting.length(256), 16
    shape = batch, HEADS, start + added, WIDTH // HEADS
    caches = [[torch.zeros(shape, device=setting.device, dtype=dtype) for _ in range(2)] for _ in range(layers)]
    prompt = torch.randint(VOCABULARY, (batch, start), device=setting.device)

    def step() -> Any:
        with torch.inference_mode():
            tokens = prompt
            given = prompt
            for _ in range(added):
                logits = model(given, caches, tokens.shape[1] - given.shape[1])
                given = logits[:, -1:].argmax(-1)
                tokens = torch.cat([tokens, given], 1)
            return tokens.sum().float()

    return step
