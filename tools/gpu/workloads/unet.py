"""A U-Net with attention and embedded times: a diffusion step, its sampling, and segmentation."""

from __future__ import annotations

import copy
import math
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 -- its usual name

from gpu.workloads.training import ADAMW, SGD, Recipe, mixed_precision, training
from gpu.workloads.workload import Setting, Step, workload

__all__ = ["UNet"]

TIMES = 1000
GROUPS = 8


class ResidualBlock(nn.Module):
    """Two convolutions, to whose middle the time is added."""

    def __init__(self, one: int, other: int, embedded: int) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.GroupNorm(GROUPS, one), nn.SiLU(), nn.Conv2d(one, other, 3, padding=1))
        self.time = nn.Linear(embedded, other)
        self.second = nn.Sequential(nn.GroupNorm(GROUPS, other), nn.SiLU(), nn.Conv2d(other, other, 3, padding=1))
        self.shortcut = nn.Conv2d(one, other, 1) if one != other else nn.Identity()

    def forward(self, x: Any, time: Any) -> Any:
        made = self.first(x) + self.time(time)[:, :, None, None]
        return self.second(made) + self.shortcut(x)


class Attention(nn.Module):
    """Attention between the pixels of an image."""

    def __init__(self, width: int, heads: int = 4) -> None:
        super().__init__()
        self.norm, self.heads = nn.GroupNorm(GROUPS, width), heads
        self.inputs, self.output = nn.Conv2d(width, 3 * width, 1), nn.Conv2d(width, width, 1)

    def forward(self, x: Any) -> Any:
        batch, width, height, breadth = x.shape
        q, k, v = self.inputs(self.norm(x)).view(batch, 3, self.heads, -1, height * breadth).transpose(3, 4).unbind(1)
        mixed = F.scaled_dot_product_attention(q, k, v).transpose(2, 3)
        return x + self.output(mixed.reshape(batch, width, height, breadth))


class UNet(nn.Module):
    """Blocks down to a quarter of the side and up again, with concatenated shortcuts."""

    def __init__(self, outputs: int = 3, widths: tuple[int, ...] = (64, 128, 256), embedded: int = 256) -> None:
        super().__init__()
        self.embedded = embedded
        self.time = nn.Sequential(nn.Linear(embedded, embedded), nn.SiLU(), nn.Linear(embedded, embedded))
        self.start = nn.Conv2d(3, widths[0], 3, padding=1)
        pairs = list(zip((widths[0], *widths), widths, strict=False))
        self.down = nn.ModuleList(ResidualBlock(one, other, embedded) for one, other in pairs)
        self.shrink = nn.ModuleList(nn.Conv2d(each, each, 3, 2, 1) for each in widths[:-1])
        self.middle = ResidualBlock(widths[-1], widths[-1], embedded)
        self.attention = Attention(widths[-1])
        self.up = nn.ModuleList(ResidualBlock(2 * other, one, embedded) for one, other in reversed(pairs))
        self.end = nn.Sequential(
            nn.GroupNorm(GROUPS, widths[0]), nn.SiLU(), nn.Conv2d(widths[0], outputs, 3, padding=1)
        )

    def forward(self, x: Any, times: Any) -> Any:
        half = self.embedded // 2
        rates = torch.exp(-math.log(10_000) / half * torch.arange(half, device=x.device))
        angles = times[:, None].float() * rates
        time = self.time(torch.cat([angles.cos(), angles.sin()], dim=1))
        x, kept = self.start(x), []
        for number, block in enumerate(self.down):
            x = block(x, time)
            kept.append(x)
            if number < len(self.shrink):
                x = self.shrink[number](x)
        x = self.attention(self.middle(x, time))
        for number, block in enumerate(self.up):
            if number:
                x = F.interpolate(x, scale_factor=2.0)
            x = block(torch.cat([x, kept.pop()], dim=1), time)
        return self.end(x)


@workload("diffusion_bf16")
def diffusion_bf16(setting: Setting) -> Step:
    """Predict the noise of images, with an average of the weights."""
    model = UNet().to(setting.device)
    average = copy.deepcopy(model).requires_grad_(False)
    remaining = torch.linspace(1e-4, 0.02, TIMES, device=setting.device).neg().add(1).cumprod(0)
    batch, side = setting.batch(16), setting.length(64)
    images = torch.randn(batch, 3, side, side, device=setting.device)

    def loss() -> Any:
        times = torch.randint(TIMES, (batch,), device=setting.device)
        noise = torch.randn_like(images)
        share = remaining[times][:, None, None, None]
        noisy = share.sqrt() * images + (1 - share).sqrt() * noise
        return F.mse_loss(model(noisy, times).float(), noise)

    train = training(setting, model, loss, Recipe(ADAMW, autocast="bf16", most_norm=1.0))

    def step() -> Any:
        value = train()
        with torch.no_grad():
            for mean, weight in zip(average.parameters(), model.parameters(), strict=True):
                mean.lerp_(weight, 0.001)
        return value

    return step


@workload("diffusion_sampling")
def diffusion_sampling(setting: Setting) -> Step:
    """Remove noise in a few steps, with guidance, which doubles the batch."""
    model = UNet().to(setting.device).eval()
    batch, side = setting.batch(8), setting.length(64)

    def step() -> Any:
        with torch.no_grad():
            x = torch.randn(batch, 3, side, side, device=setting.device)
            for at in range(4, 0, -1):
                times = torch.full((2 * batch,), at * 200, device=setting.device)
                with mixed_precision(setting, "fp16"):
                    free, guided = model(torch.cat([x, x]), times).float().chunk(2)
                x = x - 0.1 * (free + 4.0 * (guided - free))
            return x.mean()

    return step


@workload("unet_fp32")
def unet_fp32(setting: Setting) -> Step:
    """Segment images."""
    classes = 21
    model = UNet(classes).to(setting.device)
    batch, side = setting.batch(8), setting.length(96)
    images = torch.randn(batch, 3, side, side, device=setting.device)
    masks = torch.randint(classes, (batch, side, side), device=setting.device)
    times = torch.zeros(batch, device=setting.device)
    return training(setting, model, lambda: F.cross_entropy(model(images, times), masks), Recipe(SGD))
