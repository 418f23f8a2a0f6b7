"""Optimizers, and a network of matrix products in each precision: what they keep, and what each step takes."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 -- its usual name

from gpu.workloads.training import ADAM_FOR_LOOP, ADAMW, ADAMW_FUSED, SGD, Recipe, training
from gpu.workloads.workload import Setting, Step, workload

__all__ = ["multilayer_perceptron"]

WIDTH, LAYERS = 1024, 8


def multilayer_perceptron(setting: Setting, recipe: Recipe, *, compiled: bool = False) -> Step:
    """Return a training step of a network whose parameters have several sizes."""
    layers: list[Any] = []
    for number in range(setting.layers(LAYERS)):
        inner = WIDTH * (1 + number % 3)
        layers += [nn.Linear(WIDTH, inner), nn.GELU(), nn.Linear(inner, WIDTH), nn.LayerNorm(WIDTH)]
    model: Any = nn.Sequential(*layers).to(setting.device)
    called = torch.compile(model) if compiled else model
    x = torch.randn(setting.batch(1024), WIDTH, device=setting.device)
    return training(setting, model, lambda: F.mse_loss(called(x).float(), x), recipe)


workload("adamw_foreach")(partial(multilayer_perceptron, recipe=Recipe(ADAMW)))
workload("adamw_fused")(partial(multilayer_perceptron, recipe=Recipe(ADAMW_FUSED, autocast="fp16", to_zero=True)))
workload("adam_for_loop")(partial(multilayer_perceptron, recipe=Recipe(ADAM_FOR_LOOP, cleared_last=True)))
workload("sgd_momentum")(partial(multilayer_perceptron, recipe=Recipe(SGD, to_zero=True)))


@workload("perceptron_tf32")
def perceptron_tf32(setting: Setting) -> Step:
    torch.set_float32_matmul_precision("high")
    return multilayer_perceptron(setting, Recipe(partial(torch.optim.SGD, lr=1e-2)))


@workload("embeddings_adagrad")
def embeddings_adagrad(setting: Setting) -> Step:
    """Train large tables, whose gradients are as large as they are."""
    rows, width, fields = 200_000, 64, 8
    model = nn.ModuleDict(
        {
            "table": nn.EmbeddingBag(rows, width, mode="sum"),
            "network": nn.Sequential(nn.Linear(width, 256), nn.ReLU(), nn.Linear(256, 1)),
        }
    ).to(setting.device)
    chosen = torch.randint(rows, (setting.batch(8192), fields), device=setting.device)
    clicked = torch.rand(len(chosen), device=setting.device).round()

    def loss() -> Any:
        return F.binary_cross_entropy_with_logits(model["network"](model["table"](chosen))[:, 0], clicked)

    return training(setting, model, loss, Recipe(partial(torch.optim.Adagrad, lr=1e-2)))
