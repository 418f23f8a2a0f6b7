"""Steps of optimizers as bitsandbytes' kernels compute them, with states of 32 or 8 bits."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch

from forebay.interop.torch.extensions.blockwise_quantization import BLOCK_OF_STATES, dequantize, quantize

__all__ = ["OPTIMIZERS", "TWO_STATES", "Hyperparameters", "QuantizedState", "update", "update_quantized"]

OPTIMIZERS = ("adam", "momentum", "rmsprop", "lion", "adagrad", "ademamix")
TWO_STATES = ("adam", "ademamix")  # or more: AdEMAMix has a third one
_DECAY_IN_GRADIENT = ("momentum", "rmsprop", "adagrad")


class Hyperparameters(NamedTuple):
    """Hyperparameters of a step."""

    # beta1, beta2, beta3, alpha, eps: constants of the optimizer.
    beta1: float
    beta2: float
    beta3: float
    alpha: float
    eps: float
    weight_decay: float
    step: int  # number of the step, from 1
    learning_rate: float
    gradient_scale: float  # factor of the gradient
    skip_zeros: bool  # whether elements with a gradient of zero are left as they are


class QuantizedState(NamedTuple):
    """A state of 8 bits."""

    codes: torch.Tensor  # shape (n,)
    levels: torch.Tensor  # shape (256,)
    absmax: torch.Tensor  # the largest absolute value of each block


def update(
    name: str, parameter: torch.Tensor, gradient: torch.Tensor, states: list[torch.Tensor], hyper: Hyperparameters,
    norm: torch.Tensor | None = None, max_norm: float = 0.0, parameter_norm: float = 0.0,
) -> None:  # fmt: skip
    """Take a step with states of 32 bits: change the parameter and the states, all of shape (n,).

    `name` is in `OPTIMIZERS`. There is one state, for Adam two, for AdEMAMix its first, second and slow moments. If
    `max_norm` is positive, the update's norm is at most this multiple of `parameter_norm`, and `norm`, of shape (1,),
    receives the sum of squares of the update; of Lion the sum of its state.
    """
    dtype = gradient.dtype
    scaled = (gradient.float() * hyper.gradient_scale).to(dtype).float()
    limited = norm if max_norm > 0 and name != "ademamix" else None
    factor = 1.0
    if limited is not None:
        if name != "lion":  # which uses the norm of the step before
            limited.fill_(_square_norm(name, scaled, states, hyper))
        slack = 0.0 if name == "adam" else hyper.eps
        found, allowed = math.sqrt(max(0.0, limited.item())), max_norm * parameter_norm + slack
        factor = allowed / found if found > allowed else 1.0
    decayed = scaled
    if hyper.weight_decay > 0 and name in _DECAY_IN_GRADIENT:
        decayed = (scaled + parameter.float() * hyper.weight_decay).to(dtype).float()
    new_parameter, new_states = _step(name, parameter, decayed, decayed, states, hyper, factor)
    changed = decayed != 0 if hyper.skip_zeros and name != "ademamix" else None
    for old, new in zip((parameter, *states), (new_parameter, *new_states), strict=True):
        old.copy_(new if changed is None else torch.where(changed, new, old))
    if limited is not None and name == "lion":
        limited.fill_((states[0] * hyper.beta2 + (1 - hyper.beta2) * scaled).sum())


def update_quantized(
    name: str, parameter: torch.Tensor, gradient: torch.Tensor, states: list[QuantizedState], hyper: Hyperparameters
) -> None:
    """Take a step with states of 8 bits: change the states, and the parameter, of shape (n,).

    `name` is in `OPTIMIZERS`.
    """
    given = gradient.float()
    scaled = given * hyper.gradient_scale
    if hyper.weight_decay > 0 and name in _DECAY_IN_GRADIENT:
        scaled = scaled + parameter.float() * hyper.weight_decay
    old_states = [dequantize(each.codes, each.absmax, each.levels, BLOCK_OF_STATES, torch.float32) for each in states]
    # The step of RMSprop and Adagrad has the gradient itself, without scale and decay.
    new_parameter, new_states = _step(name, parameter, scaled, given, old_states, hyper, 1.0, is_quantized=True)
    if name in TWO_STATES:
        changed = given.isfinite()
        new_states = [torch.where(changed, each, 0.0) for each in new_states]
    else:
        changed = given != 0 if hyper.skip_zeros else torch.ones_like(given, dtype=torch.bool)
        new_states = [torch.where(changed, new, old) for new, old in zip(new_states, old_states, strict=True)]
    parameter.copy_(torch.where(changed, new_parameter, parameter))
    for at, (state, new) in enumerate(zip(states, new_states, strict=True)):
        codes, absmax = quantize(new, state.levels, BLOCK_OF_STATES)
        if not (name in TWO_STATES and at == 1):  # that state has no sign
            codes = _with_sign_of(new, codes, state.levels)
        state.codes.copy_(codes)
        state.absmax.copy_(absmax)


def _step(
    name: str, parameter: torch.Tensor, gradient: torch.Tensor, numerator: torch.Tensor, states: list[torch.Tensor],
    hyper: Hyperparameters, factor: float, *, is_quantized: bool = False,
) -> tuple[torch.Tensor, list[torch.Tensor]]:  # fmt: skip
    """Return the new parameter and the new states."""
    beta1, beta2, beta3, alpha, eps, decay, step, rate = hyper[:8]
    dtype, old, first = parameter.dtype, parameter.float(), states[0]
    kept = 1 - rate * decay if decay > 0 else 1.0
    if name in TWO_STATES:
        first = first * beta1 + (1 - beta1) * gradient
        second = states[1] * beta2 + (1 - beta2) * gradient * gradient
        correction1, correction2 = 1 - beta1**step, math.sqrt(1 - beta2**step)
        if name == "adam":
            change = -factor * rate * correction2 / correction1 * (first / (second.sqrt() + eps * correction2))
            slow = []
        else:
            slow = [states[2] * beta3 + (1 - beta3) * gradient]
            change = -rate * ((first / correction1 + alpha * slow[0]) / (second.sqrt() / correction2 + eps))
        new = (old + change).to(dtype)
        return (new if kept == 1 else (new.float() * kept).to(dtype)), [first, second, *slow]
    if name == "momentum":
        first = gradient if step == 1 else first * beta1 + gradient
        change = -factor * rate * first
    elif name == "lion":
        old = old if kept == 1 else (old * kept).to(dtype).float()
        change = -factor * rate * (first * beta1 + (1 - beta1) * gradient).sign()
        change = change.to(dtype).float() if is_quantized else change  # the kernel keeps it in the gradient
        first = first * beta2 + (1 - beta2) * gradient
    else:
        squares = gradient * gradient
        first = first + squares if name == "adagrad" else first * beta1 + (1 - beta1) * squares
        change = -(1.0 if name == "adagrad" else factor) * rate * (numerator / (first.sqrt() + eps))
    return (old + change).to(dtype), [first]


def _square_norm(name: str, gradient: torch.Tensor, states: list[torch.Tensor], hyper: Hyperparameters) -> torch.Tensor:
    """Return the sum of squares of an update without decay."""
    squares = gradient * gradient
    if name == "adam":
        first = (states[0] * hyper.beta1 + (1 - hyper.beta1) * gradient) / (1 - hyper.beta1**hyper.step)
        second = (states[1] * hyper.beta2 + (1 - hyper.beta2) * squares) / (1 - hyper.beta2**hyper.step)
        change = first / (second.sqrt() + hyper.eps)
    elif name == "momentum":
        change = gradient if hyper.step == 1 else states[0] * hyper.beta1 + gradient
    else:
        state = states[0] + squares if name == "adagrad" else states[0] * hyper.beta1 + (1 - hyper.beta1) * squares
        change = gradient / (state.sqrt() + hyper.eps)
    return change.square().sum()


def _with_sign_of(numbers: torch.Tensor, codes: torch.Tensor, levels: torch.Tensor) -> torch.Tensor:
    """Return the codes, or the next ones where they would have another sign than the numbers."""
    differs = levels[codes.int()].signbit() != numbers.signbit()
    return torch.where(differs, codes + torch.where(numbers > 0, 1, -1).to(torch.uint8), codes)
