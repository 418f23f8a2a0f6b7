"""A run of a program on the CPU, on an emulated device with values, and without."""

from __future__ import annotations

import gc
import math
import time
import traceback
from typing import NamedTuple

import torch

import forebay
from forebay.interop.torch import patch
from forebay.interop.torch.devices.values import DataDependent
from packages.program import Program
from packages.results import Result, difference

__all__ = ["compare"]


class Run(NamedTuple):
    """Results of an emulated run: the loss (0 without values), the peak and the bytes still allocated at the end."""

    loss: float
    peak: int
    left: int


def compare(program: Program) -> Result:
    """Run a program in the three ways, and compare."""
    started = time.process_time()
    expected = None if program.on_gpu_only else program.run("cpu").item()
    found, (with_values, run) = math.nan, attempt(program, "compute")
    if run is not None:
        found = run.loss
        if not math.isfinite(found):
            with_values = f"the loss is {found}"
        elif expected is not None and not abs(found - expected) <= 1e-3 * abs(expected) + 1e-5:
            with_values = f"the loss is {found}, and on the CPU {expected}"
        elif run.left and not program.reads_values:
            with_values = f"{run.left:,} bytes stay allocated"
    without, assumed, other = "", 0, None
    try:
        other = run_emulated(program, "strict")
        if program.reads_values:
            without = "it was expected to need values"
        elif other.left:
            without = f"{other.left:,} bytes stay allocated"
    except DataDependent as error:
        if program.reads_values:
            assumed = 1
            without, other = attempt(program, "shapes")
        else:
            without = str(error)
    except Exception as error:  # noqa: BLE001 -- of any package
        without = repr(error)
    peaks = run.peak if run else 0, other.peak if other else 0
    if not with_values and not without:
        without = difference(*peaks, assumed=bool(assumed))
    return Result(program.name, "", "", with_values, without, peaks, assumed, time.process_time() - started)


def attempt(program: Program, mode: str) -> tuple[str, Run | None]:
    """Return the error of a run, "" if there is none, and its results."""
    try:
        return "", run_emulated(program, mode)
    except Exception as error:  # noqa: BLE001 -- of any package
        traceback.print_exc()
        return repr(error), None


def run_emulated(program: Program, mode: str) -> Run:
    with forebay.emulate("cuda", profile="h100"), patch(mode):  # type: ignore[arg-type]  # one of two
        loss = program.run("cuda")
        value = loss.item() if mode == "compute" else 0.0
        peak = torch.cuda.max_memory_allocated()
        del loss
        gc.collect()
        torch._C._cuda_clearCublasWorkspaces()  # noqa: SLF001 -- the only name of this function
        return Run(value, peak, torch.cuda.memory_allocated())
