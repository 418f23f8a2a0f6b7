"""Graphs: captured copies, fills and random fills are replayed, and compared with the same work done at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import forebay
from forebay import cuda
from gpu.part import Job, Outcome, execute

SEED = 20_26
REPLAYS = 3


def copies(tensors: dict[str, Any]) -> None:
    """Copy between tensors: contiguous, and with strides."""
    tensors["a"].copy_(tensors["source"])
    tensors["b"][1::2].copy_(tensors["a"][:-1:2])


def fills(tensors: dict[str, Any]) -> None:
    """Fill whole tensors and parts of them."""
    tensors["a"].zero_()
    tensors["a"][3:7].fill_(2.5)
    tensors["b"].fill_(-1.0)


def draws(tensors: dict[str, Any]) -> None:
    """Draw random numbers from the default generator."""
    tensors["a"].uniform_()
    tensors["b"].normal_(1.0, 2.0)
    tensors["c"].random_(0, 1000)


def two_streams(tensors: dict[str, Any]) -> None:
    """Fill on one stream, and copy on another one that waits for it."""
    current, other = cuda.current_stream(), tensors["stream"]
    tensors["a"].fill_(4.0)
    other.wait_stream(current)
    with cuda.stream(other):
        tensors["b"].copy_(tensors["a"])
    current.wait_stream(other)
    tensors["a"].uniform_()


WORK: dict[str, Callable[[dict[str, Any]], None]] = {
    "copies": copies,
    "fills": fills,
    "draws": draws,
    "two streams": two_streams,
}


def new_tensors(count: int) -> dict[str, Any]:
    """Return the tensors of a program, with the same contents each time."""
    tensors: dict[str, Any] = {name: forebay.zeros(count, device="cuda") for name in "ab"}
    tensors["c"] = forebay.zeros(count, dtype=forebay.int64, device="cuda")
    tensors["source"] = forebay.arange(count, dtype=forebay.float32).to("cuda")
    tensors["stream"] = cuda.Stream()
    cuda.synchronize()  # other streams use them
    return tensors


def contents(tensors: dict[str, Any]) -> list[Any]:
    cuda.synchronize()
    return [np.array(tensors[name].cpu().numpy()) for name in "abc"]


def eager(work: Callable[[dict[str, Any]], None], count: int) -> list[list[Any]]:
    """Return the contents after each of some executions."""
    tensors = new_tensors(count)
    forebay.manual_seed(SEED)
    found = []
    with cuda.stream(cuda.Stream()):
        for _ in range(REPLAYS):
            work(tensors)
            found.append(contents(tensors))
    return found


def replayed(work: Callable[[dict[str, Any]], None], count: int) -> list[list[Any]]:
    """Return the contents after each of some replays of the captured work."""
    tensors = new_tensors(count)
    warm = cuda.Stream()
    with cuda.stream(warm):
        work(tensors)  # compiles the kernels
    cuda.synchronize()
    for name in "abc":
        tensors[name].zero_()
    cuda.synchronize()
    graph = cuda.CUDAGraph()
    with cuda.graph(graph):
        work(tensors)
    forebay.manual_seed(SEED)
    found = []
    for _ in range(REPLAYS):
        graph.replay()
        found.append(contents(tensors))
    return found


def compare(job: Job) -> Outcome:
    """Compare the replays of each program with its eager executions."""
    count = 1001 if job.quick else 1_000_001
    wrong: list[str] = []
    for name, work in WORK.items():
        for number, (expected, found) in enumerate(zip(eager(work, count), replayed(work, count), strict=True)):
            for tensor, one, other in zip("abc", expected, found, strict=True):
                if (different := np.flatnonzero(one != other)).size:
                    at = int(different[0])
                    wrong.append(
                        f"* {name}, replay {number + 1}, tensor {tensor}: {different.size} of {one.size} differ, "
                        f"first at {at}: {other[at]} instead of {one[at]}"
                    )
        job.save(Outcome("incomplete", f"up to {name}", wrong))
    detail = f"{', '.join(WORK)}: {REPLAYS} replays each, {count:,} elements"
    return Outcome("failed" if wrong else "ok", detail, wrong)


if __name__ == "__main__":
    execute(compare)
