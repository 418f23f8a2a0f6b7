"""Training steps in the precisions and with the optimizers that programs use."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from gpu.workloads.workload import Setting, Step

__all__ = ["ADAMW", "ADAMW_FUSED", "ADAM_FOR_LOOP", "SGD", "Recipe", "mixed_precision", "training"]

MakeOptimizer = Callable[[Iterable[Any]], Any]

ADAMW: MakeOptimizer = partial(torch.optim.AdamW, lr=1e-3)  # foreach, the default on a GPU
ADAMW_FUSED: MakeOptimizer = partial(torch.optim.AdamW, lr=1e-3, fused=True)
ADAM_FOR_LOOP: MakeOptimizer = partial(torch.optim.Adam, lr=1e-3, foreach=False)
SGD: MakeOptimizer = partial(torch.optim.SGD, lr=1e-2, momentum=0.9)

_MIXED = {"bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass(frozen=True)
class Recipe:
    """The training of a model: its optimizer, precision and batches."""

    optimizer: MakeOptimizer = ADAMW
    autocast: str = ""  # "bf16", or "fp16", which has a GradScaler
    to_zero: bool = False  # zero_grad(set_to_none=False)
    cleared_last: bool = False  # zero_grad() at the end of a step, not at its start
    accumulated: int = 1  # passes before each step of the optimizer
    most_norm: float = 0.0  # of the gradient; 0: it is not clipped


def mixed_precision(setting: Setting, precision: str) -> AbstractContextManager[Any]:
    """Return the context of a forward pass."""
    if not precision:
        return nullcontext()
    dtype = _MIXED[precision if setting.device == "cuda" else "bf16"]  # few operators of the CPU have fp16
    context: AbstractContextManager[Any] = torch.autocast(setting.device, dtype=dtype)
    return context


def training(setting: Setting, model: Any, loss: Callable[[], Any], recipe: Recipe) -> Step:
    """Return a training step.

    Parameters
    ----------
    setting : Setting
        Where it runs.
    model : torch.nn.Module
        The model, on the device.
    loss : callable
        The forward pass; returns the loss.
    recipe : Recipe
        How it is trained.
    """
    optimizer = recipe.optimizer([each for each in model.parameters() if each.requires_grad])
    scaler = torch.amp.GradScaler(setting.device, enabled=recipe.autocast == "fp16")

    def step() -> Any:
        if not recipe.cleared_last:
            optimizer.zero_grad(set_to_none=not recipe.to_zero)
        for _ in range(recipe.accumulated):
            with mixed_precision(setting, recipe.autocast):
                value = loss()
            scaler.scale(value / recipe.accumulated).backward()
        if recipe.most_norm:
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), recipe.most_norm)
        scaler.step(optimizer)
        scaler.update()
        if recipe.cleared_last:
            optimizer.zero_grad(set_to_none=not recipe.to_zero)
        return value.detach()

    return step
