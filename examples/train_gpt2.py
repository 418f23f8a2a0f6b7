"""Train a language model of GPT-2's form on CUDA: `forebay run --emulate cuda@rtx_4090 --shapes-only train_gpt2.py`."""

from __future__ import annotations

import argparse

import torch
from torch import nn
from torch.nn import functional

SIZES = {"small": (12, 768, 12), "medium": (24, 1024, 16), "large": (36, 1280, 20), "xl": (48, 1600, 25)}
VOCABULARY = 50257


class Block(nn.Module):
    """Attention and feed-forward layer, each added to its input."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.project = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.feed = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        parts = self.qkv(self.norm_1(x)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        y = functional.scaled_dot_product_attention(*parts.unbind(), is_causal=True)
        x = x + self.project(y.transpose(1, 2).reshape(batch, length, width))
        return x + self.feed(self.norm_2(x))


class Gpt2(nn.Module):
    """The model; called with tokens, it returns the scores of the next ones."""

    def __init__(self, layers: int, width: int, heads: int, length: int) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(VOCABULARY, width), nn.Embedding(length, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.tokens(ids) + self.positions(torch.arange(ids.shape[1], device=ids.device))
        return functional.linear(self.norm(self.blocks(x)), self.tokens.weight)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", choices=SIZES, default="small")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--length", type=int, default=1024)
    parser.add_argument("--steps", type=int, default=2)
    options = parser.parse_args()
    with torch.device("cuda"):
        model = Gpt2(*SIZES[options.size], options.length)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    for _ in range(options.steps):
        ids = torch.randint(0, VOCABULARY, (options.batch, options.length + 1)).to("cuda")
        with torch.autocast("cuda", dtype=torch.bfloat16):
            scores = model(ids[:, :-1])
            loss = functional.cross_entropy(scores.flatten(0, 1), ids[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


if __name__ == "__main__":
    main()
