"""Reference model of random fills: one element at a time, with Python ints and NumPy doubles.

Logarithms and sines are accurate to a few of the last bits; all other operations are exact.
"""

from __future__ import annotations

import itertools
import math
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from forebay.runtime.tensors.random_permutation import philox

__all__ = ["drawn", "permuted", "philox", "poisson", "shuffled", "skipped"]


def _threads(count: int, geometry: tuple[int, int]) -> int:
    multiprocessors, threads = geometry
    return min(multiprocessors * (threads // 256), -(-count // 256)) * 256


def skipped(count: int, per_call: int, geometry: tuple[int, int]) -> int:
    """Return by how much a fill advances the offset, for fewer than 2**32 elements."""
    calls, part = divmod(count, _threads(count, geometry) * per_call)
    return 4 * (calls + bool(part))


def drawn(
    distribution: str,
    dtype: np.dtype[Any],
    count: int,
    geometry: tuple[int, int],
    state: tuple[int, int],
    *numbers: float,
    elements: range | None = None,
) -> NDArray[Any]:
    """Return the values that a fill stores in `elements` (default: all); `state` is the generator's seed and offset.

    `numbers` are: uniform: from, to; normal, log_normal: mean, standard deviation; exponential: rate; bernoulli,
    geometric: probability; cauchy: median, scale;
    integers: the first, their number (0 for 2**64), and optionally whether each is values of 64 bits.
    """
    seed, offset = state
    is_64bit = dtype == np.float64 and distribution != "integers"
    if distribution == "integers":
        is_64bit = bool(numbers[2]) if len(numbers) > 2 else numbers[1] == 0 or numbers[1] >= 1 << 28
    threads, per_call = _threads(count, geometry), 2 if is_64bit else 4
    values = np.empty(len(elements or range(count)), dtype)
    for at, element in enumerate(elements or range(count)):
        step, thread = divmod(element, threads)
        call, index = divmod(step, per_call)
        words = philox(seed, thread, offset // 4 + call)
        values[at] = _number(distribution, dtype, words, index, is_64bit, numbers)
    return values


def poisson(rate: float, element: int, state: tuple[int, int]) -> int:
    """Return the Poisson number of one element; `state` is the generator's seed and offset."""
    seed, offset = state
    calls = (philox(seed, element, offset // 4 + call) for call in itertools.count())
    if rate > 4000:
        return math.floor(max(math.sqrt(rate) * _normal(next(calls), 0, True) + rate + 0.5, 0))
    uniforms = (np.float32(_uniform((word,))) for words in calls for word in words)
    mean = np.float32(rate)
    if rate < 64:
        products = itertools.accumulate(uniforms, np.multiply, initial=np.float32(math.exp(mean)))
        return next(at for at, product in enumerate(products) if at and product <= 1) - 1
    root = [np.float32(1 / math.sqrt(mean - np.float32(less))) for less in (0.12400979329415655, 1.97381164089999420)]
    slope = np.float32(1.43248035075540910 * float(root[0]) + 0.00025361074907033)
    shift = np.float32(0.21096734870196546 * float(root[1]) + 0.94201734077887530)

    def below(x: float) -> float:
        return 1 / (1 + math.exp(float(slope) * (float(mean) - x) - float(shift))) ** 2

    while True:
        excess = 1 / math.sqrt(next(uniforms)) - 1
        at = float(mean) - (float(shift) + math.log(excess)) / float(slope) if excess > 0 else math.inf
        height = float(next(uniforms))
        if not math.isfinite(at):
            continue
        at = math.floor(at)
        width = (below(at + 1) - below(at)) * 1.3
        logarithm = math.lgamma(at + 1) if at >= 0 else 0 if at == -1 else math.inf
        if width >= 1e-20 and height * width < math.exp(at * math.log(mean) - float(mean) - logarithm):
            return max(at, 0)


def permuted(count: int, bits: int, geometry: tuple[int, int], state: tuple[int, int]) -> list[int]:
    """Return the permutation of `randperm` with keys of `bits` bits, from the generator's state."""
    width = 32 if bits <= 32 else 64
    first, key_count = -1 << (width - 1), (1 << width) - 1
    keys = drawn("integers", np.dtype(f"i{width // 8}"), count, geometry, state, first, key_count)
    seed, offset = state
    return shuffled(keys.tolist(), bits, width, (seed, offset + skipped(count, 2, geometry)))


def shuffled(keys: list[int], bits: int, width: int, state: tuple[int, int]) -> list[int]:
    """Return the indices of the sorted keys, with runs of equal keys shuffled from the last to the second."""
    seed, offset = state
    low = keys if bits == width else [key % (1 << bits) for key in keys]
    order = sorted(range(len(keys)), key=low.__getitem__)
    start = 0
    while start < len(order):
        run = [index for index in order[start:] if low[index] == low[order[start]]]
        words = [word for call in range(len(run)) for word in philox(seed, start, offset // 4 + call)]
        for last in range(len(run) - 1, 0, -1):
            other = words[len(run) - 1 - last] % (last + 1)
            run[last], run[other] = run[other], run[last]
        order[start : start + len(run)] = run
        start += len(run)
    return order


def _number(
    distribution: str,
    dtype: np.dtype[Any],
    words: tuple[int, ...],
    index: int,
    is_64bit: bool,
    numbers: tuple[float, ...],
) -> Any:
    if distribution == "integers":
        number = words[2 * index] << 32 | words[2 * index + 1] if is_64bit else words[index]
        value = (number % int(numbers[1]) if numbers[1] else number) + int(numbers[0])
        value = (value + (1 << 63)) % (1 << 64) - (1 << 63)
        return np.int64(value).astype(np.float32 if dtype.itemsize == 2 and dtype.kind not in "iu" else dtype)
    real = np.float64 if is_64bit else np.float32
    if distribution in {"normal", "log_normal"}:
        mean, deviation = real(numbers[0]), real(numbers[1])
        pair = words if is_64bit else words[index & 2 : (index & 2) + 2]
        number = _normal(pair, index & 1, is_64bit) * float(deviation) + float(mean)
        return _narrow(math.exp(number) if distribution == "log_normal" else number, dtype)
    uniform = _uniform(words[2 * index : 2 * index + 2] if is_64bit else words[index : index + 1])
    if distribution == "bernoulli":
        return uniform < float(real(numbers[0]))
    if distribution == "exponential":
        least = 2.0**-53 if is_64bit else 2.0**-24
        logarithm = -least if uniform >= 1 - least else math.log(uniform)
        return _narrow(-1 / float(real(numbers[0])) * logarithm, dtype)
    if distribution == "geometric":
        failure = math.log1p(-numbers[0]) if is_64bit else math.log(float(np.float32(1) - np.float32(numbers[0])))
        return np.float64(math.ceil(real(real(math.log(uniform)) / real(failure)))).astype(dtype)
    if distribution == "cauchy":
        if not is_64bit:
            uniform = min(max(uniform, 2.0**-23), 1 - 2.0**-23)
        angle = float(real(math.pi) * real(uniform - 0.5))
        return _narrow(float(real(numbers[0])) + float(real(numbers[1])) * math.tan(angle), dtype)
    low, high = (np.float64(number).astype(dtype) for number in numbers)
    value = _narrow(Fraction(uniform) * Fraction(float(high - low)) + Fraction(float(low)), dtype)
    return low if value == high else value


def _uniform(words: tuple[int, ...]) -> float:
    """Return a number in (0, 1]: a float32 from one word, a double from two."""
    if len(words) == 1:
        return float(np.float32(float(np.float32(np.uint32(words[0]))) * 2.0**-32 + 2.0**-33))
    return float(words[0] ^ words[1] << 21) * 2.0**-53 + 2.0**-54


def _normal(words: tuple[int, ...], which: int, is_64bit: bool) -> float:
    if is_64bit:
        radius = math.sqrt(-2 * math.log(_uniform(words[:2])))
        angle = math.pi * (float(words[2] ^ words[3] << 21) * 2.0**-52 + 2.0**-53)
    else:
        radius = math.sqrt(-2 * math.log(_uniform(words[:1])))
        turn = float(np.float32(2.3283064e-10) * np.float32(6.2831855))
        angle = float(np.float32(float(np.float32(np.uint32(words[1]))) * turn + turn / 2))
    return radius * (math.cos(angle) if which else math.sin(angle))


def _narrow(value: float | Fraction, dtype: np.dtype[Any]) -> Any:
    """Convert to `dtype` by way of a float32, as C++ does."""
    number = np.float64(float(value))
    if dtype.itemsize == 8:
        return number
    rest = value - Fraction(float(number)) if isinstance(value, Fraction) else 0
    if rest and not number.view(np.int64) & 1:
        # Of the two doubles around a fraction, the odd one is not in the middle of two floats: it is rounded only once.
        number = np.nextafter(number, np.inf if rest > 0 else -np.inf)
    return number.astype(np.float32).astype(dtype)
