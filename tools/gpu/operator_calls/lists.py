"""Operators on lists of tensors: foreach, norms, optimizers, and joins of many."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from gpu.operator_calls.call import Kit, Run, calls_of, crossed, in_proportion

__all__ = ["FAMILIES"]

_OPERATORS: dict[str, Callable[[Any, list[Any]], object]] = {
    "_foreach_norm": lambda torch, given: torch._foreach_norm(given),
    "_foreach_norm inf": lambda torch, given: torch._foreach_norm(given, float("inf")),
    "_foreach_norm 1": lambda torch, given: torch._foreach_norm(given, 1),
    "_foreach_add": lambda torch, given: torch._foreach_add(given, given),
    "_foreach_mul number": lambda torch, given: torch._foreach_mul(given, 2.0),
    "_foreach_mul tensor": lambda torch, given: torch._foreach_mul(given, torch.ones((), device=given[0].device)),
    "_foreach_mul_": lambda torch, given: torch._foreach_mul_(given, 1.0),
    "_foreach_max": lambda torch, given: torch._foreach_max(given),
    "_foreach_lerp": lambda torch, given: torch._foreach_lerp(given, given, 0.5),
    "_foreach_addcdiv_": lambda torch, given: torch._foreach_addcdiv_(given, given, given, 0.0),
    "_foreach_sqrt": lambda torch, given: torch._foreach_sqrt(given),
    "_foreach_copy_": lambda torch, given: torch._foreach_copy_(given, given[::-1]),
    "_foreach_zero_": lambda torch, given: torch._foreach_zero_(given),
    "_foreach_pow": lambda torch, given: torch._foreach_pow(given, 2.0),
    "_foreach_clamp_max": lambda torch, given: torch._foreach_clamp_max(given, 1.0),
    "cat": lambda torch, given: torch.cat(given),
    "stack": lambda torch, given: torch.stack(given),
    "cat of columns": lambda torch, given: torch.cat(given, 1),
    "cat with types": lambda torch, given: torch.cat([*given, given[0].half()]),
    "block_diag": lambda torch, given: torch.block_diag(*given[:10]),
    "flatten_dense": lambda torch, given: torch._utils._flatten_dense_tensors(given),
    "_chunk_cat": lambda torch, given: torch._chunk_cat(given, 0, 2),
    "pad_sequence": lambda torch, given: torch.nn.utils.rnn.pad_sequence(given),
    "cartesian": lambda torch, given: torch.cartesian_prod(given[0][0, :50], given[-1][0, :50]),
}


def _operate(kit: Kit, operator: str, tensors: int, shape: Sequence[int], dtype: str = "float32") -> Run:
    torch, function = kit.torch, _OPERATORS[operator]
    given = [kit.tensor(shape, dtype) for _ in range(tensors)]
    return lambda: function(torch, given)


def _parameters(kit: Kit, tensors: int, rows: int, dtype: str) -> list[Any]:
    torch = kit.torch
    made = [
        kit.tensor([rows, 256 if at % 2 else 1], dtype, grad=True) for at in range(tensors)
    ]  # alternately matrices and vectors
    for each in made:
        each.grad = torch.ones_like(each)
    return made


def _clip(
    kit: Kit, tensors: int, rows: int = 512, dtype: str = "float32", foreach: bool | None = None, norm: float = 2.0
) -> Run:
    parameters = _parameters(kit, tensors, rows, dtype)
    return lambda: kit.torch.nn.utils.clip_grad_norm_(parameters, 1.0, norm, foreach=foreach)


def _step(kit: Kit, optimizer: str, tensors: int, rows: int = 512, dtype: str = "float32", **options: Any) -> Run:
    """A step of an optimizer. The first call makes its state, the second uses it."""
    parameters = _parameters(kit, tensors, rows, dtype)
    made = getattr(kit.torch.optim, optimizer)(parameters, lr=0.01, **options)
    step: Run = made.step
    return step


def _unscale(kit: Kit, tensors: int, rows: int = 512) -> Run:
    torch = kit.torch
    gradients = [each.grad for each in _parameters(kit, tensors, rows, "float32")]
    found, inverse = torch.zeros(1, device=kit.device), torch.ones(1, device=kit.device)
    return lambda: torch._amp_foreach_non_finite_check_and_unscale_(gradients, found, inverse)


_FAMILY = "lists of tensors"
_OPTIONS: tuple[dict[str, Any], ...] = ({}, {"foreach": False}, {"fused": True})

FAMILIES = {
    _FAMILY: [
        *in_proportion(
            [
                calls_of(_FAMILY, "list", _operate, crossed(tensors=[40], shape=[[512, 256]], operator=[*_OPERATORS])),
                calls_of(_FAMILY, "list", _operate, [
                    *crossed(tensors=[1, 500], shape=[[300, 300]],
                             operator=["_foreach_norm", "_foreach_max", "_foreach_add", "cat", "stack"]),
                    *crossed(tensors=[40], shape=[[512, 256]], dtype=["bfloat16"],
                             operator=["_foreach_norm", "_foreach_norm inf", "_foreach_max", "_foreach_add", "cat"]),
                    *crossed(tensors=[2000], shape=[[1, 64]], operator=["cat", "stack"]),
                ]),
                calls_of(_FAMILY, "step", _step, [
                    {"optimizer": optimizer, "tensors": 40, **options, **more}
                    for optimizer, more in (("AdamW", {}), ("SGD", {"momentum": 0.9}), ("Adam", {"amsgrad": True}))
                    for options in _OPTIONS
                ]),
                calls_of(_FAMILY, "step", _step, crossed(
                    optimizer=["Adagrad", "RMSprop", "Adadelta", "Adamax", "NAdam", "RAdam", "Rprop", "ASGD"],
                    tensors=[40])),
                calls_of(_FAMILY, "clip_grad_norm", _clip, [
                    {"tensors": 40}, {"tensors": 400}, {"tensors": 40, "foreach": False},
                    {"tensors": 40, "norm": float("inf")}, {"tensors": 40, "dtype": "bfloat16"},
                ]),
                calls_of(_FAMILY, "unscale", _unscale, [{"tensors": 40}, {"tensors": 400}]),
            ]
        )
    ]
}  # fmt: skip
