"""Normalizations, forward and backward."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from gpu.operator_calls.call import Kit, Run, calls_of, in_proportion

__all__ = ["FAMILIES"]


def _ended(kit: Kit, forward: Callable[[], Any], inputs: Sequence[Any], direction: str) -> Run | tuple[Any, Run]:
    return forward if direction == "forward" else kit.backward(forward, inputs)


def _batch_norm(
    kit: Kit, direction: str, shape: Sequence[int], dtype: str = "float32", layout: str = "", training: bool = True,
    affine: bool = True, weights: str = "",
) -> Run | tuple[Any, Run]:  # fmt: skip
    torch = kit.torch
    backward = direction == "backward"
    given = kit.tensor(shape, dtype, layout=layout, grad=backward)
    kind = weights or dtype
    scale, shift = (kit.tensor(shape[1:2], kind, grad=backward) if affine else None for _ in range(2))
    running = [torch.zeros(shape[1], dtype=kit.dtype(kind), device=kit.device) for _ in range(2)]

    def forward() -> Any:
        return torch.nn.functional.batch_norm(given, *running, scale, shift, training)

    return _ended(kit, forward, [given, scale, shift] if affine else [given], direction)


def _layer_norm(
    kit: Kit, direction: str, shape: Sequence[int], dtype: str = "float32", layout: str = "", rms: bool = False
) -> Run | tuple[Any, Run]:
    functional = kit.torch.nn.functional
    backward = direction == "backward"
    given = kit.tensor(shape, dtype, layout=layout, grad=backward)
    scale = kit.tensor(shape[-1:], dtype, grad=backward)
    if rms:
        return _ended(kit, lambda: functional.rms_norm(given, shape[-1:], scale), [given, scale], direction)
    shift = kit.tensor(shape[-1:], dtype, grad=backward)
    return _ended(kit, lambda: functional.layer_norm(given, shape[-1:], scale, shift), [given, scale, shift], direction)


def _group_norm(
    kit: Kit, direction: str, shape: Sequence[int], groups: int, dtype: str = "float32", layout: str = "",
    affine: bool = True,
) -> Run | tuple[Any, Run]:  # fmt: skip
    functional = kit.torch.nn.functional
    backward = direction == "backward"
    given = kit.tensor(shape, dtype, layout=layout, grad=backward)
    scale, shift = (kit.tensor(shape[1:2], dtype, grad=backward) if affine else None for _ in range(2))
    if not groups:
        return _ended(kit, lambda: functional.instance_norm(given, None, None, scale, shift), [given], direction)
    inputs = [given, scale, shift] if affine else [given]
    return _ended(kit, lambda: functional.group_norm(given, groups, scale, shift), inputs, direction)


def _local(kit: Kit, shape: Sequence[int]) -> Run:
    given = kit.tensor(shape)
    return lambda: kit.torch.nn.functional.local_response_norm(given, 5)


_BOTH = ("forward", "backward")
_IMAGES = [32, 64, 56, 56]
_BATCH = [
    {"direction": direction, **each}
    for each in (
        {"shape": _IMAGES},
        {"shape": _IMAGES, "layout": "channels_last"},
        {"shape": _IMAGES, "dtype": "float16", "layout": "channels_last", "weights": "float32"},
        {"shape": _IMAGES, "dtype": "float16"},
        {"shape": _IMAGES, "dtype": "bfloat16", "layout": "channels_last"},
        {"shape": _IMAGES, "training": False},
        {"shape": _IMAGES, "training": False, "layout": "channels_last", "dtype": "float16"},
        {"shape": [32, 1024]},
        {"shape": [4096, 256]},
        {"shape": [100_000, 64]},
        {"shape": [32, 2048, 7, 7]},
        {"shape": [32, 2048, 7, 7], "layout": "channels_last"},
        {"shape": [32, 2048, 7, 7], "layout": "channels_last", "dtype": "bfloat16", "weights": "float32"},
        {"shape": [2, 3, 5, 7]},
        {"shape": [2, 32, 16, 56, 56]},
        {"shape": [2, 32, 16, 56, 56], "layout": "channels_last", "dtype": "float16"},
        {"shape": [8, 384, 3000]},
        {"shape": _IMAGES, "affine": False},
        {"shape": _IMAGES, "dtype": "float64"},
        {"shape": [8, 512, 28, 28], "layout": "sliced"},
    )
    for direction in _BOTH
]
_LAYER = [
    {"direction": direction, **each}
    for each in (
        {"shape": [8192, 768]},
        {"shape": [8192, 4096], "dtype": "bfloat16"},
        {"shape": [70_000, 768]},  # more than 64 Ki rows: the gradient of weights has a kernel of its own
        {"shape": [65_536, 256]},
        {"shape": [65_537, 256]},
        {"shape": [131_072, 64], "dtype": "bfloat16"},
        {"shape": [32, 56, 56, 96]},
        {"shape": [4, 33, 1023]},
        {"shape": [64, 128], "layout": "transposed"},
        {"shape": [8192, 4096], "dtype": "bfloat16", "rms": True},
        {"shape": [70_000, 1024], "rms": True},
        {"shape": [128, 768], "dtype": "float16", "rms": True},
    )
    for direction in _BOTH
]
_GROUP = [
    {"direction": direction, **each}
    for each in (
        {"shape": [2, 320, 64, 64], "groups": 32},
        {"shape": [2, 320, 64, 64], "groups": 32, "dtype": "float16"},
        {"shape": [2, 320, 64, 64], "groups": 32, "layout": "channels_last"},
        {"shape": [2, 320, 64, 64], "groups": 32, "layout": "channels_last", "dtype": "bfloat16"},
        {"shape": [8, 64, 16, 16], "groups": 8, "affine": False},
        {"shape": [4, 512, 3000], "groups": 1},
        {"shape": [16, 128, 7], "groups": 32},
        {"shape": [8, 64, 64, 64], "groups": 0},
        {"shape": [8, 64, 64, 64], "groups": 0, "dtype": "float16", "layout": "channels_last"},
    )
    for direction in _BOTH
]

FAMILIES = {
    "normalization": [
        *in_proportion(
            [
                calls_of("normalization", "batch_norm", _batch_norm, _BATCH),
                calls_of("normalization", "batch_norm", _batch_norm, _BATCH[:4], cudnn=False),
                calls_of("normalization", "layer_norm", _layer_norm, _LAYER),
                calls_of("normalization", "group_norm", _group_norm, _GROUP),
                calls_of("normalization", "local_response_norm", _local, [{"shape": [8, 64, 28, 28]}]),
            ]
        )
    ]
}
