"""Runs of a workload with its allocator statistics: peaks, and the size of every allocation in order.

# Note [Phases]
A run has a phase for the preparation and one for each step. The peak of each phase is measured by itself, so that the
temporary memory of a compiler, or the workspaces that a first call allocates, do not hide the later steps. Python's
cycle collector runs between phases only: it would free tensors at moments that depend on the version of Python.

torch._dynamo is imported before. PyTorch imports it at the first use of an optimizer, for example, and the import
leaves a cycle of frames (torch.fx.wrap keeps one) that holds the tensors of all its callers until the collector runs.
Test: tests/interop/torch/test_gpu_truth.py::test_prediction_agrees_with_the_gpu
"""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch._dynamo  # see Note [Phases]

from gpu.workloads.sequences import encoded
from gpu.workloads.workload import Setting, Workload

__all__ = ["record"]

_ENTRIES = 4_000_000  # of the history, which grows as needed and has no stacks
_SIZES = {"alloc": "sizes", "segment_alloc": "segments", "segment_map": "segments"}  # by the action of an entry


def record(workload: Workload, setting: Setting, *, values: bool = True) -> dict[str, Any]:
    """Run a workload and return what was measured.

    Parameters
    ----------
    workload : Workload
        The program.
    setting : Setting
        Where it runs. Statistics are measured on "cuda" only.
    values : bool, default True
        Whether tensors have values: the losses must then be finite.
    """
    start = time.perf_counter()
    measure = _Allocator() if setting.device == "cuda" else _Nothing()
    losses = []
    with _defaults():
        torch.manual_seed(0)
        with measure.phase("prepare"):
            step = workload.prepare(setting)
        for number in range(workload.steps):
            with measure.phase(f"step {number + 1}"):
                losses.append(step())
    seconds = time.perf_counter() - start
    found: dict[str, Any] = {"steps": workload.steps, **measure.results()}
    if values:
        read = [float(each) for each in losses]
        found["losses"] = [each if math.isfinite(each) else str(each) for each in read]  # JSON has no other numbers
    found["seconds"] = round(seconds, 3)
    return found


@contextmanager
def _defaults() -> Iterator[None]:
    """Restore the global settings of PyTorch that workloads change, and run the cycle collector only when asked."""
    collected = gc.isenabled()
    precision, in_cudnn = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    gc.collect()
    gc.freeze()  # the objects of large packages, through which each collection would go
    gc.disable()
    try:
        yield
    finally:
        gc.unfreeze()
        torch.set_float32_matmul_precision(precision)
        torch.backends.cudnn.allow_tf32 = in_cudnn
        if collected:
            gc.enable()


class _Nothing:
    """Phases on a device without allocator statistics."""

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        del name
        yield
        gc.collect()

    def results(self) -> dict[str, Any]:
        return {}


class _Allocator(_Nothing):
    """Phases on a GPU, with the statistics and the history of its caching allocator."""

    def __init__(self) -> None:
        torch.cuda.init()
        torch.cuda.memory._record_memory_history("all", context=None, stacks="python", max_entries=_ENTRIES)  # noqa: SLF001 -- the only name
        self._phases: list[dict[str, Any]] = []
        self._counts = [torch.cuda.memory_stats().get("allocation.all.allocated", 0)]

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        torch.cuda.reset_peak_memory_stats()
        with super().phase(name):
            yield
        torch.cuda.synchronize()
        statistics = torch.cuda.memory_stats()
        self._counts.append(statistics.get("allocation.all.allocated", 0))
        measured = {
            "allocated": statistics.get("allocated_bytes.all.current", 0),
            "peak_allocated": statistics.get("allocated_bytes.all.peak", 0),
            "reserved": statistics.get("reserved_bytes.all.current", 0),
            "peak_reserved": statistics.get("reserved_bytes.all.peak", 0),
            "retries": statistics.get("num_alloc_retries", 0),
        }
        self._phases.append({"name": name, **measured})

    def results(self) -> dict[str, Any]:
        """Return the phases and the peaks, and end the history."""
        trace = torch.cuda.memory._snapshot()["device_traces"][torch.cuda.current_device()]  # noqa: SLF001 -- as above
        torch.cuda.memory._record_memory_history(None)  # noqa: SLF001 -- as above
        parts = _by_phase(trace, [count - self._counts[0] for count in self._counts[1:]])
        earlier: dict[str, str] = {}
        for phase, part in zip(self._phases, parts, strict=True):
            sizes = encoded(part["sizes"])
            phase["count"] = len(part["sizes"])
            phase["segments"] = encoded(part["segments"])
            key = repr(sizes)
            if part["sizes"] and key in earlier:
                phase["sizes_of"] = earlier[key]
            else:
                earlier[key] = phase["name"]
                phase["sizes"] = sizes
        peaks = {peak: max(each[peak] for each in self._phases) for peak in ("peak_allocated", "peak_reserved")}
        return {**peaks, "phases": self._phases}


def _by_phase(trace: list[dict[str, Any]], ends: list[int]) -> list[dict[str, list[int]]]:
    """Return the sizes of allocations and segments in each phase; it ends after so many allocations since the start."""
    parts: list[dict[str, list[int]]] = [{"sizes": [], "segments": []} for _ in ends]
    allocations = number = 0
    for entry in trace:
        if (kind := _SIZES.get(entry["action"])) is None:
            continue
        while allocations >= ends[number] and number < len(ends) - 1:  # a segment is reserved for the next allocation
            number += 1
        parts[number][kind].append(entry["size"])
        allocations += kind == "sizes"
    return parts
