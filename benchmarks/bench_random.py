"""Random numbers: fill rate of the CPU device, compared with NumPy's Philox and its fastest generator, SFC64."""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median

import numpy as np
from measure import REPETITIONS, show, table

import forebay

COUNT = 1 << 24  # elements


def rate(fill: Callable[[], object], nbytes: int) -> float:
    fill()
    times = []
    for _ in range(REPETITIONS):
        start = time.perf_counter()
        fill()
        times.append(time.perf_counter() - start)
    return nbytes / median(times) / 1e9


def completed(fill: Callable[[], object]) -> Callable[[], object]:
    def run() -> None:
        fill()
        forebay.synchronize("cpu")

    return run


def nanoseconds(call: Callable[[], object], rounds: int = 20_000) -> float:
    times = []
    for _ in range(REPETITIONS):
        start = time.perf_counter_ns()
        for _ in range(rounds):
            call()
        times.append((time.perf_counter_ns() - start) / rounds)
        forebay.synchronize("cpu")
    return median(times)


def main() -> None:
    philox, sfc = np.random.Generator(np.random.Philox(1)), np.random.Generator(np.random.SFC64(1))
    forebay.manual_seed(1)
    result = table(
        f"{COUNT >> 20} million random numbers, GB/s", "distribution and type", "forebay", "NumPy, Philox", "SFC64"
    )
    for distribution, dtype in (
        ("uniform", "float32"),
        ("uniform", "float64"),
        ("uniform", "float16"),
        ("normal", "float32"),
        ("normal", "float64"),
        ("exponential", "float32"),
        ("integers below 1000", "int64"),
        ("bernoulli", "uint8"),
    ):
        tensor = forebay.empty(COUNT, dtype=dtype, device="cpu")
        array = np.empty(COUNT, dtype)
        fills: dict[str, Callable[[], object]] = {
            "uniform": tensor.uniform_,
            "normal": tensor.normal_,
            "exponential": tensor.exponential_,
            "bernoulli": tensor.bernoulli_,
            "integers below 1000": lambda tensor=tensor: tensor.random_(1000),
        }
        figures = [f"{rate(completed(fills[distribution]), array.nbytes):.2f}"]
        for theirs in (philox, sfc):
            same: dict[str, Callable[[], object]] = {
                "integers below 1000": lambda theirs=theirs: theirs.integers(0, 1000, COUNT),
                "bernoulli": lambda theirs=theirs: theirs.integers(0, 2, COUNT, np.uint8),
            }
            if dtype in {"float32", "float64"}:
                draw = {"uniform": "random", "normal": "standard_normal", "exponential": "standard_exponential"}[
                    distribution
                ]
                same[distribution] = lambda theirs=theirs, draw=draw, dtype=dtype, array=array: getattr(theirs, draw)(
                    dtype=dtype, out=array
                )
            figures.append(f"{rate(same[distribution], array.nbytes):.2f}" if distribution in same else "")
        result.add_row(f"{distribution}, {dtype}", *figures)
    show(result)

    small = forebay.empty(8, device="cpu")
    result = table("One call", "call", "ns")
    result.add_row("uniform_ of 8, queued", f"{nanoseconds(small.uniform_):.0f}")
    result.add_row("rand(8), queued", f"{nanoseconds(lambda: forebay.rand(8, device='cpu')):.0f}")
    result.add_row("get_rng_state", f"{nanoseconds(forebay.random.get_rng_state):.0f}")
    show(result)


if __name__ == "__main__":
    main()
