"""Convolutions: layers of VGG, ResNet, U-Net and others, forward, and backward by data and by weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gpu.operator_calls.call import Call, Kit, Run, in_proportion

__all__ = ["FAMILIES"]

DIRECTIONS = ("forward", "backward data", "backward weights")


def _layer(
    batch: int, channels: tuple[int, int], size: Sequence[int], kernel: Sequence[int], stride: int = 1,
    padding: int = 0, dilation: int = 1, groups: int = 1, transposed: bool = False,
) -> dict[str, Any]:  # fmt: skip
    found: dict[str, Any] = {"batch": batch, "channels": [*channels], "size": [*size], "kernel": [*kernel]}
    changed = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups, "transposed": transposed}
    usual = {"stride": 1, "padding": 0, "dilation": 1, "groups": 1, "transposed": False}
    return {**found, **{key: value for key, value in changed.items() if value != usual[key]}}


RESNET_FIRST = _layer(32, (3, 64), (224, 224), (7, 7), stride=2, padding=3)
RESNET_3X3 = _layer(32, (64, 64), (56, 56), (3, 3), padding=1)
RESNET_1X1 = _layer(32, (64, 256), (56, 56), (1, 1))
UNET = _layer(2, (320, 320), (64, 64), (3, 3), padding=1)
DEPTHWISE = _layer(32, (96, 96), (56, 56), (7, 7), padding=3, groups=96)
VGG = _layer(16, (256, 256), (56, 56), (3, 3), padding=1)
PATCHES = _layer(32, (3, 768), (224, 224), (16, 16), stride=16)
STRIDED = _layer(32, (128, 128), (56, 56), (3, 3), stride=2, padding=1)
DEEP = _layer(32, (512, 512), (7, 7), (3, 3), padding=1)
SHORT_1D = _layer(8, (80, 384), (3000,), (3,), padding=1)
UP = _layer(4, (512, 256), (32, 32), (2, 2), stride=2, transposed=True)
VOLUME = _layer(2, (16, 32), (16, 56, 56), (3, 3, 3), padding=1)

MAIN = (RESNET_3X3, RESNET_1X1, RESNET_FIRST, UNET, DEPTHWISE, VGG, STRIDED, DEEP, PATCHES, UP, SHORT_1D, VOLUME)
MORE = (
    _layer(32, (256, 512), (56, 56), (1, 1), stride=2),
    _layer(32, (2048, 512), (7, 7), (1, 1)),
    _layer(16, (3, 64), (224, 224), (3, 3), padding=1),
    _layer(16, (512, 512), (14, 14), (3, 3), padding=1),
    _layer(2, (1280, 1280), (16, 16), (3, 3), padding=1),
    _layer(1, (2560, 1280), (8, 8), (3, 3), padding=1),
    _layer(2, (4, 320), (64, 64), (3, 3), padding=1),
    _layer(2, (320, 4), (64, 64), (3, 3), padding=1),
    _layer(32, (192, 192), (28, 28), (3, 3), padding=1, groups=192),
    _layer(32, (256, 256), (28, 28), (3, 3), padding=1, groups=32),
    _layer(8, (256, 256), (28, 28), (3, 3), padding=2, dilation=2),
    _layer(64, (256, 128), (16, 16), (4, 4), stride=2, padding=1, transposed=True),
    _layer(8, (384, 384), (3000,), (3,), stride=2, padding=1),
    _layer(8, (1024, 1024), (512,), (4,), padding=3, groups=1024),
    _layer(4, (1, 512), (16000,), (10,), stride=5),
    _layer(4, (768, 768), (49,), (128,), padding=64, groups=16),
    _layer(2, (3, 64), (16, 112, 112), (3, 7, 7), stride=2, padding=1),
    _layer(2, (64, 32), (8, 28, 28), (2, 2, 2), stride=2, transposed=True),
    _layer(32, (192, 192), (17, 17), (1, 7), padding=0),
    _layer(1, (3, 6), (32, 32), (5, 5)),
    _layer(1, (64, 64), (56, 56), (3, 3), padding=1),
    _layer(256, (16, 16), (8, 8), (3, 3), padding=1),
    _layer(1, (16, 16), (512, 512), (5, 5), padding=2),
    _layer(128, (64, 64), (32, 32), (3, 3), padding=1),
    _layer(4, (7, 13), (33, 41), (3, 3), padding=1),
)


def _convolve(
    kit: Kit, direction: str, batch: int, channels: Sequence[int], size: Sequence[int], kernel: Sequence[int],
    stride: int = 1, padding: int = 0, dilation: int = 1, groups: int = 1, transposed: bool = False,
    dtype: str = "float32", layout: str = "", weight_layout: str | None = None, bias: bool = False,
) -> Run:  # fmt: skip
    torch, count = kit.torch, len(size)
    enter, leave = channels
    given = kit.tensor([batch, enter, *size], dtype, layout=layout)
    pair = [enter, leave // groups] if transposed else [leave, enter // groups]
    weight = kit.tensor([*pair, *kernel], dtype, layout=layout if weight_layout is None else weight_layout)
    added = kit.tensor([leave], dtype) if bias else None
    lists = [[each] * count for each in (stride, padding, dilation)]
    rest = (*lists, transposed, [0] * count, groups)
    aten = torch.ops.aten
    if direction == "forward":
        return lambda: aten.convolution(given, weight, added, *rest)
    gradient = torch.ones_like(aten.convolution(given, weight, None, *rest))
    kit.made.append(gradient)
    mask = [direction != "backward weights", direction != "backward data", bias]
    sizes = [leave] if bias else None
    return lambda: aten.convolution_backward(gradient, given, weight, sizes, *rest, mask)


def _calls(layers: Sequence[Mapping[str, Any]], directions: Sequence[str], settings: Mapping[str, Any]) -> list[Call]:
    flags = {key: value for key, value in settings.items() if key in ("benchmark", "deterministic", "tf32", "cudnn")}
    rest = {key: value for key, value in settings.items() if key not in flags}
    return [
        Call("convolutions", "convolution", _convolve, {"direction": direction, **layer, **rest}, flags)
        for layer in layers
        for direction in directions
    ]


_PLAIN = [
    *_calls(MAIN, DIRECTIONS, {}),
    *_calls(MORE, DIRECTIONS, {}),
]
_TYPED = [
    *_calls(MAIN[:6], DIRECTIONS, {"dtype": "float16", "layout": "channels_last"}),
    *_calls(MAIN[:6], DIRECTIONS, {"dtype": "bfloat16"}),
    *_calls(MAIN[6:11], DIRECTIONS, {"dtype": "float16"}),
    *_calls(MORE[8:11], DIRECTIONS, {"dtype": "bfloat16", "layout": "channels_last"}),
    *_calls([VOLUME], DIRECTIONS, {"dtype": "float16", "layout": "channels_last"}),
    *_calls([SHORT_1D], DIRECTIONS, {"dtype": "bfloat16"}),
]
_FLAGGED = [
    *_calls(MAIN[:6], DIRECTIONS, {"tf32": False}),
    *_calls(MAIN[:5], DIRECTIONS[1:], {"deterministic": True}),
    *_calls(MAIN[:4], DIRECTIONS, {"layout": "channels_last"}),
    *_calls([RESNET_3X3, RESNET_1X1, UP], ["backward both"], {"bias": True}),
    *_calls([RESNET_3X3, RESNET_1X1], ["forward"], {"bias": True}),
    *_calls([RESNET_3X3], DIRECTIONS, {"layout": "channels_last", "weight_layout": ""}),  # weights are copied
    *_calls([RESNET_3X3], DIRECTIONS, {"weight_layout": "channels_last"}),  # the input is copied
    *_calls([RESNET_3X3, RESNET_1X1], DIRECTIONS, {"dtype": "float64"}),
    *_calls([RESNET_3X3, DEPTHWISE, UP, VOLUME], DIRECTIONS, {"cudnn": False}),
]
_MEASURED = [  # cuDNN tries several algorithms: up to a second each
    *_calls([RESNET_3X3], DIRECTIONS, {"benchmark": True}),
    *_calls([RESNET_FIRST], DIRECTIONS[::2], {"benchmark": True}),
    *_calls([UNET], DIRECTIONS, {"benchmark": True, "dtype": "float16", "layout": "channels_last"}),
    *_calls([RESNET_1X1], DIRECTIONS, {"benchmark": True, "dtype": "bfloat16"}),
    *_calls([VGG], DIRECTIONS[1:], {"benchmark": True}),
    *_calls([DEPTHWISE], DIRECTIONS[1:], {"benchmark": True}),
    *_calls([SHORT_1D, VOLUME, UP], DIRECTIONS[2:], {"benchmark": True}),
    *_calls([RESNET_3X3], DIRECTIONS[1:], {"benchmark": True, "deterministic": True}),
]

FAMILIES = {"convolutions": [*in_proportion([_PLAIN, _TYPED, _FLAGGED])], "convolutions, benchmark": _MEASURED}
