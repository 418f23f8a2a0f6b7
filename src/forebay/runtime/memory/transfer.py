"""How bytes get from one place to another: which way each copy and fill takes, and who waits."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from forebay.errors import Unsupported
from forebay.runtime.base import capture_state, observers
from forebay.runtime.base.queue_capabilities import foresees, launches
from forebay.runtime.memory.storage import Storage, pinned_block
from forebay.runtime.memory.strided_copy import MOST, Run, address_of, are_alike, overlap, runs, spans
from forebay.runtime.pinned import registered_memory
from forebay.runtime.streams import sync_debug
from forebay.runtime.streams.stream import Stream, stream_of
from forebay.spi import Queue

if TYPE_CHECKING:
    from forebay.runtime.tensors.tensor import Tensor

__all__ = ["copy_array", "copy_tensor", "expect", "fill", "read", "using"]


def copy_tensor(target: Tensor, source: Tensor, *, non_blocking: bool) -> None:
    """Queue a copy on the target's current stream where that can reach the source. Both streams stay in step.

    `sync_debug` is told of one to or from the host that is not `non_blocking`: another runtime would wait.
    """
    doing, other = stream_of(target.storage.opened), stream_of(source.storage.opened)
    if sync_debug.mode and not non_blocking and doing.device.kind != other.device.kind and target.numel():
        for opened in (doing.opened, other.opened):
            sync_debug.waiting(opened)
    apart = doing.device.kind != other.device.kind and not source.storage.host_visible
    if apart and not target.storage.host_visible:  # two vendors' devices: by way of the host
        copy_array(target, read(source), non_blocking=False)
        return
    if apart:  # only the source's own queue can read it
        doing, other = other, doing
    alike = are_alike(target, source)
    if not alike and not source.storage.host_visible and overlap(target.raw_array(), source.raw_array()):
        source = source.clone()
    with using(doing, target.storage, source.storage):
        doing.wait_stream(other)
        if alike:  # in a quarter of the time: to ask NumPy is most of it
            _queue_runs(doing.queue, [(target.data_ptr(), source.data_ptr(), target.nbytes)], target.nbytes)
        else:
            _queue_copy(doing, target, source.raw_array(), readable=source.storage.queue_visible)
    try:
        for listener in observers.of_launches:
            listener.launched(doing, "copy_", (source,), (target,))
    finally:
        other.wait_stream(doing)  # so that the source's memory is not reused under the copy


def copy_array(target: Tensor, source: NDArray[Any], *, non_blocking: bool) -> None:
    """Queue a copy, and wait for it unless the source may be read later."""
    stream = stream_of(target.storage.opened)
    _check_cast(source.dtype, target.dtype)
    wide = np.broadcast_to(source, target.shape)
    if not target.numel():
        return
    if not target.storage.host_visible or source.dtype.kind in "OSUT":
        # NumPy does here and now what a copy of bytes cannot, and tells what is wrong with objects and texts.
        wide = np.array(wide, target.dtype, order="C", copy=None)
    pinned = pinned_block(wide) if non_blocking else None
    held = pinned is not None or (non_blocking and registered_memory.covers(stream.device.kind, wide))
    captured = capture_state.under_way and stream.capture is not None
    if captured:
        if not held:
            raise _uncapturable(stream)
    elif pinned is not None:
        pinned.used_on(stream.queue)
    elif non_blocking and not held and not target.storage.host_visible:  # staged, as CUDA does
        wide = wide.copy()
    elif sync_debug.mode and not held:
        sync_debug.waiting(stream.opened)
    needed: list[object] = [] if captured and not target.storage.borrowed else [target.storage]
    needed += [wide] if captured or pinned is None else []
    with stream.opened.keeping(stream.queue, *needed) as kept:
        _queue_copy(stream, target, wide, readable=True)
    if not non_blocking or (not held and target.storage.host_visible):
        stream.opened.wait(stream.queue, kept.tick)
        for listener in observers.listeners:
            listener.stream_synchronized(stream)
    for listener in observers.of_launches:
        listener.launched(stream, "copy_", (), (target,))


def using(stream: Stream, *storages: Storage) -> AbstractContextManager[object]:
    """For what is queued inside: memory that is not the allocator's is kept, or the pinned allocator keeps it."""
    borrowed = []
    if capture_state.under_way and stream.capture is not None:
        stream.capture.use(storages)
        return stream.opened.keeping(stream.queue, *(storage for storage in storages if storage.borrowed))
    for storage in storages:
        if (pinned := pinned_block(storage.owner)) is not None:
            pinned.used_on(stream.queue)
        elif storage.borrowed:
            borrowed.append(storage)
    return stream.opened.keeping(stream.queue, *borrowed) if borrowed else nullcontext()


def expect(queue: Queue, *arrays: NDArray[Any]) -> None:
    """Before a function is queued that writes to them: OutOfMemory where the queue knows that it cannot."""
    if foresees(queue):
        queue.expect(*(span for array in arrays for span in spans(array)))


def _queue_copy(stream: Stream, target: Tensor, source: NDArray[Any], *, readable: bool) -> None:
    """By the queue's own copies where plain bytes move, else by NumPy in the queue where that can see both ends."""
    array = target.raw_array()
    _check_cast(source.dtype, array.dtype)
    source = np.broadcast_to(source, target.shape)
    if not target.numel():
        return
    queue = stream.queue
    by_numpy = readable and target.storage.queue_visible and launches(queue)
    if array.dtype == source.dtype and not overlap(array, source):
        moves = runs(array, source) if by_numpy else runs(array, source, at_most=MOST)
        if moves is not None:
            _queue_runs(queue, moves, array.nbytes)
            return
    if not (by_numpy and launches(queue)):
        raise Unsupported(
            f"{stream.device} copies bytes in at most {MOST} runs, and converts nothing: not from "
            f"{source.dtype} of strides {source.strides} to {array.dtype} of strides {array.strides}; "
            "do that with NumPy on the host",
            ability="Launches",
        )
    expect(queue, array)
    tracer = observers.tracer
    begun = tracer.queueing(queue) if tracer else None
    queue.call(lambda: np.copyto(array, source, casting="unsafe"))
    if tracer:
        tracer.queued(queue, begun, "call", "copy_", array.nbytes, None, 2)


def _queue_runs(queue: Queue, moves: Iterable[Run], nbytes: int) -> None:
    tracer = observers.tracer
    begun = tracer.queueing(queue) if tracer else None
    for to, from_, count in moves:
        queue.copy(to, from_, count)
    if tracer:
        tracer.queued(queue, begun, "copy", "copy_", nbytes, None, 2)


def _uncapturable(stream: Stream) -> RuntimeError:
    word = stream.device.kind.upper()
    return RuntimeError(
        f"Cannot copy between CPU and {word} tensors during {word} graph capture unless the CPU tensor is pinned. "
        "Please use tensor.pin_memory() or allocate the tensor with pin_memory=True."
    )


def _check_cast(source: np.dtype[Any], target: np.dtype[Any]) -> None:
    if not np.can_cast(source, target, "unsafe"):
        raise TypeError(f"{source} cannot be converted to {target}")


def fill(target: Tensor, value: Any) -> None:
    """Queue the value for every element on the target's device's current stream."""
    element = np.empty((), target.dtype)
    element[()] = value
    if not target.numel():
        return
    stream = stream_of(target.storage.opened)
    byte = set(element.tobytes())
    with using(stream, target.storage):
        queue, what = stream.queue, "fill"
        tracer = observers.tracer
        begun = tracer.queueing(queue) if tracer else None
        if len(byte) == 1 and target.is_contiguous():
            queue.fill(target.data_ptr(), byte.pop(), target.nbytes)
        elif target.storage.queue_visible and launches(queue):
            array = target.raw_array()
            expect(queue, array)
            queue.call(lambda: np.copyto(array, element))
            what = "call"
        else:
            copy_array(target, element, non_blocking=False)
            return
        if tracer:
            tracer.queued(queue, begun, what, "fill_", target.nbytes, None, 1)
    for listener in observers.of_launches:
        listener.launched(stream, "fill_", (), (target,))


def read(source: Tensor) -> NDArray[Any]:
    """The elements in host memory, after waiting for the current stream; a copy, or the memory itself."""
    stream = stream_of(source.storage.opened)
    for listener in observers.of_launches:
        listener.launched(stream, "read", (source,), ())
    if source.storage.host_visible:
        stream.synchronize()
        return source.raw_array()
    if capture_state.under_way and stream.capture is not None:
        raise _uncapturable(stream)
    if sync_debug.mode:
        sync_debug.waiting(stream.opened)
    whole = source.contiguous()
    array = np.empty(source.shape, source.dtype)
    with stream.opened.keeping(stream.queue, array, whole.storage) as kept:
        if array.nbytes:
            tracer = observers.tracer
            begun = tracer.queueing(stream.queue) if tracer else None
            stream.queue.copy(address_of(array), whole.data_ptr(), array.nbytes)
            if tracer:
                tracer.queued(stream.queue, begun, "copy", "read", array.nbytes, None, 1)
    stream.opened.wait(stream.queue, kept.tick)
    for listener in observers.listeners:
        listener.stream_synchronized(stream)
    return array
