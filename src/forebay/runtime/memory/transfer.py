"""Copies, fills and reads of tensors: the choice of queue and method, and stream synchronisation."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from forebay.errors import Unsupported
from forebay.runtime.base import capture_state, observers
from forebay.runtime.base.queue_capabilities import can_launch, is_lazily_backed
from forebay.runtime.memory.storage import Storage, pinned_block
from forebay.runtime.memory.strided_copy import (
    MAX_RUNS,
    Run,
    address_of,
    byte_ranges,
    contiguous_runs,
    is_plain_copy,
    may_overlap,
)
from forebay.runtime.pinned import registered_memory
from forebay.runtime.streams import sync_debug
from forebay.runtime.streams.stream import Stream, current_stream_for
from forebay.spi import Queue

if TYPE_CHECKING:
    from forebay.runtime.tensors.tensor import Tensor

__all__ = ["copy_array", "copy_tensor", "ensure_backed", "fill", "keep_alive", "read", "read_item"]


def copy_tensor(target: Tensor, source: Tensor, *, non_blocking: bool) -> None:
    """Queue a copy, on the target's current stream if it can access the source, ordered with both current streams.

    Reports a blocking copy between device kinds to `sync_debug`: another runtime would synchronise.
    """
    stream, other = current_stream_for(target.storage.opened), current_stream_for(source.storage.opened)
    if capture_state.active and stream.device.kind != other.device.kind:
        if (capture := stream.capture) is not None:
            _capture_host_copy(capture, stream, target, source, host=source, non_blocking=non_blocking)
            return
        if (capture := other.capture) is not None:
            _capture_host_copy(capture, other, target, source, host=target, non_blocking=non_blocking)
            return
    if sync_debug.mode and not non_blocking and stream.device.kind != other.device.kind and target.numel():
        for opened in (stream.opened, other.opened):
            sync_debug.check_wait(opened)
    unreachable = stream.device.kind != other.device.kind and not source.storage.host_visible
    if unreachable and not target.storage.host_visible:  # neither device can access the other: copy via the host
        copy_array(target, read(source), non_blocking=False)
        return
    if unreachable:  # only the source's queue can read the source
        stream, other = other, stream
    plain = is_plain_copy(target, source)
    if not plain and not source.storage.host_visible and may_overlap(target.raw_array(), source.raw_array()):
        source = source.clone()
    with keep_alive(stream, target.storage, source.storage):
        stream.wait_stream(other)
        if plain:  # four times as fast as the general case, whose checks with NumPy dominate
            _queue_runs(stream.queue, [(target.data_ptr(), source.data_ptr(), target.nbytes)], target.nbytes)
        else:
            _queue_copy(stream, target, source.raw_array(), readable=source.storage.queue_visible)
    try:
        for listener in observers.launch_observers:
            listener.launched(stream, "copy_", (source,), (target,))
    finally:
        other.wait_stream(stream)  # the source's memory must not be reused during the copy


def _capture_host_copy(
    capture: capture_state.Capture, stream: Stream, target: Tensor, source: Tensor, *, host: Tensor, non_blocking: bool
) -> None:
    """Capture a copy between the device of the captured stream and the tensor `host`, which must be pinned.

    As PyTorch raises for what it does by way of unpinned memory: other strides of the host, blocking conversions.
    """
    if not target.numel():
        return
    converts = target.numpy_dtype != source.numpy_dtype
    if not host.is_pinned() or not host.is_contiguous() or (converts and not non_blocking):
        raise _uncapturable(stream)
    if not non_blocking:  # the host would wait for the copy
        capture_state.forbid_on(stream.queue, stream.device.kind, "copy_")
    capture.hosts.add(host.storage.opened)
    capture.recording.retain(host.storage)
    with keep_alive(stream, (source if host is target else target).storage):
        _queue_copy(stream, target, source.raw_array(), readable=source.storage.queue_visible)
    for listener in observers.launch_observers:
        listener.launched(stream, "copy_", (source,), (target,))


def copy_array(target: Tensor, source: NDArray[Any], *, non_blocking: bool) -> None:
    """Queue a copy from host memory. Wait until it is done, unless the source may be read later."""
    stream = current_stream_for(target.storage.opened)
    _check_cast(source.dtype, target.numpy_dtype)
    array = np.broadcast_to(source, target.shape)
    if not target.numel():
        return
    if not target.storage.host_visible or source.dtype.kind in "OSUT":
        # NumPy converts now what a copy of bytes cannot, and raises for bad objects and strings.
        array = np.array(array, target.numpy_dtype, order="C", copy=None)
    pinned = pinned_block(array) if non_blocking else None
    stable = pinned is not None or (non_blocking and registered_memory.covers(stream.device.kind, array))
    captured = capture_state.active and stream.capture is not None
    if captured:
        if not stable:
            raise _uncapturable(stream)
    elif pinned is not None:
        pinned.record_stream(stream.queue)
    elif non_blocking and not stable and not target.storage.host_visible:  # staged, as CUDA does
        array = array.copy()
    elif sync_debug.mode and not stable:
        sync_debug.check_wait(stream.opened)
    keep: list[object] = [] if captured and not target.storage.borrowed else [target.storage]
    keep += [array] if captured or pinned is None else []
    with stream.opened.keep_alive(stream.queue, *keep) as kept:
        _queue_copy(stream, target, array, readable=True)
    if not non_blocking or (not stable and target.storage.host_visible):
        stream.opened.wait(stream.queue, kept.tick)
        for listener in observers.registered:
            listener.stream_synchronized(stream)
    for listener in observers.launch_observers:
        listener.launched(stream, "copy_", (), (target,))


def keep_alive(stream: Stream, *storages: Storage) -> AbstractContextManager[object]:
    """Keep the storages' memory alive for the work that is queued inside the `with` block.

    The allocators order frees of their own blocks after that work; other owners are kept alive.
    """
    borrowed = []
    if capture_state.active and stream.capture is not None:
        stream.capture.note_inputs(storages)
        return stream.opened.keep_alive(stream.queue, *(storage for storage in storages if storage.borrowed))
    for storage in storages:
        if (pinned := pinned_block(storage.owner)) is not None:
            pinned.record_stream(stream.queue)
        elif storage.borrowed:
            borrowed.append(storage)
    return stream.opened.keep_alive(stream.queue, *borrowed) if borrowed else nullcontext()


def ensure_backed(queue: Queue, *arrays: NDArray[Any]) -> None:
    """Ensure that memory backs the arrays, before a function that writes to them is queued.

    Raises OutOfMemory. Does nothing for a queue without the ability `LazilyBacked`.
    """
    if is_lazily_backed(queue):
        queue.ensure_backed(*(span for array in arrays for span in byte_ranges(array)))


def _queue_copy(stream: Stream, target: Tensor, source: NDArray[Any], *, readable: bool) -> None:
    """Queue copies of byte ranges if no element changes, else a NumPy copy if the queue can access both arrays."""
    array = target.raw_array()
    _check_cast(source.dtype, array.dtype)
    source = np.broadcast_to(source, target.shape)
    if not target.numel():
        return
    queue = stream.queue
    by_numpy = readable and target.storage.queue_visible and can_launch(queue)
    if array.dtype == source.dtype and not may_overlap(array, source):
        runs = contiguous_runs(array, source) if by_numpy else contiguous_runs(array, source, max_runs=MAX_RUNS)
        if runs is not None:
            _queue_runs(queue, runs, array.nbytes)
            return
    if not (by_numpy and can_launch(queue)):
        raise Unsupported(
            f"{stream.device} can only copy bytes, in at most {MAX_RUNS} runs: cannot copy {source.dtype} of strides "
            f"{source.strides} to {array.dtype} of strides {array.strides}; use NumPy on the host instead",
            ability="Launches",
        )
    ensure_backed(queue, array)
    tracer = observers.tracer
    token = tracer.queueing(queue) if tracer else None
    queue.call(lambda: np.copyto(array, source, casting="unsafe"))
    if tracer:
        tracer.queued(queue, token, "call", "copy_", array.nbytes)


def _queue_runs(queue: Queue, runs: Iterable[Run], nbytes: int) -> None:
    tracer = observers.tracer
    token = tracer.queueing(queue) if tracer else None
    for to, from_, count in runs:
        queue.copy(to, from_, count)
    if tracer:
        tracer.queued(queue, token, "copy", "copy_", nbytes)


def _uncapturable(stream: Stream) -> RuntimeError:
    name = stream.device.kind.upper()
    return RuntimeError(
        f"Cannot copy between CPU and {name} tensors during {name} graph capture unless the CPU tensor is pinned. "
        "Please use tensor.pin_memory() or allocate the tensor with pin_memory=True."
    )


def _check_cast(source: np.dtype[Any], target: np.dtype[Any]) -> None:
    if not np.can_cast(source, target, "unsafe"):
        raise TypeError(f"{source} cannot be converted to {target}")


def fill(target: Tensor, value: Any) -> None:
    """Queue a fill of every element with the value, on the current stream of the target's device."""
    element = np.empty((), target.numpy_dtype)
    element[()] = value
    if not target.numel():
        return
    stream = current_stream_for(target.storage.opened)
    bytes_ = set(element.tobytes())
    with keep_alive(stream, target.storage):
        queue, operation = stream.queue, "fill"
        tracer = observers.tracer
        token = tracer.queueing(queue) if tracer else None
        if len(bytes_) == 1 and target.is_contiguous():
            queue.fill(target.data_ptr(), bytes_.pop(), target.nbytes)
        elif target.storage.queue_visible and can_launch(queue):
            array = target.raw_array()
            ensure_backed(queue, array)
            queue.call(lambda: np.copyto(array, element))
            operation = "call"
        else:
            copy_array(target, element, non_blocking=False)
            return
        if tracer:
            tracer.queued(queue, token, operation, "fill_", target.nbytes)
    for listener in observers.launch_observers:
        listener.launched(stream, "fill_", (), (target,))


def read_item(source: Tensor) -> Any:
    """Wait for the current stream and return the only element. Breaks the stream's capture, if any."""
    if capture_state.active and not source.storage.host_visible:
        stream = current_stream_for(source.storage.opened)
        capture_state.forbid_on(stream.queue, stream.device.kind, "item")
    return read(source).item()


def read(source: Tensor) -> NDArray[Any]:
    """Wait for the current stream and return the elements, as a copy or, if the host can access them, as a view."""
    stream = current_stream_for(source.storage.opened)
    for listener in observers.launch_observers:
        listener.launched(stream, "read", (source,), ())
    if source.storage.host_visible:
        stream.synchronize()
        return source.raw_array()
    if capture_state.active and stream.capture is not None:
        raise _uncapturable(stream)
    if sync_debug.mode:
        sync_debug.check_wait(stream.opened)
    contiguous = source.contiguous()
    array = np.empty(source.shape, source.numpy_dtype)
    with stream.opened.keep_alive(stream.queue, array, contiguous.storage) as kept:
        if array.nbytes:
            tracer = observers.tracer
            token = tracer.queueing(stream.queue) if tracer else None
            stream.queue.copy(address_of(array), contiguous.data_ptr(), array.nbytes)
            if tracer:
                tracer.queued(stream.queue, token, "copy", "read", array.nbytes)
    stream.opened.wait(stream.queue, kept.tick)
    for listener in observers.registered:
        listener.stream_synchronized(stream)
    return array
