"""Benchmarks of forebay on Apple's GPU, beside torch.mps if PyTorch is installed: medians, alternating in a process."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from typing import Any

from gpu.part import Job, Outcome, execute
from gpu.timing import REPETITIONS, Comparison, Side, markdown, microseconds

import forebay
from forebay import mps

SMALL, LARGE = 1 << 10, 1 << 22  # elements
SOURCE = """
#include <metal_stdlib>
using namespace metal;
kernel void scale(device float* x, constant float& factor, uint at [[thread_position_in_grid]]) { x[at] *= factor; }
"""


def torch_with_mps() -> Any:
    """Return PyTorch if it is installed and finds the GPU, else None."""
    try:
        torch = import_module("torch")
    except ImportError:
        return None
    return torch if torch.backends.mps.is_available() else None


def measure(torch: Any, count: int) -> Iterator[Comparison]:
    """Yield the comparisons."""
    libraries = {"forebay": forebay} if torch is None else {"forebay": forebay, "PyTorch": torch}

    def sides(make: Any) -> list[Side]:
        return [(name, make(library)) for name, library in libraries.items()]

    def synchronize() -> None:
        for library in libraries.values():
            library.mps.synchronize()

    def allocate(library: Any) -> Any:
        return lambda: library.empty(SMALL, device="mps")

    def fill(elements: int) -> Any:
        def make(library: Any) -> Any:
            memory = library.zeros(elements, device="mps")
            return memory.zero_

        return make

    def clone(library: Any) -> Any:
        memory = library.zeros(LARGE, device="mps")
        return memory.clone

    def to_host(library: Any) -> Any:
        memory = library.zeros(SMALL, device="mps")
        return memory.cpu

    def kernel(library: Any) -> Any:
        memory = library.zeros(SMALL, device="mps")
        scale = library.mps.compile_shader(SOURCE).scale
        return lambda: scale(memory, 1.0)

    def event(library: Any) -> Any:
        recorded = library.mps.Event()

        def work() -> None:
            recorded.record()
            recorded.query()

        return work

    def normal(library: Any) -> Any:
        memory = library.zeros(LARGE, device="mps")
        return memory.normal_

    few, fewest = max(count // 10, 3), max(count // 100, 3)
    yield microseconds("allocate and free 4 KiB, from the cache", sides(allocate), count, synchronize)
    yield microseconds("queue a fill of 4 KiB", sides(fill(SMALL)), count, synchronize)
    yield microseconds("fill 4 KiB", sides(fill(SMALL)), count, synchronize, completed=True)
    yield microseconds("fill 16 MiB", sides(fill(LARGE)), few, synchronize, completed=True)
    yield microseconds("copy 16 MiB on the device", sides(clone), few, synchronize, completed=True)
    yield microseconds("copy 4 KiB to the host", sides(to_host), few, synchronize, completed=True)
    yield microseconds("launch a kernel of `compile_shader`", sides(kernel), count, synchronize)
    yield microseconds("record and query an event", sides(event), few, synchronize)
    yield microseconds("draw 4 Mi normal numbers", sides(normal), fewest, synchronize, completed=True)


def compare(job: Job) -> Outcome:
    """Measure."""
    torch = torch_with_mps()
    mps.synchronize()
    table = markdown(list(measure(torch, 5 if job.quick else 1000)))
    version = "" if torch is None else f", beside PyTorch {torch.__version__}"
    return Outcome("ok", f"medians of {REPETITIONS} repetitions{version}", table)


if __name__ == "__main__":
    execute(compare)
