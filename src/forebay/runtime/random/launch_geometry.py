"""Which of a GPU's random numbers an element gets: as PyTorch's kernels share them out among a GPU's threads.

A fill is one or more launches; of each, thread `t` has elements `t`, `t + threads`, `t + 2 * threads` and so on.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

from forebay import profiles
from forebay.spi import DeviceProps

__all__ = ["REFERENCE", "Geometry", "Launch", "geometry_of", "in_memory_order", "launches", "slowest_first"]

_BLOCK = 256  # threads
_MOST = (1 << 31) - 1  # what 32 bits count: elements, and bytes from the first to the last


@dataclass(frozen=True, slots=True)
class Geometry:
    """How large a GPU is: how many multiprocessors, and how many threads each of them runs.

    `Geometry.of("a100")` is that of a profile. Tensors with at most as many elements as a GPU has threads get the same
    numbers on every GPU that is as large or larger.

    >>> Geometry.of("a100").threads
    221184
    """

    multi_processor_count: int
    max_threads_per_multi_processor: int

    def __post_init__(self) -> None:
        if self.multi_processor_count < 1 or not _BLOCK <= self.threads <= _MOST:
            raise ValueError(
                f"a GPU of {self.multi_processor_count} multiprocessors with {self.max_threads_per_multi_processor} "
                f"threads each is none that PyTorch draws on: they run blocks of {_BLOCK} threads"
            )

    @property
    def threads(self) -> int:
        """How many draw at once, at most."""
        return self.multi_processor_count * (self.max_threads_per_multi_processor // _BLOCK) * _BLOCK

    @classmethod
    def of(cls, named: Geometry | str | tuple[int, int]) -> Geometry:
        """The one that is meant: a profile's name, "reference", or the two numbers."""
        if isinstance(named, Geometry):
            return named
        if isinstance(named, str):
            if named == "reference":
                return REFERENCE
            profile = profiles.load(named)
            if profile.kind != "cuda":
                raise ValueError(f"{profile.name} is no GPU that PyTorch's CUDA kernels draw on")
            found = profile.properties
            return cls(found["multi_processor_count"], found["max_threads_per_multi_processor"])
        return cls(*named)


REFERENCE = Geometry(132, 2048)  # for devices that are no GPU, so that all of them agree: an H100's or H200's


def geometry_of(props: DeviceProps) -> Geometry:
    """The device's own, or the reference where it has none."""
    if not props.multi_processor_count:
        return REFERENCE
    return Geometry(props.multi_processor_count, props.max_threads_per_multi_processor)


@dataclass(frozen=True, slots=True)
class Launch:
    """One kernel: its elements begin `start` bytes behind the tensor's first. One of no elements only skips words."""

    start: int
    count: int
    axes: tuple[tuple[int, int], ...]  # of a length and a step in bytes, the fastest first; none: one after another
    threads: int
    skipped: int  # how far it moves the generator's offset


@lru_cache(maxsize=256)  # a program fills tensors of a few shapes, again and again
def launches(
    shape: tuple[int, ...], strides: tuple[int, ...], itemsize: int, lanes: int, geometry: Geometry
) -> tuple[Launch, ...]:
    """The launches that fill a tensor of at least one element, `lanes` numbers a call; in order.

    What 32 bits cannot index is launched in pieces, and before them, for nothing but its words, as a whole.
    """
    whole, order = math.prod(shape), in_memory_order(shape, strides)
    found: list[Launch] = []
    for start, axes in _pieces(0, _merged([(shape[dim], strides[dim]) for dim in order])):
        count = math.prod(length for length, _ in axes)
        if count != whole and not found:
            found.append(Launch(0, 0, (), *_threads(whole, lanes, geometry)))
        flat = not axes or axes == [(count, itemsize)]
        found.append(Launch(start, count, () if flat else tuple(axes), *_threads(count, lanes, geometry)))
    return tuple(found)


def in_memory_order(shape: Sequence[int], strides: Sequence[int]) -> list[int]:
    """The dimensions, the one of the smallest steps first; of equal ones the last."""
    order = list(range(len(shape)))[::-1]
    return sorted(order, key=lambda dim: abs(strides[dim]))


def slowest_first(shape: Sequence[int], strides: Sequence[int]) -> list[int]:
    """The dimensions, that of the largest steps first, as PyTorch orders them for a tensor like another.

    Those that have no order stay as they are: a dimension of one step, as an expanded one, has none to any other.
    """
    order = list(range(len(shape)))
    for new in reversed(order[:-1]):  # into those behind it, which are in order
        at = new
        for other in range(new + 1, len(shape)):
            one, two = order[at], order[other]
            step, next_step = abs(strides[one]), abs(strides[two])
            if 0 in (step, next_step):
                continue
            if (step, shape[one]) < (next_step, shape[two]):
                order[at], order[other], at = two, one, other
            elif step > next_step:
                break
    return order


_Axes = list[tuple[int, int]]


def _merged(axes: _Axes) -> _Axes:
    """With neighbours made one where the second goes on behind the first."""
    merged: _Axes = []
    for length, step in axes:
        if length == 1:
            continue
        if merged and merged[-1][0] * merged[-1][1] == step:
            merged[-1] = (merged[-1][0] * length, merged[-1][1])
        else:
            merged.append((length, step))
    return merged


def _pieces(start: int, axes: _Axes) -> Iterator[tuple[int, _Axes]]:
    """Halves of what 32 bits cannot index, and halves of those."""
    count, extents = math.prod(length for length, _ in axes), [(length - 1) * abs(step) for length, step in axes]
    if count <= _MOST and 1 + sum(extents) <= _MOST:
        yield start, axes
        return
    at = max(reversed(range(len(axes))), key=extents.__getitem__)
    length, step = axes[at]
    for begin, part in ((0, length // 2), (length // 2, length - length // 2)):
        yield from _pieces(start + begin * step, _merged([*axes[:at], (part, step), *axes[at + 1 :]]))


def _threads(count: int, lanes: int, geometry: Geometry) -> tuple[int, int]:
    threads = min(geometry.threads, -(-count // _BLOCK) * _BLOCK)
    return threads, ((count - 1) // (threads * lanes) + 1) * 4
