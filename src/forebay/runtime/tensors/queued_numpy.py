"""NumPy functions on tensors, run in a device's queue in stream order without blocking the host.

The memory must be accessible to queued functions: `DeviceProps.host_visible` or `queue_visible`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

from numpy.typing import NDArray

from forebay.errors import Unsupported
from forebay.runtime.base import observers
from forebay.runtime.base.queue_capabilities import can_launch
from forebay.runtime.memory.storage import array_at, keep_alive
from forebay.runtime.memory.transfer import ensure_backed
from forebay.runtime.streams.stream import Stream
from forebay.runtime.tensors.tensor import Tensor

__all__ = ["Arrays", "run_on_arrays"]

Arrays = list[NDArray[Any]]


def run_on_arrays(
    streams: Sequence[Stream],
    inputs: Sequence[Tensor],
    outputs: Sequence[Tensor],
    work: Callable[[Arrays, Arrays], None],
    *,
    output_ranks: Sequence[int] | None = None,
    name: str = "",
) -> None:
    """Queue `work` on the tensors' arrays in the first stream's queue, ordered with all streams.

    Input i is used on stream i, output i on stream `output_ranks[i]` (default i). `name` is reported to observers.
    Raises Unsupported if queued functions cannot access the memory.
    """
    first = streams[0]
    queue = first.queue
    if not can_launch(queue) or not all(each.raw_storage.queue_visible for each in (*inputs, *outputs)):
        raise Unsupported(f"{first.device} cannot run NumPy functions on this memory", ability="Launches")
    used = [*zip(inputs, streams, strict=True)]
    used += zip(outputs, streams if output_ranks is None else [streams[rank] for rank in output_ranks], strict=True)
    retain = first.is_capturing()  # a graph must keep what it replays
    ins, outs = ([_array(tensor, retain=retain) for tensor in tensors] for tensors in (inputs, outputs))
    others = [stream for stream in dict.fromkeys(streams) if stream != first]
    ensure_backed(queue, *outs)
    with ExitStack() as steps:
        for tensor, stream in used:
            tensor.record_stream(stream)
            steps.enter_context(keep_alive(stream, tensor.raw_storage))
        for other in others:
            first.wait_stream(other)
        tracer = observers.tracer
        begun = tracer.queueing(queue) if tracer else None
        queue.call(lambda: work(ins, outs))
        if tracer:
            tracer.queued(queue, begun, "call", name, sum(each.nbytes for each in outs))
        try:
            for listener in observers.launch_observers:
                listener.launched(first, name, tuple(inputs), tuple(outputs))
        finally:
            for other in others:
                other.wait_stream(first)


def _array(tensor: Tensor, *, retain: bool) -> NDArray[Any]:
    """Return the tensor's array. Without `retain` the array does not own the memory, which stream order keeps alive."""
    if retain:
        return tensor.raw_array()
    return array_at(tensor.raw_address(), tensor.shape, tensor.byte_strides, tensor.numpy_dtype, None)
