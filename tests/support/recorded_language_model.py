"""A training step with the layers and sizes of the programs of ../shared/data/gpu-snapshots.

Written from what the recorded histories show, the sizes of allocations and the names of functions: a transformer of 32
layers whose products are einsums, rotary embeddings that fill a new tensor, attention and cross entropy from elementary
operators, and an AdamW of one tensor at a time.
"""

from __future__ import annotations

import math

import torch
from torch import nn

WIDTH, INNER, HEADS, LAYERS, WORDS, BATCH = 2560, 10240, 32, 32, 10_000, 4


def cast(given):
    """Return what autocast makes of an argument of einsum."""
    return given.to(torch.bfloat16) if torch.is_autocast_enabled("cuda") else given


class Product(nn.Module):
    """A linear layer without bias."""

    def __init__(self, inputs, outputs, **options):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(outputs, inputs, **options))

    def forward(self, given):
        """Return the einsum of weights and inputs as PyTorch computed it then: the weights are the left factor."""
        batch, time, width = given.shape
        weight = cast(self.weight)
        rows = cast(given).reshape(batch * time, width)
        product = torch.bmm(weight.unsqueeze(0), rows.t().unsqueeze(0))
        return product.view(-1, batch, time).permute(1, 2, 0)


class Norm(nn.Module):
    """Division by the root of the mean square."""

    def __init__(self, width, **options):
        super().__init__()
        self.gains = nn.Parameter(torch.ones(width, **options))

    def forward(self, given):
        length = torch.linalg.vector_norm(given, dim=-1, keepdim=True)
        root = torch.sqrt(length**2 / given.shape[-1] + 1e-5)
        scaled = given / root
        gains = cast(self.gains)
        return (cast(scaled) * gains).to(given.dtype)


class Rotation(nn.Module):
    """Rotary embedding: pairs of elements are rotated by an angle that depends on the time."""

    def __init__(self, size, times, **options):
        super().__init__()
        angles = torch.outer(torch.arange(times, **options), 10_000 ** -(torch.arange(0, size, 2, **options) / size))
        self.register_buffer("cosines", angles.cos(), persistent=False)
        self.register_buffer("sines", angles.sin(), persistent=False)

    def forward(self, given, times):
        cosine = self.cosines[times].unsqueeze(1)
        sine = self.sines[times].unsqueeze(1)
        result = torch.empty_like(given)
        result[..., ::2] = given[..., ::2] * cosine - given[..., 1::2] * sine
        result[..., 1::2] = given[..., ::2] * sine + given[..., 1::2] * cosine
        return result


def softmax(given):
    largest, _ = given.max(dim=-1, keepdim=True)
    powers = torch.exp(given - largest)
    total = powers.sum(dim=-1, keepdim=True)
    return powers / total


def attention(queries, keys, contents, mask):
    scores = torch.einsum("bhqd,bhkd->bhqk", queries, keys)
    scores = scores / math.sqrt(queries.shape[-1])
    scores = scores.masked_fill(~mask, -math.inf)
    return torch.einsum("bhqk,bhkd->bhqd", softmax(scores), contents)


class Attention(nn.Module):
    """Causal attention of several heads."""

    def __init__(self, times, **options):
        super().__init__()
        self.queries, self.keys, self.contents, self.out = (Product(WIDTH, WIDTH, **options) for _ in range(4))
        self.rotation = Rotation(WIDTH // HEADS, times, device=options.get("device"))

    def forward(self, given):
        batch, time, _ = given.shape
        parts = [layer(given) for layer in (self.queries, self.keys, self.contents)]
        parts = [part.view(batch, time, HEADS, -1).transpose(1, 2) for part in parts]
        times = torch.arange(time, device=given.device).expand(batch, time)
        queries, keys = (self.rotation(part, times) for part in parts[:2])
        mask = torch.triu(torch.ones(time, time, device=given.device), diagonal=1).bool()
        mask = ~mask
        mixed = attention(queries, keys, parts[2], mask.expand(batch, HEADS, time, time))
        mixed = mixed.transpose(1, 2).reshape(batch, time, WIDTH)
        return self.out(mixed)


class Inner(nn.Module):
    """A gated layer."""

    def __init__(self, **options):
        super().__init__()
        self.gate, self.up, self.down = (
            Product(WIDTH, INNER, **options), Product(WIDTH, INNER, **options), Product(INNER, WIDTH, **options),
        )  # fmt: skip

    def forward(self, given):
        gate = self.gate(given)
        up = self.up(given)
        gate = gate * torch.sigmoid(gate)
        return self.down(gate * up)


class Block(nn.Module):
    """Attention and a gated layer."""

    def __init__(self, times, **options):
        super().__init__()
        self.first, self.attention = Norm(WIDTH, **options), Attention(times, **options)
        self.second, self.inner = Norm(WIDTH, **options), Inner(**options)

    def forward(self, given):
        given = given + self.attention(self.first(given))
        return given + self.inner(self.second(given))


class LanguageModel(nn.Module):
    """The model of the recorded programs."""

    def __init__(self, times, layers=LAYERS, **options):
        super().__init__()
        self.words = nn.Parameter(torch.empty(WORDS, WIDTH, **options))
        self.blocks = nn.ModuleList(Block(times, **options) for _ in range(layers))
        self.norm, self.head = Norm(WIDTH, **options), Product(WIDTH, WORDS, **options)

    def forward(self, tokens):
        given = self.words[tokens]
        for block in self.blocks:
            given = block(given)
        return self.head(self.norm(given))


def cross_entropy(logits, targets):
    logits, targets = logits.flatten(0, 1), targets.flatten()
    largest, _ = logits.max(dim=-1, keepdim=True)
    shifted = logits - largest
    total = torch.exp(shifted).sum(dim=-1)
    chosen = shifted[torch.arange(len(targets)), targets]
    losses = torch.log(total) - chosen
    return losses.mean()


class AdamW(torch.optim.Optimizer):
    """AdamW of one tensor at a time."""

    def __init__(self, parameters):
        super().__init__(parameters, {"lr": 1e-4})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for parameter in group["params"]:
                state = self.state[parameter]
                if not state:
                    state["first"], state["second"] = torch.zeros_like(parameter), torch.zeros_like(parameter)
                first, second = state["first"], state["second"]
                first.mul_(0.9).add_(parameter.grad, alpha=0.1)
                second.mul_(0.95).addcmul_(parameter.grad, parameter.grad, value=0.05)
                root = (second.sqrt() / 0.2).add_(1e-8)
                parameter.addcdiv_(first, root, value=-1e-4)


def training_step(model, optimizer, tokens):
    optimizer.zero_grad()
    logits = model(tokens)
    loss = cross_entropy(logits, tokens)
    loss.backward()
    optimizer.step()
    return logits, loss
