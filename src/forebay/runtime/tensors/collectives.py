"""Collective operations: several devices' tensors at once, each device's part in its own stream, ordered as NCCL's.

An operation begins when the streams of all ranks have come to it, and none of them goes on before it is done; the host
never waits: NumPy does the arithmetic, in the queue of the first rank (queued_numpy.py). Ranks are added up
in their order, 16-bit floats and smaller as float32. Tensors are contiguous, of one dtype, and checked by the caller; a
rank's input may be its output.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from forebay.runtime.streams.stream import Stream
from forebay.runtime.tensors.queued_numpy import Arrays, together
from forebay.runtime.tensors.tensor import Tensor

__all__ = ["Op", "all_gather", "all_reduce", "broadcast", "combined", "reduce", "reduce_scatter"]


class Op(IntEnum):
    """How elements are combined, under NCCL's numbers."""

    SUM = 0
    PROD = 1
    MAX = 2
    MIN = 3
    AVG = 4


# NaN is less than anything in a maximum, and greater in a minimum, as on a GPU.
_FUNCTIONS = {Op.SUM: np.add, Op.PROD: np.multiply, Op.MAX: np.fmax, Op.MIN: np.fmin, Op.AVG: np.add}


def all_reduce(inputs: Sequence[Tensor], outputs: Sequence[Tensor], op: Op, streams: Sequence[Stream]) -> None:
    """Each output becomes the combination of all inputs."""

    def work(ins: Arrays, outs: Arrays) -> None:
        ins, outs = _flat(ins), _flat(outs)
        total = combined(ins, op)
        for out in outs:
            np.copyto(out, total, casting="unsafe")

    together(streams, inputs, outputs, work, name="all_reduce")


def reduce(inputs: Sequence[Tensor], output: Tensor, root: int, op: Op, streams: Sequence[Stream]) -> None:
    """The output, which is of rank `root`, becomes the combination of all inputs."""

    def work(ins: Arrays, outs: Arrays) -> None:
        ins, outs = _flat(ins), _flat(outs)
        np.copyto(outs[0], combined(ins, op), casting="unsafe")

    together(streams, inputs, [output], work, of=[root], name="reduce")


def broadcast(tensors: Sequence[Tensor], root: int, streams: Sequence[Stream]) -> None:
    """Each tensor becomes the root's."""

    def work(ins: Arrays, outs: Arrays) -> None:
        ins, outs = _flat(ins), _flat(outs)
        for rank, out in enumerate(outs):
            if rank != root:
                np.copyto(out, ins[root])

    together(streams, tensors, tensors, work, name="broadcast")


def all_gather(inputs: Sequence[Tensor], outputs: Sequence[Tensor], streams: Sequence[Stream]) -> None:
    """Each output becomes all inputs, one behind the other."""

    def work(ins: Arrays, outs: Arrays) -> None:
        ins, outs = _flat(ins), _flat(outs)
        whole = np.concatenate(ins)
        for out in outs:
            np.copyto(out, whole)

    together(streams, inputs, outputs, work, name="all_gather")


def reduce_scatter(inputs: Sequence[Tensor], outputs: Sequence[Tensor], op: Op, streams: Sequence[Stream]) -> None:
    """Each output becomes its rank's part of the combination of all inputs."""

    def work(ins: Arrays, outs: Arrays) -> None:
        ins, outs = _flat(ins), _flat(outs)
        total = combined(ins, op)
        for rank, out in enumerate(outs):
            np.copyto(out, total[rank * out.size : (rank + 1) * out.size], casting="unsafe")

    together(streams, inputs, outputs, work, name="reduce_scatter")


def combined(arrays: Arrays, op: Op) -> NDArray[Any]:
    """A new array; of 16-bit floats, and smaller ones, it is of float32."""
    dtype = arrays[0].dtype
    if dtype.kind == "b":  # bytes, as NCCL counts them, of which any but 0 is true
        return combined([array.view(np.uint8) for array in arrays], op).astype(bool)
    wide = np.dtype(np.float32) if dtype.kind not in "iu" and dtype.itemsize <= 2 else dtype
    function, ranks = _FUNCTIONS[op], len(arrays)
    floats = wide.kind == "f"
    share = wide.type(1 / ranks) if op is Op.AVG and floats else None
    with np.errstate(all="ignore"):
        total: NDArray[Any] = np.array(arrays[0], wide)
        if share is not None:
            total *= share
        for array in arrays[1:]:
            function(total, array if share is None else array.astype(wide) * share, out=total, casting="unsafe")
        if op is Op.AVG and not floats:
            total = _divided(total, ranks)
    return total


def _divided(total: NDArray[Any], ranks: int) -> NDArray[Any]:
    """Towards zero, as C divides."""
    quotient: NDArray[Any] = total // ranks
    quotient += (total < 0) & (quotient * ranks != total)
    return quotient


def _flat(arrays: Arrays) -> Arrays:
    return [array.reshape(-1) for array in arrays]
