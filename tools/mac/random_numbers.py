"""Random numbers of Apple's GPU and of the CPU device with the same seed, compared bit for bit."""

from __future__ import annotations

from typing import Any

import numpy as np
from gpu.part import Job, Outcome, execute
from gpu.random_numbers import DRAWS, FLOATS, SEED, Draw, difference

import forebay

SIZES = (1, 1000, (1 << 20) + 1)
OTHERS: tuple[tuple[str, tuple[str, ...], Draw], ...] = (
    ("exponential", FLOATS, lambda module, count, like: module.empty(count, **like).exponential_(2.0)),
    ("cauchy", FLOATS, lambda module, count, like: module.empty(count, **like).cauchy_()),
    ("log_normal", FLOATS, lambda module, count, like: module.empty(count, **like).log_normal_()),
    ("geometric", FLOATS, lambda module, count, like: module.empty(count, **like).geometric_(0.2)),
)


def numbers(draw: Draw, count: int, dtype: str, device: str) -> list[Any]:
    """Return the bits of two draws, of which the second begins where the first one ended."""
    forebay.manual_seed(SEED)
    like = {"dtype": getattr(forebay, dtype), "device": device}
    size = np.dtype("float16" if dtype == "bfloat16" else dtype).itemsize
    bits = getattr(forebay, f"int{8 * size}")  # NumPy has no bfloat16
    return [np.array(draw(forebay, count, like).view(bits).cpu().numpy()) for _ in range(2)]


def compare(job: Job) -> Outcome:
    """Compare every distribution with every type and size."""
    sizes = SIZES[:2] if job.quick else SIZES
    wrong: list[str] = []
    compared = 0
    for name, dtypes, draw in (*DRAWS, *OTHERS):
        for dtype in dtypes:
            for count in sizes:
                ours, theirs = (numbers(draw, count, dtype, device) for device in ("mps", "cpu"))
                compared += 1
                text = difference(f"{name}, {dtype}, {count:,} numbers", ours, theirs).replace("PyTorch", "CPU device")
                wrong += filter(None, [text])
    detail = f"{compared - len(wrong)} of {compared} draws are equal to the CPU device's, bit for bit"
    return Outcome("failed" if wrong else "ok", detail, wrong)


if __name__ == "__main__":
    execute(compare)
