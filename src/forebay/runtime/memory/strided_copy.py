"""Layouts of strided elements, and copies between them as copies of contiguous runs. Reads no element."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from forebay.runtime.base.torch_types import torch_name
from forebay.runtime.memory.storage import array_at
from forebay.spi import StridedCopy

if TYPE_CHECKING:
    from forebay.runtime.tensors.tensor import Tensor

__all__ = [
    "CHEAP_RUNS",
    "MAX_RUNS",
    "Elements",
    "Run",
    "address_of",
    "broadcast_error",
    "byte_ranges",
    "contiguous_runs",
    "elements_of",
    "is_c_contiguous",
    "may_overlap",
    "overlap",
    "plain_run",
    "slowest_first",
    "strided_copy",
]

_REVERSED = slice(None, None, -1)

Run = tuple[int, int, int]  # target address, source address, bytes

MAX_RUNS = 4096  # runs, when nothing else can copy: 10 ms
CHEAP_RUNS = 8  # runs: a command costs 2 µs, a NumPy copy about 10 µs
_LONG_RUN = 1 << 18  # bytes, from which a run is copied by a separate command


class Elements(NamedTuple):
    """Strided elements in memory, which they do not keep alive: queued work must not, as its queue runs in order."""

    address: int  # of the first element
    shape: tuple[int, ...]
    strides: tuple[int, ...]  # bytes
    dtype: np.dtype[Any]

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize

    def array(self) -> NDArray[Any]:
        """Return an array that does not own the memory."""
        return array_at(self.address, self.shape, self.strides, self.dtype, None)

    def broadcast_to(self, shape: tuple[int, ...]) -> Elements:
        """Return the elements broadcast to the shape. Raises ValueError if that is impossible."""
        if self.shape == shape:
            return self
        return self._replace(shape=shape, strides=np.broadcast_to(self.array(), shape).strides)

    def extent(self) -> tuple[int, int]:
        """Return the address of the first byte and the address after the last byte."""
        low = high = self.address
        for length, stride in zip(self.shape, self.strides, strict=True):
            if stride < 0:
                low += (length - 1) * stride
            else:
                high += (length - 1) * stride
        return low, high + self.dtype.itemsize


def elements_of(memory: Tensor | NDArray[Any]) -> Elements:
    """Return the elements of a tensor or an array."""
    if isinstance(memory, np.ndarray):
        return Elements(address_of(memory), memory.shape, memory.strides, memory.dtype)
    return Elements(memory.raw_address(), tuple(memory.shape), memory.byte_strides, memory.numpy_dtype)


def is_c_contiguous(shape: tuple[int, ...], strides: tuple[int, ...], itemsize: int) -> bool:
    """Return True if the elements are contiguous in C order; an empty array is."""
    step = itemsize
    lengths = tuple.__getitem__(shape, _REVERSED)  # reversed() of a Size calls its __getitem__, which takes longer
    for length, stride in zip(lengths, strides[::-1], strict=True):
        if stride != step and length != 1:
            return 0 in shape
        step *= length
    return True


def broadcast_error(target: Sequence[int], source: Sequence[int]) -> RuntimeError:
    """Return the error of a copy whose source cannot be broadcast to its target."""
    rank = max(len(target), len(source))
    one, two = ([1] * (rank - len(shape)) + [*shape] for shape in (target, source))
    for dim in range(rank - 1, -1, -1):
        if one[dim] != two[dim] and 1 not in (one[dim], two[dim]):
            return RuntimeError(
                f"The size of tensor a ({one[dim]}) must match the size of tensor b ({two[dim]}) at non-singleton "
                f"dimension {dim}"
            )
    common = [b if a == 1 else a for a, b in zip(one, two, strict=True)]
    return RuntimeError(f"output with shape {[*target]} doesn't match the broadcast shape {common}")


def plain_run(target: Tensor, source: Tensor) -> Run | None:
    """Return the run of a copy if both are contiguous, of one dtype and shape, apart and not empty; else None."""
    shape, strides, dtype = target.shape, target.byte_strides, target.numpy_dtype
    if (
        dtype == source.numpy_dtype
        and shape == source.shape
        and is_c_contiguous(shape, strides, dtype.itemsize)
        and (strides == source.byte_strides or is_c_contiguous(shape, source.byte_strides, dtype.itemsize))
    ):
        to, from_, nbytes = target.raw_address(), source.raw_address(), target.nbytes
        if abs(to - from_) >= nbytes > 0:
            return to, from_, nbytes
    return None


def may_overlap(target: Elements, source: Elements) -> bool:
    """Return True if both share an element, or if that is too expensive to determine. Neither may be empty."""
    (low, end), (other, other_end) = target.extent(), source.extent()
    if end <= other or other_end <= low:
        return False
    try:
        return np.shares_memory(target.array(), source.array(), max_work=1000)  # type: ignore[arg-type]  # stub: strict
    except np.exceptions.TooHardError:
        return True


def overlap(target: Tensor, source: Tensor) -> bool:
    """Return True if neither is empty and `may_overlap` is True."""
    return 0 not in target.shape and 0 not in source.shape and may_overlap(elements_of(target), elements_of(source))


def strided_copy(target: Elements, source: Elements, *, may_overlap: bool) -> StridedCopy:
    """Return the copy for a queue. The source has the target's shape."""
    return StridedCopy(
        target.shape,
        target.address,
        target.strides,
        torch_name(target.dtype),
        target.dtype.itemsize,
        source.address,
        source.strides,
        "" if target.dtype == source.dtype else torch_name(source.dtype),
        may_overlap=may_overlap,
    )


def contiguous_runs(target: Elements, source: Elements, *, max_runs: int = CHEAP_RUNS) -> Iterable[Run] | None:
    """Return the contiguous runs of a copy; None if there are more than `max_runs` short ones, or 4096 long ones."""
    inner, nbytes = len(target.shape), target.dtype.itemsize
    while inner and target.strides[inner - 1] == source.strides[inner - 1] == nbytes:
        inner -= 1
        nbytes *= target.shape[inner]
    to, from_ = target.address, source.address
    if not inner:
        return [(to, from_, nbytes)]
    outer = target.shape[:inner]
    if math.prod(outer) > (MAX_RUNS if nbytes >= _LONG_RUN and max_runs > 1 else max_runs):
        return None
    return (
        (to + int(np.dot(index, target.strides[:inner])), from_ + int(np.dot(index, source.strides[:inner])), nbytes)
        for index in np.ndindex(outer)
    )


def byte_ranges(elements: Elements) -> list[tuple[int, int]]:
    """Return (address, bytes) of each contiguous run, or one range over all if there are many runs."""
    if (runs := contiguous_runs(elements, elements)) is not None:
        return [(address, nbytes) for address, _, nbytes in runs]
    low, end = elements.extent()
    return [(low, end - low)]


def address_of(array: NDArray[Any]) -> int:
    address: int = array.__array_interface__["data"][0]
    return address


def slowest_first(shape: Sequence[int], *operands: Sequence[int]) -> list[int]:
    """Return the dimensions by descending stride, as PyTorch orders them for results of elementwise functions.

    Each operand is a tensor's strides; the first that orders two dimensions decides. An expanded dimension (stride 0)
    is not ordered relative to others and keeps its place.
    """
    order = list(range(len(shape)))
    for new in reversed(order[:-1]):  # insert into the dimensions after it, which are sorted
        at = new
        for other in range(new + 1, len(shape)):
            one, two = order[at], order[other]
            ahead = _compare(one, two, shape, operands)
            if ahead > 0:
                break
            if ahead < 0:
                order[at], order[other], at = two, one, other
    return order


def _compare(one: int, two: int, shape: Sequence[int], operands: Sequence[Sequence[int]]) -> int:
    """Return 1 if dimension `one` is slower than `two`, -1 if it is faster, and 0 if no operand orders them."""
    for strides in operands:
        step, next_step = abs(strides[one]), abs(strides[two])
        if 0 in (step, next_step):
            continue
        if (step, shape[one]) < (next_step, shape[two]):
            return -1
        if step > next_step:
            return 1
    return 0


_Axes = list[tuple[int, int]]
