"""Random fills as a plain model: one element after the other, in Python's ints and NumPy's doubles, easy to believe.

Logarithms and sines are right to a few of the last bits only; everything else is exact.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from forebay.runtime.tensors.random_permutation import philox

__all__ = ["drawn", "permuted", "philox", "shuffled", "skipped"]


def _threads(count: int, geometry: tuple[int, int]) -> int:
    multiprocessors, threads = geometry
    return min(multiprocessors * (threads // 256), -(-count // 256)) * 256


def skipped(count: int, lanes: int, geometry: tuple[int, int]) -> int:
    """How far a fill of so many elements moves the offset, where 32 bits index them all."""
    calls, part = divmod(count, _threads(count, geometry) * lanes)
    return 4 * (calls + bool(part))


def drawn(
    law: str,
    dtype: np.dtype[Any],
    count: int,
    geometry: tuple[int, int],
    state: tuple[int, int],
    *numbers: float,
    elements: range | None = None,
) -> NDArray[Any]:
    """What a fill gives to these elements (all, if none are named); `state` is the generator's seed and offset.

    `numbers` are uniform's from and to, normal's mean and deviation, exponential's rate, bernoulli's probability, and
    for integers the first, how many (0 for 2**64), and whether each is made of 64 bits, if not their number says so.
    """
    seed, offset = state
    wide = dtype == np.float64 and law != "integers"
    if law == "integers":
        wide = bool(numbers[2]) if len(numbers) > 2 else numbers[1] == 0 or numbers[1] >= 1 << 28
    threads, lanes = _threads(count, geometry), 2 if wide else 4
    made = np.empty(len(elements or range(count)), dtype)
    for at, element in enumerate(elements or range(count)):
        step, thread = divmod(element, threads)
        call, lane = divmod(step, lanes)
        words = philox(seed, thread, offset // 4 + call)
        made[at] = _number(law, dtype, words, lane, wide, numbers)
    return made


def permuted(count: int, bits: int, geometry: tuple[int, int], state: tuple[int, int]) -> list[int]:
    """What randperm gives, whose keys are of so many bits: from the generator's state on."""
    width = 32 if bits <= 32 else 64
    first, several = -1 << (width - 1), (1 << width) - 1
    keys = drawn("integers", np.dtype(f"i{width // 8}"), count, geometry, state, first, several)
    seed, offset = state
    return shuffled(keys.tolist(), bits, width, (seed, offset + skipped(count, 2, geometry)))


def shuffled(keys: list[int], bits: int, width: int, state: tuple[int, int]) -> list[int]:
    """Their places in order, equal ones shuffled from the last to the second."""
    seed, offset = state
    low = keys if bits == width else [key % (1 << bits) for key in keys]
    order = sorted(range(len(keys)), key=low.__getitem__)
    start = 0
    while start < len(order):
        run = [place for place in order[start:] if low[place] == low[order[start]]]
        words = [word for call in range(len(run)) for word in philox(seed, start, offset // 4 + call)]
        for last in range(len(run) - 1, 0, -1):
            other = words[len(run) - 1 - last] % (last + 1)
            run[last], run[other] = run[other], run[last]
        order[start : start + len(run)] = run
        start += len(run)
    return order


def _number(
    law: str, dtype: np.dtype[Any], words: tuple[int, ...], lane: int, wide: bool, numbers: tuple[float, ...]
) -> Any:
    if law == "integers":
        number = words[2 * lane] << 32 | words[2 * lane + 1] if wide else words[lane]
        value = (number % int(numbers[1]) if numbers[1] else number) + int(numbers[0])
        value = (value + (1 << 63)) % (1 << 64) - (1 << 63)
        return np.int64(value).astype(np.float32 if dtype.itemsize == 2 and dtype.kind not in "iu" else dtype)
    real = np.float64 if wide else np.float32
    if law == "normal":
        mean, deviation = real(numbers[0]), real(numbers[1])
        pair = words if wide else words[lane & 2 : (lane & 2) + 2]
        return _narrow(_normal(pair, lane & 1, wide) * float(deviation) + float(mean), dtype)
    uniform = _uniform(words[2 * lane : 2 * lane + 2] if wide else words[lane : lane + 1])
    if law == "bernoulli":
        return uniform < float(real(numbers[0]))
    if law == "exponential":
        least = 2.0**-53 if wide else 2.0**-24
        logarithm = -least if uniform >= 1 - least else math.log(uniform)
        return _narrow(-1 / float(real(numbers[0])) * logarithm, dtype)
    low, high = (np.float64(number).astype(dtype) for number in numbers)
    value = _narrow(Fraction(uniform) * Fraction(float(high - low)) + Fraction(float(low)), dtype)
    return low if value == high else value


def _uniform(words: tuple[int, ...]) -> float:
    """In (0, 1], of one word a float32's, of two a double."""
    if len(words) == 1:
        return float(np.float32(float(np.float32(np.uint32(words[0]))) * 2.0**-32 + 2.0**-33))
    return float(words[0] ^ words[1] << 21) * 2.0**-53 + 2.0**-54


def _normal(words: tuple[int, ...], which: int, wide: bool) -> float:
    if wide:
        radius = math.sqrt(-2 * math.log(_uniform(words[:2])))
        angle = math.pi * (float(words[2] ^ words[3] << 21) * 2.0**-52 + 2.0**-53)
    else:
        radius = math.sqrt(-2 * math.log(_uniform(words[:1])))
        turn = float(np.float32(2.3283064e-10) * np.float32(6.2831855))
        angle = float(np.float32(float(np.float32(np.uint32(words[1]))) * turn + turn / 2))
    return radius * (math.cos(angle) if which else math.sin(angle))


def _narrow(value: float | Fraction, dtype: np.dtype[Any]) -> Any:
    """By way of a float32, as C++ does."""
    number = np.float64(float(value))
    return number.astype(np.float32).astype(dtype) if dtype.itemsize < 8 else number
