"""PyTorch on emulated GPUs with values: the time of operators in half precision, against single precision.

Run it with PyTorch: `.venv/torch/bin/python benchmarks/bench_torch_halves.py`. The smallest of some times is shown.
"""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter
from typing import Any

import torch
from measure import show, table
from torch.nn import functional as F  # noqa: N812 -- PyTorch's usual name

import forebay
from forebay.interop.torch import patch

SECONDS = 0.4  # of each measurement
TYPES = (torch.float32, torch.float16, torch.bfloat16)
OPERATORS: dict[str, tuple[Callable[..., torch.Tensor], tuple[tuple[int, ...], ...]]] = {
    "conv1d": (lambda x, w: F.conv1d(x, w, padding=1), ((8, 64, 256), (64, 64, 3))),
    "conv2d": (lambda x, w: F.conv2d(x, w, padding=1), ((2, 64, 28, 28), (64, 64, 3, 3))),
    "conv2d, 64 groups": (lambda x, w: F.conv2d(x, w, padding=1, groups=64), ((2, 64, 28, 28), (64, 1, 3, 3))),
    "conv3d": (lambda x, w: F.conv3d(x, w, padding=1), ((1, 16, 8, 14, 14), (16, 16, 3, 3, 3))),
    "conv_transpose2d": (lambda x, w: F.conv_transpose2d(x, w, stride=2), ((2, 32, 14, 14), (32, 32, 4, 4))),
    "linear": (F.linear, ((256, 256), (256, 256), (256,))),
    "bmm": (torch.bmm, ((16, 64, 64), (16, 64, 64))),
    "attention": (F.scaled_dot_product_attention, ((2, 4, 128, 64),) * 3),
    "layer_norm": (lambda x: F.layer_norm(x, (512,)), ((512, 512),)),
    "group_norm": (lambda x: F.group_norm(x, 8), ((8, 64, 28, 28),)),
    "batch_norm": (lambda x: F.batch_norm(x, None, None, training=True), ((8, 64, 28, 28),)),
    "max_pool2d": (lambda x: F.max_pool2d(x, 2), ((4, 64, 56, 56),)),
    "gelu": (F.gelu, ((512, 512),)),
    "unfold": (lambda x: F.unfold(x, 3), ((2, 16, 56, 56),)),
    "grid_sample": (lambda x, g: F.grid_sample(x, g, align_corners=False), ((2, 16, 56, 56), (2, 56, 56, 2))),
}


def seconds(call: Callable[..., torch.Tensor], shapes: Any, dtype: torch.dtype) -> tuple[float, float]:
    """Return the least times of the forward and the backward pass."""
    given = [torch.randn(shape, device="cuda").to(dtype).requires_grad_() for shape in shapes]
    forward, backward, end = [], [], perf_counter() + SECONDS
    while len(forward) < 3 or perf_counter() < end:
        start = perf_counter()
        result = call(*given)
        middle = perf_counter()
        torch.autograd.grad(result, given, torch.ones_like(result))
        forward.append(middle - start)
        backward.append(perf_counter() - middle)
    return min(forward), min(backward)


def main() -> None:
    torch.set_num_threads(1)
    rows = table("operators with values, ms", "", *(str(each).removeprefix("torch.") for each in TYPES), "ratios")
    with forebay.emulate("cuda", profile="h100"), patch():
        for name, (call, shapes) in OPERATORS.items():
            times = [seconds(call, shapes, dtype) for dtype in TYPES]
            for at, label in enumerate((name, f"{name}, backward")):
                ours = [each[at] for each in times]
                ratios = ", ".join(f"{each / ours[0]:.1f}" for each in ours[1:])
                rows.add_row(label, *(f"{1e3 * each:.2f}" for each in ours), ratios)
    show(rows)


if __name__ == "__main__":
    main()
