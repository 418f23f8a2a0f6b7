"""NumPy programs, each timed in its own process: `numpy_programs.py CASE NBYTES forebay|system [SMALLEST]`.

Prints the median nanoseconds of one round: the thread's processor time, including page faults. With `forebay`, NumPy
allocates from the CPU device. With `system`, the device is opened but not used, because opening it changes the system's
heap, which affects programs of a few microseconds by up to 10 % in either direction.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from random import randrange
from statistics import median

import numpy as np

import forebay
from forebay.interop import numpy as hook

Round = Callable[[], object]

# The placement of small arrays in cache lines changes times by 5 %: randomise it in each process.
_shift = [bytes(randrange(16, 4096)) for _ in range(randrange(16))]


def _pair(nbytes: int) -> tuple[np.ndarray, np.ndarray]:
    """Return two arrays without freeing large memory, which would raise thresholds of the system allocator."""
    rng = np.random.default_rng(0)
    return rng.random(nbytes // 4, dtype=np.float32), rng.random(nbytes // 4, dtype=np.float32)


def temporaries(nbytes: int) -> Round:
    """Temporaries at the top of the system's heap are returned to the kernel and mapped again in each round."""
    a, b = _pair(nbytes)
    return lambda: np.sqrt(a * b + a) - b


def temporaries_kept(nbytes: int) -> Round:
    """A result that lives until the next round makes the system keep its memory, too: no gain is possible."""
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
        array = np.zeros(nbytes // 4, np.float32)
        array += 1
        return array

    return step


def growing(nbytes: int) -> Round:
    def step() -> np.ndarray:
        array = np.zeros(1024, np.uint8)
        while array.nbytes < nbytes:
            array.resize(array.nbytes * 3 // 2, refcheck=False)
        return array

    return step


def concatenate(nbytes: int) -> Round:
    a, b = _pair(nbytes)
    return lambda: np.concatenate([a, b])


CASES = {case.__name__: case for case in (
    temporaries, temporaries_kept, softmax, layer_norm, matmul, small, zeros_untouched, zeros_written, growing,
    concatenate,
)}  # fmt: skip


def timed(step: Round, seconds: float = 0.15) -> float:
    """Return the median of at least seven rounds after a warm-up, as many as fit in the time."""
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
    smallest = int(sys.argv[4]) if len(sys.argv) > 4 else hook.SMALLEST
    if sys.argv[3] == "forebay":
        hook.install("cpu", smallest=smallest)
    else:
        forebay.memory.memory_stats("cpu")
    print(timed(CASES[sys.argv[1]](int(sys.argv[2]))))
