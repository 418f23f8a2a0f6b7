"""A run of a program on the CPU, on an emulated device with values, and without."""

from __future__ import annotations

import gc
import math
from typing import NamedTuple

import torch

import forebay
from forebay.interop.torch import patch
from forebay.interop.torch.devices.values import DataDependent
from packages.program import Program

__all__ = ["Comparison", "compare"]


class Run(NamedTuple):
    """Results of an emulated run: the loss (0 without values), the peak and the bytes still allocated at the end."""

    loss: float
    peak: int
    left: int


class Comparison(NamedTuple):
    """The outcome for a program: what is wrong with it, and what was measured."""

    problems: list[str]
    text: str


def compare(program: Program) -> Comparison:
    """Run a program in the three ways, and compare."""
    problems: list[str] = []
    expected = None if program.on_gpu_only else program.run("cpu").item()
    with_values = run_emulated(program, "compute")
    found = with_values.loss
    if not math.isfinite(found):
        problems.append(f"the loss is {found}")
    elif expected is not None and not abs(found - expected) <= 1e-3 * abs(expected) + 1e-5:
        problems.append(f"the loss is {found}, and on the CPU {expected}")
    try:
        without = run_emulated(program, "strict")
    except DataDependent as error:
        if not program.reads_values:
            problems.append(str(error))
        assumed = run_emulated(program, "shapes")
        if assumed.peak < with_values.peak:
            problems.append(f"the peak is {with_values.peak:,} bytes, and with assumed values {assumed.peak:,}")
        return Comparison(problems, f"peak {assumed.peak:,} bytes with assumed values: {program.reads_values}")
    if program.reads_values:
        problems.append("it was expected to need values")
    if without.peak != with_values.peak:
        problems.append(f"the peak is {with_values.peak:,} bytes, and without values {without.peak:,}")
    problems += [f"{each.left:,} bytes stay allocated" for each in (with_values, without) if each.left]
    return Comparison(problems, f"loss {found:.6g}, peak {with_values.peak:,} bytes")


def run_emulated(program: Program, mode: str) -> Run:
    with forebay.emulate("cuda", profile="h100"), patch(mode):  # type: ignore[arg-type]  # one of two
        loss = program.run("cuda")
        value = loss.item() if mode == "compute" else 0.0
        peak = torch.cuda.max_memory_allocated()
        del loss
        gc.collect()
        torch._C._cuda_clearCublasWorkspaces()  # noqa: SLF001 -- the only name of this function
        return Run(value, peak, torch.cuda.memory_allocated())
