"""Random numbers of forebay and of PyTorch on the same GPU, with the same seed, compared bit for bit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import forebay
from gpu.part import Job, Outcome, compared_with, execute, optional_module

SEED = 2_026
LAST = 10.0  # seconds in which the largest comparison ends
SIZES = (1, 1000, (1 << 20) + 1, 1 << 26)
FLOATS = ("float32", "float64", "float16", "bfloat16")

# Name, types, and a function of the module (forebay or torch), the number of elements and the keywords of the tensor.
Draw = Callable[[Any, int, dict[str, Any]], Any]
DRAWS: tuple[tuple[str, tuple[str, ...], Draw], ...] = (
    ("rand", FLOATS, lambda module, count, like: module.rand(count, **like)),
    ("randn", FLOATS, lambda module, count, like: module.randn(count, **like)),
    ("randint below 1000", ("int64", *FLOATS), lambda module, count, like: module.randint(0, 1000, (count,), **like)),
    ("randint below 2^40", ("int64",), lambda module, count, like: module.randint(0, 1 << 40, (count,), **like)),
    ("bernoulli", (*FLOATS, "int64"), lambda module, count, like: module.empty(count, **like).bernoulli_(0.3)),
)


def numbers(module: Any, draw: Draw, count: int, dtype: str) -> list[Any]:
    """Return the bits of two draws, of which the second begins where the first one ended."""
    module.manual_seed(SEED)
    like = {"dtype": getattr(module, dtype), "device": "cuda"}
    size = np.dtype("float16" if dtype == "bfloat16" else dtype).itemsize
    bits = getattr(module, f"int{8 * size}")  # NumPy has no bfloat16
    return [np.array(draw(module, count, like).view(bits).cpu().numpy()) for _ in range(2)]


def difference(name: str, ours: list[Any], theirs: list[Any]) -> str:
    """Return a line about the first difference, or an empty one."""
    for number, (one, other) in enumerate(zip(ours, theirs, strict=True), 1):
        different = np.flatnonzero(one != other)
        if different.size:
            at = int(different[0])
            values = f"bits {one[at]:#x}, PyTorch {other[at]:#x}"
            return f"* {name}, draw {number}: {different.size:,} numbers differ, first at {at}: {values}"
    return ""


def compare(job: Job) -> Outcome:
    """Compare every distribution with every type and size."""
    torch = optional_module("torch", "PyTorch")
    sizes = SIZES[:2] if job.quick else SIZES
    cases = [(name, draw, count, dtype) for count in sizes for name, dtypes, draw in DRAWS for dtype in dtypes]
    wrong: list[str] = []
    for number, (name, draw, count, dtype) in enumerate(cases):
        if job.remaining() < LAST:
            return Outcome("failed" if wrong else "incomplete", f"{number} of {len(cases)} draws were compared", wrong)
        ours, theirs = (numbers(module, draw, count, dtype) for module in (forebay, torch))
        wrong += filter(None, [difference(f"{name}, {dtype}, {count:,} numbers", ours, theirs)])
        forebay.cuda.empty_cache()
        torch.cuda.empty_cache()
        job.save(Outcome("incomplete", f"{number + 1} of {len(cases)} draws were compared", wrong))
    equal = f"{len(cases) - len(wrong)} of {len(cases)} draws are equal, bit for bit"
    return Outcome(*compared_with(torch, wrong, equal), wrong)


if __name__ == "__main__":
    execute(compare)
