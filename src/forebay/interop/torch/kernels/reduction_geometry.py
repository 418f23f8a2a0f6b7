"""Launch geometry of PyTorch's reductions on CUDA devices: how many blocks of threads compute a result together.

Blocks that share a result leave partial results in a buffer of global memory, and count in a second buffer who is the
last. The geometry is compared with PyTorch 2.15 over the oracle (tests/data/torch_allocations).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

__all__ = ["Buffers", "reduction_buffers"]

_MAX_THREADS = 512
_MIN_VALUES, _MAX_VALUES = 16, 256  # for each thread
_WARP = 32
_VECTOR = 4  # elements that a thread reads at once


class Buffers(NamedTuple):
    """Bytes of the two buffers."""

    partial: int
    counters: int


class _Dimension(NamedTuple):
    length: int
    stride: int
    result_stride: int


def reduction_buffers(
    given: torch.Tensor, dims: Sequence[int], partial_bytes: int, processors: int, threads_of_processor: int
) -> Buffers:  # fmt: skip
    """Return the bytes of the buffers of a reduction; 0 if no two blocks share a result.

    The layout of `given` decides; its values are not read. No `dims` means all. `partial_bytes` are those of a partial
    result, and `threads_of_processor` are resident on each of the `processors`.
    """
    reduced, kept = _dimensions(given, dims)
    inputs, outputs = _product(reduced), _product(kept)
    if not inputs or not outputs or not (reduced or kept):
        return Buffers(0, 0)
    fastest = not kept or (bool(reduced) and reduced[0].stride < kept[0].stride)
    across, along = (inputs, outputs) if fastest else (outputs, inputs)
    first = (reduced or kept)[0] if fastest else kept[0]
    together = 1
    if first.stride == 1:
        if fastest:
            if across > 128 and len(reduced) + len(kept) == 1:
                across //= _VECTOR
        else:
            together = _results_together(kept, reduced)
            across //= together
    width, height = _block(across, along, _MAX_THREADS // together)
    step_in, step_out = (width, 1) if fastest else (1, width)
    divided = -(-inputs // step_in) >= min(height * 16, _MAX_VALUES)
    if divided:
        step_in *= height
    else:
        step_out *= height
    grid = -(-(outputs // together) // step_out)
    target = processors * (threads_of_processor // (width * height))
    each = -(-inputs // step_in)
    if not divided or each < _MAX_VALUES or grid > target:
        return Buffers(0, 0)
    blocks = max(min(-(-target // grid), -(-each // _MIN_VALUES)), -(-each // _MAX_VALUES))
    if blocks == 1:
        return Buffers(0, 0)
    size = partial_bytes * outputs * blocks * (1 if fastest else width * together)
    return Buffers(size, 4 * grid)


def _product(dimensions: Sequence[_Dimension]) -> int:
    count = 1
    for each in dimensions:
        count *= each.length
    return count


def _dimensions(given: torch.Tensor, dims: Sequence[int]) -> tuple[list[_Dimension], list[_Dimension]]:
    """Return the reduced and the other dimensions, the fastest first. Those that are adjacent in memory are one."""
    count = given.dim()
    chosen = {each % count for each in dims} if dims and count else set(range(count))
    result_stride, all_dims = 1, []
    for at in reversed(range(count)):
        length = given.shape[at]
        all_dims.append((at in chosen, _Dimension(length, given.stride(at), 0 if at in chosen else result_stride)))
        if at not in chosen:
            result_stride *= length
    used = [each for each in all_dims if each[1].length != 1]
    reduced = sorted((each for is_reduced, each in used if is_reduced), key=lambda each: each.stride)
    kept = [each for is_reduced, each in used if not is_reduced]
    return _joined(reduced), _joined(kept)


def _joined(dimensions: Sequence[_Dimension]) -> list[_Dimension]:
    joined: list[_Dimension] = []
    for each in dimensions:
        last = joined[-1] if joined else None
        if (
            last is not None
            and last.length * last.stride == each.stride
            and last.length * last.result_stride == each.result_stride
        ):
            joined[-1] = last._replace(length=last.length * each.length)
        else:
            joined.append(each)
    return joined


def _results_together(kept: Sequence[_Dimension], reduced: Sequence[_Dimension]) -> int:
    """Return how many adjacent results a thread computes."""
    together = _VECTOR
    values = [kept[0].length, *(each.stride for each in (*kept[1:], *reduced))]
    while together > 1 and any(each % together for each in values):
        together //= 2
    return together


def _last_power(number: int) -> int:
    return 1 << (max(1, number).bit_length() - 1)


def _block(across: int, along: int, threads: int) -> tuple[int, int]:
    """Return the width and the height of a block of threads."""
    width_limit, height_limit = min(_last_power(across), threads), min(_last_power(along), threads)
    width = min(width_limit, _WARP)
    height = min(height_limit, threads // width)
    return min(width_limit, threads // height), height
