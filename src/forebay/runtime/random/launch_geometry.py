"""Launch geometry: how PyTorch's random kernels assign elements, and so random numbers, to a GPU's threads.

A fill is one or more launches. In each, thread `t` fills elements `t`, `t + threads`, `t + 2 * threads` and so on.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from forebay import profiles

__all__ = ["REFERENCE", "Geometry", "Launch", "geometry_of", "in_memory_order", "launches"]

_BLOCK_SIZE = 256  # threads
_INT32_MAX = (1 << 31) - 1  # limits the elements of a launch, and the bytes from the first to the last


@dataclass(frozen=True, slots=True)
class Geometry:
    """The size of a GPU, which determines the random numbers that PyTorch draws on it.

    Parameters
    ----------
    multi_processor_count : int
        Number of multiprocessors.
    max_threads_per_multi_processor : int
        Number of threads that each multiprocessor runs; at least 256.

    Raises
    ------
    ValueError
        If a number is out of range.

    Notes
    -----
    Tensors with at most as many elements as a GPU has threads get the same numbers on every GPU of at least its size.

    Examples
    --------
    >>> Geometry.of("a100").threads
    221184
    """

    multi_processor_count: int
    max_threads_per_multi_processor: int

    def __post_init__(self) -> None:
        if self.multi_processor_count < 1 or not _BLOCK_SIZE <= self.threads <= _INT32_MAX:
            raise ValueError(
                f"invalid GPU geometry: {self.multi_processor_count} multiprocessors with "
                f"{self.max_threads_per_multi_processor} threads each cannot run blocks of {_BLOCK_SIZE} threads"
            )

    @property
    def threads(self) -> int:
        """The maximum number of threads of a launch."""
        return self.multi_processor_count * (self.max_threads_per_multi_processor // _BLOCK_SIZE) * _BLOCK_SIZE

    @classmethod
    def of(cls, named: Geometry | str | tuple[int, int]) -> Geometry:
        """Return the geometry for a name or a pair of numbers.

        Parameters
        ----------
        named : Geometry or str or tuple of int
            A profile's name, "reference" for an H100 or H200, or the two numbers.

        Returns
        -------
        Geometry
            `named` itself if it is a Geometry.

        Raises
        ------
        ValueError
            If the profile is unknown or not of a CUDA GPU, or if a number is out of range.
        """
        if isinstance(named, Geometry):
            return named
        if isinstance(named, str):
            if named == "reference":
                return REFERENCE
            profile = profiles.load(named)
            if profile.kind != "cuda":
                raise ValueError(f"profile {profile.name} is not a CUDA GPU")
            found = profile.properties
            return cls(found["multi_processor_count"], found["max_threads_per_multi_processor"])
        return cls(*named)


REFERENCE = Geometry(132, 2048)  # of an H100 or H200; for devices that are not GPUs, so that all of them agree


def geometry_of(multi_processor_count: int, max_threads_per_multi_processor: int) -> Geometry:
    """Return a device's geometry from its properties, or the reference geometry if the device is not a GPU."""
    return Geometry(multi_processor_count, max_threads_per_multi_processor) if multi_processor_count else REFERENCE


@dataclass(frozen=True, slots=True)
class Launch:
    """One kernel launch. A launch without elements only advances the generator."""

    start: int  # offset of the first element, in bytes from the tensor's first
    count: int  # elements
    axes: tuple[tuple[int, int], ...]  # (length, stride in bytes), fastest first; empty: contiguous
    threads: int
    skipped: int  # words by which the launch advances the generator's offset


def launches(
    shape: tuple[int, ...], strides: tuple[int, ...], itemsize: int, vector_width: int, geometry: Geometry
) -> tuple[Launch, ...]:
    """Return the launches that fill a non-empty tensor, in order. Each Philox call makes `vector_width` numbers.

    A tensor too large for 32-bit indices is launched in pieces, preceded by one launch of the whole without elements.
    """
    total, order = math.prod(shape), in_memory_order(shape, strides)
    result: list[Launch] = []
    for start, axes in _pieces(0, _merge_axes([(shape[dim], strides[dim]) for dim in order])):
        count = math.prod(length for length, _ in axes)
        if count != total and not result:
            result.append(Launch(0, 0, (), *_threads_and_words(total, vector_width, geometry)))
        contiguous = not axes or axes == [(count, itemsize)]
        threads, words = _threads_and_words(count, vector_width, geometry)
        result.append(Launch(start, count, () if contiguous else tuple(axes), threads, words))
    return tuple(result)


def in_memory_order(shape: Sequence[int], strides: Sequence[int]) -> list[int]:
    """Return the dimensions by ascending stride; of equal strides, the last dimension first."""
    order = list(range(len(shape)))[::-1]
    return sorted(order, key=lambda dim: abs(strides[dim]))


_Axes = list[tuple[int, int]]  # length and stride


def _merge_axes(axes: _Axes) -> _Axes:
    """Drop axes of length 1 and merge adjacent axes that together are contiguous."""
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
    """Split axes recursively in half until 32-bit indices suffice. Yield each piece's start and axes."""
    count, extents = math.prod(length for length, _ in axes), [(length - 1) * abs(step) for length, step in axes]
    if count <= _INT32_MAX and 1 + sum(extents) <= _INT32_MAX:
        yield start, axes
        return
    at = max(reversed(range(len(axes))), key=extents.__getitem__)
    length, step = axes[at]
    for begin, part in ((0, length // 2), (length // 2, length - length // 2)):
        yield from _pieces(start + begin * step, _merge_axes([*axes[:at], (part, step), *axes[at + 1 :]]))


def _threads_and_words(count: int, vector_width: int, geometry: Geometry) -> tuple[int, int]:
    """Return a launch's threads, and the words by which it advances the generator's offset."""
    threads = min(geometry.threads, -(-count // _BLOCK_SIZE) * _BLOCK_SIZE)
    return threads, ((count - 1) // (threads * vector_width) + 1) * 4
