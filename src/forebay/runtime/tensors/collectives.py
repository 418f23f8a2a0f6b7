"""Collective operations on tensors of several devices, ordered like NCCL's in one stream per rank.

An operation begins when the streams of all ranks have reached it, and blocks these streams until it completes. The host
does not block: NumPy computes the result in the queue of the first rank (queued_numpy.py). Ranks are reduced in order;
floats of 16 bits or fewer are accumulated as float32. The caller checks that tensors are contiguous and of one dtype. A
rank's input may be its output.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from forebay.runtime.streams.stream import Stream
from forebay.runtime.tensors.queued_numpy import Arrays, run_on_arrays
from forebay.runtime.tensors.tensor import Tensor

__all__ = ["Op", "all_gather", "all_reduce", "broadcast", "combine", "reduce", "reduce_scatter"]


class Op(IntEnum):
    """Reduction operations, with NCCL's numbers."""

    SUM = 0
    PROD = 1
    MAX = 2
    MIN = 3
    AVG = 4


# fmax and fmin ignore NaN, as GPUs do.
_FUNCTIONS = {Op.SUM: np.add, Op.PROD: np.multiply, Op.MAX: np.fmax, Op.MIN: np.fmin, Op.AVG: np.add}


def all_reduce(inputs: Sequence[Tensor], outputs: Sequence[Tensor], op: Op, streams: Sequence[Stream]) -> None:
    """Write the reduction of all inputs to each output."""

    def work(ins: Arrays, outs: Arrays) -> None:
        ins, outs = _flat(ins), _flat(outs)
        total = combine(ins, op)
        for out in outs:
            np.copyto(out, total, casting="unsafe")

    run_on_arrays(streams, inputs, outputs, work, name="all_reduce")


def reduce(inputs: Sequence[Tensor], output: Tensor, root: int, op: Op, streams: Sequence[Stream]) -> None:
    """Write the reduction of all inputs to the output, which belongs to rank `root`."""

    def work(ins: Arrays, outs: Arrays) -> None:
        ins, outs = _flat(ins), _flat(outs)
        np.copyto(outs[0], combine(ins, op), casting="unsafe")

    run_on_arrays(streams, inputs, [output], work, output_ranks=[root], name="reduce")


def broadcast(tensors: Sequence[Tensor], root: int, streams: Sequence[Stream]) -> None:
    """Copy the root's tensor to all other tensors."""

    def work(ins: Arrays, outs: Arrays) -> None:
        ins, outs = _flat(ins), _flat(outs)
        for rank, out in enumerate(outs):
            if rank != root:
                np.copyto(out, ins[root])

    run_on_arrays(streams, tensors, tensors, work, name="broadcast")


def all_gather(inputs: Sequence[Tensor], outputs: Sequence[Tensor], streams: Sequence[Stream]) -> None:
    """Write the concatenation of all inputs to each output."""

    def work(ins: Arrays, outs: Arrays) -> None:
        ins, outs = _flat(ins), _flat(outs)
        gathered = np.concatenate(ins)
        for out in outs:
            np.copyto(out, gathered)

    run_on_arrays(streams, inputs, outputs, work, name="all_gather")


def reduce_scatter(inputs: Sequence[Tensor], outputs: Sequence[Tensor], op: Op, streams: Sequence[Stream]) -> None:
    """Write each rank's part of the reduction of all inputs to the rank's output."""

    def work(ins: Arrays, outs: Arrays) -> None:
        ins, outs = _flat(ins), _flat(outs)
        total = combine(ins, op)
        for rank, out in enumerate(outs):
            np.copyto(out, total[rank * out.size : (rank + 1) * out.size], casting="unsafe")

    run_on_arrays(streams, inputs, outputs, work, name="reduce_scatter")


def combine(arrays: Arrays, op: Op) -> NDArray[Any]:
    """Return the reduction of the arrays as a new array; float32 for floats of 16 bits or fewer."""
    dtype = arrays[0].dtype
    if dtype.kind == "b":  # NCCL reduces bools as bytes; any nonzero byte is true
        return combine([array.view(np.uint8) for array in arrays], op).astype(bool)
    accumulator = np.dtype(np.float32) if dtype.kind not in "iu" and dtype.itemsize <= 2 else dtype
    function, ranks = _FUNCTIONS[op], len(arrays)
    is_float = accumulator.kind == "f"
    share = accumulator.type(1 / ranks) if op is Op.AVG and is_float else None
    with np.errstate(all="ignore"):
        total: NDArray[Any] = np.array(arrays[0], accumulator)
        if share is not None:
            total *= share
        for array in arrays[1:]:
            function(total, array if share is None else array.astype(accumulator) * share, out=total, casting="unsafe")
        if op is Op.AVG and not is_float:
            total = _divide(total, ranks)
    return total


def _divide(total: NDArray[Any], ranks: int) -> NDArray[Any]:
    """Return the quotient rounded towards zero, as in C."""
    quotient: NDArray[Any] = total // ranks
    quotient += (total < 0) & (quotient * ranks != total)
    return quotient


def _flat(arrays: Arrays) -> Arrays:
    return [array.reshape(-1) for array in arrays]
