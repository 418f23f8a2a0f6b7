"""How bytes get from one place to another: which way each copy and fill takes, and who waits."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from penstock.errors import Unsupported
from penstock.runtime import capturing, listening, registered_memory, sync_debug
from penstock.runtime.storage import Storage, pinned_block
from penstock.runtime.stream import Stream, stream_of
from penstock.spi import Foresees, Launches, Queue

if TYPE_CHECKING:
    from penstock.runtime.tensor import Tensor

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
    array = source.raw_array()
    if not source.storage.host_visible and _overlap(target.raw_array(), array):
        source = source.clone()
        array = source.raw_array()
    with using(doing, target.storage, source.storage):
        doing.wait_stream(other)
        _queue_copy(doing, target, array, readable=source.storage.queue_visible)
    try:
        for listener in listening.of_launches:
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
    captured = capturing.under_way and stream.capture is not None
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
        for listener in listening.listeners:
            listener.stream_synchronized(stream)
    for listener in listening.of_launches:
        listener.launched(stream, "copy_", (), (target,))


def using(stream: Stream, *storages: Storage) -> AbstractContextManager[object]:
    """For what is queued inside: memory that is not the allocator's is kept, or the pinned allocator keeps it."""
    borrowed = []
    if capturing.under_way and stream.capture is not None:
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
    if not isinstance(queue, Foresees):
        return
    spans = list[tuple[int, int]]()
    for array in arrays:
        if (runs := _runs(array, array, _FEW_RUNS)) is not None:
            spans += [(at, nbytes) for at, _, nbytes in runs]
        else:
            low, end = np.lib.array_utils.byte_bounds(array)
            spans.append((low, end - low))
    queue.expect(*spans)


def _queue_copy(stream: Stream, target: Tensor, source: NDArray[Any], *, readable: bool) -> None:
    """By the queue's own copies where plain bytes move, else by NumPy in the queue where that can see both ends."""
    array = target.raw_array()
    _check_cast(source.dtype, array.dtype)
    source = np.broadcast_to(source, target.shape)
    if not target.numel():
        return
    queue = stream.queue
    by_numpy = readable and target.storage.queue_visible and isinstance(queue, Launches)
    most = _FEW_RUNS if by_numpy else _MOST_RUNS
    if array.dtype == source.dtype and not _overlap(array, source) and (runs := _runs(array, source, most)) is not None:
        tracer = listening.tracer
        begun = tracer.queueing(queue) if tracer else None
        for dst, src, nbytes in runs:
            queue.copy(dst, src, nbytes)
        if tracer:
            tracer.queued(queue, begun, "copy", "copy_", array.nbytes, None, 2)
        return
    if not (by_numpy and isinstance(queue, Launches)):
        raise Unsupported(
            f"{stream.device} copies bytes in at most {_MOST_RUNS} runs, and converts nothing: not from "
            f"{source.dtype} of strides {source.strides} to {array.dtype} of strides {array.strides}; "
            "do that with NumPy on the host",
            ability="Launches",
        )
    expect(queue, array)
    tracer = listening.tracer
    begun = tracer.queueing(queue) if tracer else None
    queue.call(lambda: np.copyto(array, source, casting="unsafe"))
    if tracer:
        tracer.queued(queue, begun, "call", "copy_", array.nbytes, None, 2)


def _uncapturable(stream: Stream) -> RuntimeError:
    word = stream.device.kind.upper()
    return RuntimeError(
        f"Cannot copy between CPU and {word} tensors during {word} graph capture unless the CPU tensor is pinned. "
        "Please use tensor.pin_memory() or allocate the tensor with pin_memory=True."
    )


def _check_cast(source: np.dtype[Any], target: np.dtype[Any]) -> None:
    if not np.can_cast(source, target, "unsafe"):
        raise TypeError(f"{source} cannot be converted to {target}")


def _overlap(target: NDArray[Any], source: NDArray[Any]) -> bool:
    """Whether they share an element; True, too, where it takes long to find out. Reads nothing."""
    try:
        return np.shares_memory(target, source, max_work=1000)  # type: ignore[arg-type]  # the stub is too strict
    except np.exceptions.TooHardError:
        return True


_FEW_RUNS = 8  # a command costs 2 µs, and one pass by NumPy about ten
_MOST_RUNS = 4096  # where there is no other way: a hundredth of a second
_LONG_RUN = 1 << 18  # bytes; so many are worth a command


def _runs(target: NDArray[Any], source: NDArray[Any], most: int) -> Iterator[tuple[int, int, int]] | None:
    """The copies of unbroken bytes that make up this one; None when there are more than `most`, and they are short."""
    inner, nbytes = target.ndim, target.itemsize
    while inner and target.strides[inner - 1] == source.strides[inner - 1] == nbytes:
        inner -= 1
        nbytes *= target.shape[inner]
    outer = target.shape[:inner]
    if math.prod(outer) > (_MOST_RUNS if nbytes >= _LONG_RUN else most):
        return None
    at, from_ = _address(target), _address(source)
    return (
        (at + int(np.dot(index, target.strides[:inner])), from_ + int(np.dot(index, source.strides[:inner])), nbytes)
        for index in np.ndindex(outer)
    )


def fill(target: Tensor, value: Any) -> None:
    """Queue the value for every element on the target's device's current stream."""
    element = np.empty((), target.dtype)
    element[()] = value
    if not target.numel():
        return
    stream = stream_of(target.storage.opened)
    array = target.raw_array()
    byte = set(element.tobytes())
    with using(stream, target.storage):
        queue, what = stream.queue, "fill"
        tracer = listening.tracer
        begun = tracer.queueing(queue) if tracer else None
        if len(byte) == 1 and array.flags.c_contiguous:
            queue.fill(target.data_ptr(), byte.pop(), target.nbytes)
        elif target.storage.queue_visible and isinstance(queue, Launches):
            expect(queue, array)
            queue.call(lambda: np.copyto(array, element))
            what = "call"
        else:
            copy_array(target, element, non_blocking=False)
            return
        if tracer:
            tracer.queued(queue, begun, what, "fill_", array.nbytes, None, 1)
    for listener in listening.of_launches:
        listener.launched(stream, "fill_", (), (target,))


def read(source: Tensor) -> NDArray[Any]:
    """The elements in host memory, after waiting for the current stream; a copy, or the memory itself."""
    stream = stream_of(source.storage.opened)
    for listener in listening.of_launches:
        listener.launched(stream, "read", (source,), ())
    if source.storage.host_visible:
        stream.synchronize()
        return source.raw_array()
    if capturing.under_way and stream.capture is not None:
        raise _uncapturable(stream)
    if sync_debug.mode:
        sync_debug.waiting(stream.opened)
    whole = source.contiguous()
    array = np.empty(source.shape, source.dtype)
    with stream.opened.keeping(stream.queue, array, whole.storage) as kept:
        if array.nbytes:
            tracer = listening.tracer
            begun = tracer.queueing(stream.queue) if tracer else None
            stream.queue.copy(_address(array), whole.data_ptr(), array.nbytes)
            if tracer:
                tracer.queued(stream.queue, begun, "copy", "read", array.nbytes, None, 1)
    stream.opened.wait(stream.queue, kept.tick)
    for listener in listening.listeners:
        listener.stream_synchronized(stream)
    return array


def _address(array: NDArray[Any]) -> int:
    address: int = array.__array_interface__["data"][0]
    return address
