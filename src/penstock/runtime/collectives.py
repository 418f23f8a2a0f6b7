"""Collective operations: several devices' tensors at once, each device's part in its own stream, ordered as NCCL's.

An operation begins when the streams of all ranks have come to it, and none of them goes on before it is done; the host
never waits. The devices' memory must be what queued functions may touch (`host_visible`, `queue_visible`): NumPy does
the arithmetic, in the queue of the first rank. Ranks are added up in their order, 16-bit floats and smaller as float32.
Tensors are contiguous, of one dtype, and checked by the caller; a rank's input may be its output.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from enum import IntEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.errors import Unsupported
from penstock.runtime.storage import array_at
from penstock.runtime.stream import Stream
from penstock.runtime.tensor import Tensor
from penstock.runtime.transfer import using
from penstock.spi import Launches

__all__ = ["Op", "all_gather", "all_reduce", "broadcast", "combined", "reduce", "reduce_scatter", "together"]

_Arrays = list[NDArray[Any]]


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

    def work(ins: _Arrays, outs: _Arrays) -> None:
        total = combined(ins, op)
        for out in outs:
            np.copyto(out, total, casting="unsafe")

    together(streams, inputs, outputs, work)


def reduce(inputs: Sequence[Tensor], output: Tensor, root: int, op: Op, streams: Sequence[Stream]) -> None:
    """The output, which is of rank `root`, becomes the combination of all inputs."""

    def work(ins: _Arrays, outs: _Arrays) -> None:
        np.copyto(outs[0], combined(ins, op), casting="unsafe")

    together(streams, inputs, [output], work, of=[root])


def broadcast(tensors: Sequence[Tensor], root: int, streams: Sequence[Stream]) -> None:
    """Each tensor becomes the root's."""

    def work(ins: _Arrays, outs: _Arrays) -> None:
        for rank, out in enumerate(outs):
            if rank != root:
                np.copyto(out, ins[root])

    together(streams, tensors, tensors, work)


def all_gather(inputs: Sequence[Tensor], outputs: Sequence[Tensor], streams: Sequence[Stream]) -> None:
    """Each output becomes all inputs, one behind the other."""

    def work(ins: _Arrays, outs: _Arrays) -> None:
        whole = np.concatenate(ins)
        for out in outs:
            np.copyto(out, whole)

    together(streams, inputs, outputs, work)


def reduce_scatter(inputs: Sequence[Tensor], outputs: Sequence[Tensor], op: Op, streams: Sequence[Stream]) -> None:
    """Each output becomes its rank's part of the combination of all inputs."""

    def work(ins: _Arrays, outs: _Arrays) -> None:
        total = combined(ins, op)
        for rank, out in enumerate(outs):
            np.copyto(out, total[rank * out.size : (rank + 1) * out.size], casting="unsafe")

    together(streams, inputs, outputs, work)


def combined(arrays: _Arrays, op: Op) -> NDArray[Any]:
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


def together(
    streams: Sequence[Stream],
    inputs: Sequence[Tensor],
    outputs: Sequence[Tensor],
    work: Callable[[_Arrays, _Arrays], None],
    *,
    of: Sequence[int] | None = None,
) -> None:
    """Queue the work on flat arrays of the tensors, so that every stream is in step with it.

    Input number i is used on stream number i, and output number i on stream `of[i]`, or i. Raises Unsupported where
    queued functions may not touch the memory.
    """
    doing = streams[0]
    queue = doing.queue
    if not isinstance(queue, Launches) or not all(each.storage.queue_visible for each in (*inputs, *outputs)):
        raise Unsupported(f"{doing.device} and others do no arithmetic in their queues", ability="Launches")
    used = [*zip(inputs, streams, strict=True)]
    used += zip(outputs, streams if of is None else [streams[rank] for rank in of], strict=True)
    ins, outs = ([_flat(tensor) for tensor in tensors] for tensors in (inputs, outputs))
    others = [stream for stream in dict.fromkeys(streams) if stream != doing]
    with ExitStack() as steps:
        for tensor, stream in used:
            tensor.record_stream(stream)
            steps.enter_context(using(stream, tensor.storage))
        for other in others:
            doing.wait_stream(other)
        queue.call(lambda: work(ins, outs))
        for other in others:
            other.wait_stream(doing)


def _flat(tensor: Tensor) -> NDArray[Any]:
    """Its elements in a row. The array keeps nothing alive: the streams' order does."""
    return array_at(tensor.data_ptr(), (tensor.numel(),), (tensor.itemsize,), tensor.dtype, None)
