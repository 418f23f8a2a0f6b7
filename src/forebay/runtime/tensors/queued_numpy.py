"""What NumPy computes on tensors in their devices' queues: in order with what streams do, and the host does not wait.

The memory must be what queued functions may touch: `DeviceProps.host_visible` or `queue_visible`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

from numpy.typing import NDArray

from forebay.errors import Unsupported
from forebay.runtime.base import observers
from forebay.runtime.base.queue_capabilities import launches
from forebay.runtime.memory.storage import array_at
from forebay.runtime.memory.transfer import expect, using
from forebay.runtime.streams.stream import Stream
from forebay.runtime.tensors.tensor import Tensor

__all__ = ["Arrays", "together"]

Arrays = list[NDArray[Any]]


def together(
    streams: Sequence[Stream],
    inputs: Sequence[Tensor],
    outputs: Sequence[Tensor],
    work: Callable[[Arrays, Arrays], None],
    *,
    of: Sequence[int] | None = None,
    name: str = "",
) -> None:
    """Queue the work on the tensors' arrays in the first stream's queue, so that every stream is in step with it.

    Input number i is used on stream number i, and output number i on stream `of[i]`, or i. Raises Unsupported where
    queued functions may not touch the memory. `name` is for who listens (forebay.runtime.base.observers).
    """
    doing = streams[0]
    queue = doing.queue
    if not launches(queue) or not all(each.storage.queue_visible for each in (*inputs, *outputs)):
        raise Unsupported(f"{doing.device} and others do no arithmetic in their queues", ability="Launches")
    used = [*zip(inputs, streams, strict=True)]
    used += zip(outputs, streams if of is None else [streams[rank] for rank in of], strict=True)
    kept = doing.is_capturing()  # what a graph repeats must stay
    ins, outs = ([_array(tensor, kept=kept) for tensor in tensors] for tensors in (inputs, outputs))
    others = [stream for stream in dict.fromkeys(streams) if stream != doing]
    expect(queue, *outs)
    with ExitStack() as steps:
        for tensor, stream in used:
            tensor.record_stream(stream)
            steps.enter_context(using(stream, tensor.storage))
        for other in others:
            doing.wait_stream(other)
        tracer = observers.tracer
        begun = tracer.queueing(queue) if tracer else None
        queue.call(lambda: work(ins, outs))
        if tracer:
            tracer.queued(queue, begun, "call", name, sum(each.nbytes for each in outs))
        try:
            for listener in observers.of_launches:
                listener.launched(doing, name, tuple(inputs), tuple(outputs))
        finally:
            for other in others:
                other.wait_stream(doing)


def _array(tensor: Tensor, *, kept: bool) -> NDArray[Any]:
    """It keeps nothing alive, if it need not: the streams' order does."""
    if kept:
        return tensor.raw_array()
    return array_at(tensor.data_ptr(), tensor.shape, tensor.byte_strides, tensor.dtype, None)
