"""Pooling, resizing, sampling and padding of images, forward and backward."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from gpu.operator_calls.call import Kit, Run, calls_of, in_proportion

__all__ = ["FAMILIES"]

_Change = Callable[[Any, Any], Any]  # torch, and the images
_OPERATORS: dict[str, _Change] = {
    "max_pool2d": lambda torch, given: torch.nn.functional.max_pool2d(given, 3, 2, 1),
    "avg_pool2d": lambda torch, given: torch.nn.functional.avg_pool2d(given, 2),
    "adaptive_avg_pool2d": lambda torch, given: torch.nn.functional.adaptive_avg_pool2d(given, 7),
    "adaptive_avg_pool2d to 1": lambda torch, given: torch.nn.functional.adaptive_avg_pool2d(given, 1),
    "adaptive_max_pool2d": lambda torch, given: torch.nn.functional.adaptive_max_pool2d(given, 7),
    "lp_pool2d": lambda torch, given: torch.nn.functional.lp_pool2d(given, 2, 2),
    "fractional_max_pool2d": lambda torch, given: torch.nn.functional.fractional_max_pool2d(
        given, 2, output_ratio=(0.5, 0.5)
    ),
    "interpolate nearest": lambda torch, given: torch.nn.functional.interpolate(given, scale_factor=2),
    "interpolate bilinear": lambda torch, given: torch.nn.functional.interpolate(
        given, scale_factor=2, mode="bilinear", align_corners=False
    ),
    "interpolate bicubic": lambda torch, given: torch.nn.functional.interpolate(given, scale_factor=2, mode="bicubic"),
    "interpolate antialias": lambda torch, given: torch.nn.functional.interpolate(
        given, scale_factor=0.5, mode="bilinear", antialias=True
    ),
    "interpolate area": lambda torch, given: torch.nn.functional.interpolate(given, scale_factor=0.5, mode="area"),
    "grid_sample": lambda torch, given: torch.nn.functional.grid_sample(
        given, torch.zeros(given.shape[0], 32, 32, 2, device=given.device, dtype=given.dtype), align_corners=False
    ),
    "grid_sample border, aligned": lambda torch, given: torch.nn.functional.grid_sample(
        given,
        torch.zeros(given.shape[0], 32, 32, 2, device=given.device, dtype=given.dtype),
        padding_mode="border",
        align_corners=True,
    ),
    "grid_sample aligned": lambda torch, given: torch.nn.functional.grid_sample(
        given, torch.zeros(given.shape[0], 32, 32, 2, device=given.device, dtype=given.dtype), align_corners=True
    ),
    "pad reflect": lambda torch, given: torch.nn.functional.pad(given, (1, 1, 2, 2), mode="reflect"),
    "pad replicate": lambda torch, given: torch.nn.functional.pad(given, (1, 1, 2, 2), mode="replicate"),
    "pad circular": lambda torch, given: torch.nn.functional.pad(given, (1, 1, 2, 2), mode="circular"),
    "pad constant": lambda torch, given: torch.nn.functional.pad(given, (1, 1, 2, 2)),
    "unfold": lambda torch, given: torch.nn.functional.unfold(given, 3, padding=1),
    "unfold, then fold": lambda torch, given: torch.nn.functional.fold(
        torch.nn.functional.unfold(given, 3, padding=1), given.shape[2:], 3, padding=1
    ),
    "pixel_shuffle": lambda torch, given: torch.nn.functional.pixel_shuffle(given, 2),
    "pixel_unshuffle": lambda torch, given: torch.nn.functional.pixel_unshuffle(given, 2),
    "channel_shuffle": lambda torch, given: torch.nn.functional.channel_shuffle(given, 4),
    "max_unpool2d": lambda torch, given: torch.nn.functional.max_unpool2d(
        *torch.nn.functional.max_pool2d(given, 2, return_indices=True), 2
    ),
    "dropout2d": lambda torch, given: torch.nn.functional.dropout2d(given, 0.2),
    "unfold of a dimension": lambda torch, given: given.unfold(2, 4, 2).contiguous(),
}
_VOLUMES: dict[str, _Change] = {
    "max_pool3d": lambda torch, given: torch.nn.functional.max_pool3d(given, 2),
    "avg_pool3d": lambda torch, given: torch.nn.functional.avg_pool3d(given, 2),
    "adaptive_avg_pool3d": lambda torch, given: torch.nn.functional.adaptive_avg_pool3d(given, 4),
    "interpolate trilinear": lambda torch, given: torch.nn.functional.interpolate(
        given, scale_factor=2, mode="trilinear"
    ),
}


def _change(
    kit: Kit, operator: str, direction: str, shape: Sequence[int], dtype: str = "float32", layout: str = ""
) -> Run | tuple[Any, Run]:
    torch = kit.torch
    function = {**_OPERATORS, **_VOLUMES}[operator]
    given = kit.tensor(shape, dtype, grad=direction == "backward", layout=layout)
    if direction == "backward":
        return kit.backward(lambda: function(torch, given), [given])
    return lambda: function(torch, given)


_BOTH = ("forward", "backward")
_IMAGES = [16, 64, 56, 56]
_LAYOUTS = (
    "max_pool2d",
    "avg_pool2d",
    "adaptive_avg_pool2d",
    "interpolate nearest",
    "interpolate bilinear",
    "grid_sample",
)
_FAMILY = "images"


def _rows(operators: Sequence[str], shape: Sequence[int], **more: str) -> list[dict[str, Any]]:
    return [
        {"operator": operator, "direction": direction, "shape": shape, **more}
        for operator in operators
        for direction in _BOTH
    ]


FAMILIES = {
    _FAMILY: [
        *in_proportion(
            [
                calls_of(_FAMILY, "image", _change, _rows([*_OPERATORS], _IMAGES)),
                calls_of(_FAMILY, "image", _change, _rows(_LAYOUTS, _IMAGES, dtype="float16", layout="channels_last")),
                calls_of(_FAMILY, "image", _change, _rows([*_VOLUMES], [2, 16, 16, 56, 56])),
                calls_of(_FAMILY, "image", _change, _rows(_LAYOUTS[:5], _IMAGES), deterministic=True),
                calls_of(_FAMILY, "image", _change, _rows(_LAYOUTS[:3], [1, 3, 224, 224])),
            ]
        )
    ]
}
