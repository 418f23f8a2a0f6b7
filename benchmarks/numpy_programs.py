"""Plain NumPy programs, one a case, timed in a process of their own: `numpy_programs.py CASE NBYTES forebay|system`.

Prints the nanoseconds of one round: the median of many. With `forebay`, NumPy is served from the host device. They are
the thread's processor time, page faults included: what else the machine does meanwhile is not counted. With `system`,
the device is opened all the same and serves nobody: what that leaves behind in the system's heap is worth up to 10 %
to programs of a few microseconds, either way.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from random import randrange
from statistics import median

import numpy as np

import forebay
from forebay.interop import numpy as served

Round = Callable[[], object]

# Where small arrays lie among the lines of the cache is luck, 5 % of it: each process draws anew.
_shift = [bytes(randrange(16, 4096)) for _ in range(randrange(16))]


def _pair(nbytes: int) -> tuple[np.ndarray, np.ndarray]:
    """Two arrays, each made by one call: nothing large was freed before, so the system's thresholds are low."""
    chance = np.random.default_rng(0)
    return chance.random(nbytes // 4, dtype=np.float32), chance.random(nbytes // 4, dtype=np.float32)


def temporaries(nbytes: int) -> Round:
    """The temporaries lie at the top of the system's heap, which goes back to the kernel and comes again each round."""
    a, b = _pair(nbytes)
    return lambda: np.sqrt(a * b + a) - b


def temporaries_kept(nbytes: int) -> Round:
    """A result that lives until the next one comes lets the system keep the memory, too: nothing to gain."""
    a, b = _pair(nbytes)
    kept = []

    def step() -> None:
        kept[:] = [np.sqrt(a * b + a) - b]

    return step


def softmax(nbytes: int) -> Round:
    x = _pair(nbytes)[0].reshape(-1, 1024)

    def step() -> np.ndarray:
        e = np.exp(x - x.max(axis=1, keepdims=True))
        return e / e.sum(axis=1, keepdims=True)

    return step


def layer_norm(nbytes: int) -> Round:
    x = _pair(nbytes)[0].reshape(-1, 1024)

    def step() -> np.ndarray:
        centred = x - x.mean(axis=1, keepdims=True)
        return centred / np.sqrt((centred * centred).mean(axis=1, keepdims=True) + 1e-5)

    return step


def matmul(nbytes: int) -> Round:
    side = int((nbytes // 4) ** 0.5)
    a, b = (half[: side * side].reshape(side, side) for half in _pair(nbytes))
    return lambda: a @ b


def small(nbytes: int) -> Round:
    a, b = _pair(nbytes)

    def step() -> np.ndarray:
        for _ in range(100):
            c = a + b
        return c

    return step


def zeros_untouched(nbytes: int) -> Round:
    return lambda: np.zeros(nbytes, np.uint8)


def zeros_written(nbytes: int) -> Round:
    def step() -> np.ndarray:
        made = np.zeros(nbytes // 4, np.float32)
        made += 1
        return made

    return step


def growing(nbytes: int) -> Round:
    def step() -> np.ndarray:
        made = np.zeros(1024, np.uint8)
        while made.nbytes < nbytes:
            made.resize(made.nbytes * 3 // 2, refcheck=False)
        return made

    return step


def concatenate(nbytes: int) -> Round:
    a, b = _pair(nbytes)
    return lambda: np.concatenate([a, b])


CASES = {case.__name__: case for case in (
    temporaries, temporaries_kept, softmax, layer_norm, matmul, small, zeros_untouched, zeros_written, growing,
    concatenate,
)}  # fmt: skip


def timed(step: Round, seconds: float = 0.15) -> float:
    """The median round, after a warm-up, of as many as fit in the time (at least seven)."""
    for _ in range(3):
        step()
    times = []
    end = time.perf_counter() + seconds
    while len(times) < 7 or time.perf_counter() < end:
        start = time.thread_time_ns()
        step()
        times.append(time.thread_time_ns() - start)
    return median(times)


if __name__ == "__main__":
    smallest = int(sys.argv[4]) if len(sys.argv) > 4 else served.SMALLEST
    if sys.argv[3] == "forebay":
        served.install("host:0", smallest=smallest)
    else:
        forebay.memory.memory_stats("host:0")
    print(timed(CASES[sys.argv[1]](int(sys.argv[2]))))
