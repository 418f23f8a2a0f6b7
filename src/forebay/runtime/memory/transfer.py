"""Copies, fills and reads of tensors: the choice of queue and method, and stream synchronisation."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from forebay._core import Block
from forebay.errors import Unsupported
from forebay.runtime.base import capture_state, observers
from forebay.runtime.base.queue_capabilities import can_copy_strided, can_launch, is_lazily_backed
from forebay.runtime.base.torch_types import torch_name
from forebay.runtime.memory.storage import Storage, pinned_block
from forebay.runtime.memory.strided_copy import (
    CHEAP_RUNS,
    MAX_RUNS,
    Elements,
    Run,
    address_of,
    byte_ranges,
    contiguous_runs,
    elements_of,
    is_plain_copy,
    may_overlap,
)
from forebay.runtime.pinned import registered_memory
from forebay.runtime.streams import sync_debug
from forebay.runtime.streams.stream import Stream, current_stream_for
from forebay.spi import Queue, StridedCopy

if TYPE_CHECKING:
    from forebay.runtime.base.queue_capabilities import LaunchingQueue
    from forebay.runtime.tensors.tensor import Tensor

__all__ = ["copy_array", "copy_tensor", "ensure_backed", "fill", "keep_alive", "read", "read_item", "zero"]

_NOTHING = nullcontext()
_complex_cast_reported = False


def copy_tensor(target: Tensor, source: Tensor, *, non_blocking: bool) -> None:
    """Queue a copy, on the target's current stream if it can access the source, ordered with both current streams.

    Reports a blocking copy between device kinds to `sync_debug`: another runtime would synchronise.
    """
    stream, other = current_stream_for(target.raw_storage.opened), current_stream_for(source.raw_storage.opened)
    if capture_state.active and stream.opened.device.kind != other.device.kind:
        if (capture := stream.capture) is not None:
            _capture_host_copy(capture, stream, target, source, host=source, non_blocking=non_blocking)
            return
        if (capture := other.capture) is not None:
            _capture_host_copy(capture, other, target, source, host=target, non_blocking=non_blocking)
            return
    if non_blocking and stream.opened.device.kind != other.device.kind and (source.is_pinned() or target.is_pinned()):
        _copy_pinned(target, source)
        return
    if sync_debug.mode and not non_blocking and stream.opened.device.kind != other.device.kind and target.numel():
        for opened in (stream.opened, other.opened):
            sync_debug.check_wait(opened)
    unreachable = stream.opened.device.kind != other.device.kind and not source.raw_storage.host_visible
    if unreachable and not target.raw_storage.host_visible:  # neither device can access the other: copy via the host
        copy_array(target, read(source), non_blocking=False)
        return
    if unreachable:  # only the source's queue can read the source
        stream, other = other, stream
    plain = is_plain_copy(target, source)
    if not (plain or source.raw_storage.host_visible or can_copy_strided(stream.queue)) and _share_memory(
        target, source
    ):
        source = source.clone()
    with keep_alive(stream, target.raw_storage, source.raw_storage, non_blocking=non_blocking):
        stream.wait_stream(other)
        if plain:  # four times as fast as the general case, whose checks with NumPy dominate
            _queue_runs(stream.queue, [(target.raw_address(), source.raw_address(), target.nbytes)], target.nbytes)
        else:
            readable = source.raw_storage.queue_visible
            _queue_copy(stream, target, elements_of(source), source.raw_storage, readable=readable)
    try:
        for listener in observers.launch_observers:
            listener.launched(stream, "copy_", (source,), (target,))
    finally:
        other.wait_stream(stream)  # the source's memory must not be reused during the copy


def _copy_pinned(target: Tensor, source: Tensor) -> None:
    """Queue a copy between a device and pinned memory on the device's current stream, without waiting for it.

    As PyTorch does: only the pinned memory's reuse is ordered with the copy, other use of it by the host is not.
    """
    host, there = (source, target) if source.is_pinned() else (target, source)
    stream = current_stream_for(there.raw_storage.opened)
    stream.wait_stream(current_stream_for(host.raw_storage.opened))  # the host waits: PyTorch's would have nothing left
    registered = pinned_block(host.raw_storage.owner) is None  # the free of such memory waits for nothing
    owned = (host.raw_storage,) if registered else ()
    with keep_alive(stream, target.raw_storage, source.raw_storage), stream.opened.keep_alive(stream.queue, *owned):
        if is_plain_copy(target, source):
            _queue_runs(stream.queue, [(target.data_ptr(), source.data_ptr(), target.nbytes)], target.nbytes)
        else:
            readable = source.raw_storage.queue_visible
            _queue_copy(stream, target, elements_of(source), source.raw_storage, readable=readable)
    for listener in observers.launch_observers:
        listener.launched(stream, "copy_", (source,), (target,))


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
        capture_state.forbid_on(stream.queue, stream.opened.device.kind, "copy_")
    capture.hosts.add(host.raw_storage.opened)
    capture.recording.retain(host.raw_storage)
    with keep_alive(stream, (source if host is target else target).raw_storage):
        _queue_copy(stream, target, elements_of(source), source.raw_storage, readable=source.raw_storage.queue_visible)
    for listener in observers.launch_observers:
        listener.launched(stream, "copy_", (source,), (target,))


def copy_array(target: Tensor, source: NDArray[Any], *, non_blocking: bool) -> None:
    """Queue a copy from host memory. Wait until it is done, unless the source may be read later."""
    stream = current_stream_for(target.raw_storage.opened)
    _check_cast(source.dtype, target.numpy_dtype)
    array = np.broadcast_to(source, target.shape)
    if not target.numel():
        return
    if not target.raw_storage.host_visible or source.dtype.kind in "OSUT":
        # NumPy converts now what a copy of bytes cannot, and raises for bad objects and strings.
        array = np.array(array, target.numpy_dtype, order="C", copy=None)
    pinned = pinned_block(array) if non_blocking else None
    stable = pinned is not None or (non_blocking and registered_memory.covers(stream.opened.device.kind, array))
    captured = capture_state.active and stream.capture is not None
    if captured:
        if not stable:
            raise _uncapturable(stream)
    elif pinned is not None:
        pinned.record_stream(stream.queue)
    elif non_blocking and not stable and not target.raw_storage.host_visible:  # staged, as CUDA does
        array = array.copy()
    elif sync_debug.mode and not stable:
        sync_debug.check_wait(stream.opened)
    keep: list[object] = [target.raw_storage] if target.raw_storage.borrowed else []  # others are freed in stream order
    keep += [array] if captured or pinned is None else []
    with stream.opened.keep_alive(stream.queue, *keep) as kept:
        _queue_copy(stream, target, elements_of(array), array, readable=True)
    waits = not non_blocking or (not stable and target.raw_storage.host_visible)
    if waits:
        stream.opened.wait(stream.queue, kept.tick)
    try:
        for listener in observers.launch_observers:
            listener.launched(stream, "copy_", (), (target,))
    finally:
        if waits:  # the copy precedes the synchronization, which orders all streams after it
            for listener in observers.registered:
                listener.stream_synchronized(stream)


def keep_alive(stream: Stream, *storages: Storage, non_blocking: bool = False) -> AbstractContextManager[object]:
    """Keep the storages' memory alive for the work that is queued inside the `with` block.

    The allocators order frees of their own blocks after that work; other owners are kept alive. The block's end waits
    for the host's own work on pinned memory, unless `non_blocking`: its allocator would not reuse it before.
    """
    borrowed = []
    waits = False
    if capture_state.active and stream.capture is not None:
        stream.capture.note_inputs(storages)
        return stream.opened.keep_alive(stream.queue, *(storage for storage in storages if storage.borrowed))
    for storage in storages:
        if storage.owner.__class__ is Block:  # most are: neither pinned nor borrowed
            continue
        if (pinned := pinned_block(storage.owner)) is not None:
            if not non_blocking and stream.opened is storage.opened:
                waits = True
            else:
                pinned.record_stream(stream.queue)
        elif storage.borrowed:
            borrowed.append(storage)
    if waits:
        return _WaitAtEnd(stream)
    return stream.opened.keep_alive(stream.queue, *borrowed) if borrowed else _NOTHING


class _WaitAtEnd:
    """Wait at the end of a `with` block for the work that is queued inside."""

    def __init__(self, stream: Stream) -> None:
        self.stream = stream

    def __enter__(self) -> None: ...

    def __exit__(self, *exc_info: object) -> None:
        queue = self.stream.queue
        self.stream.opened.wait(queue, queue.signal())


def ensure_backed(queue: Queue, *arrays: NDArray[Any]) -> None:
    """Ensure that memory backs the arrays, before a function that writes to them is queued.

    Raises OutOfMemory. Does nothing for a queue without the ability `LazilyBacked`.
    """
    if is_lazily_backed(queue):
        queue.ensure_backed(*(span for array in arrays for span in byte_ranges(elements_of(array))))


def _queue_copy(stream: Stream, target: Tensor, source: Elements, owner: object, *, readable: bool) -> None:
    """Queue copies of byte ranges if that suffices, else a strided copy, else a NumPy copy if it can access both.

    `owner` keeps the source's memory alive.
    """
    to = elements_of(target)
    same = to.dtype == source.dtype
    convertible = same or (torch_name(to.dtype) and torch_name(source.dtype))
    if not convertible:
        _check_cast(source.dtype, to.dtype)
    source = source.broadcast_to(to.shape)
    if 0 in to.shape:
        return
    if not same:
        _report_complex_cast(source.dtype, to.dtype)
    queue = stream.queue
    strided = queue if can_copy_strided(queue) and convertible else None
    by_numpy = queue if can_launch(queue) and readable and target.raw_storage.queue_visible else None
    overlap = may_overlap(to, source)
    if same and not overlap:
        max_runs = 1 if strided else CHEAP_RUNS if by_numpy else MAX_RUNS
        if (runs := contiguous_runs(to, source, max_runs=max_runs)) is not None:
            _queue_runs(queue, runs, to.nbytes)
            return
    if strided is not None:
        tracer = observers.tracer
        token = tracer.queueing(queue) if tracer else None
        strided.copy_strided(_strided_copy(to, source, may_overlap=overlap))
        if tracer:
            tracer.queued(queue, token, "copy", "copy_", to.nbytes)
    elif by_numpy is not None:
        _queue_numpy_copy(by_numpy, stream, target, source.array(), "copy_", owner)
    else:
        raise Unsupported(
            f"{stream.opened.device} can only copy bytes, in at most {MAX_RUNS} runs: cannot copy {source.dtype} of "
            f"strides {source.strides} to {to.dtype} of strides {to.strides}; use NumPy on the host instead",
            ability="Launches",
        )


def _strided_copy(to: Elements, source: Elements, *, may_overlap: bool) -> StridedCopy:
    same = to.dtype == source.dtype
    return StridedCopy(
        to.shape,
        to.address,
        to.strides,
        torch_name(to.dtype),
        to.dtype.itemsize,
        source.address,
        source.strides,
        "" if same else torch_name(source.dtype),
        may_overlap=may_overlap,
    )


def _queue_numpy_copy(
    queue: LaunchingQueue, stream: Stream, target: Tensor, source: NDArray[Any], name: str, *owners: object
) -> None:
    """Queue a function that copies by address. A graph keeps the memory alive, as it cannot check what is still there.

    A function that owned its arrays would keep their blocks from being reused until it has run.
    """
    array = elements_of(target).array()
    ensure_backed(queue, array)
    if capture_state.active and (capture := stream.capture) is not None:
        capture.recording.retain(target.raw_storage, *owners)
    tracer = observers.tracer
    token = tracer.queueing(queue) if tracer else None
    queue.call(lambda: np.copyto(array, source, casting="unsafe"))
    if tracer:
        tracer.queued(queue, token, "call", name, array.nbytes)


def _share_memory(target: Tensor, source: Tensor) -> bool:
    return 0 not in target.shape and 0 not in source.shape and may_overlap(elements_of(target), elements_of(source))


def _queue_runs(queue: Queue, runs: Iterable[Run], nbytes: int) -> None:
    tracer = observers.tracer
    token = tracer.queueing(queue) if tracer else None
    for to, from_, count in runs:
        queue.copy(to, from_, count)
    if tracer:
        tracer.queued(queue, token, "copy", "copy_", nbytes)


def _uncapturable(stream: Stream) -> RuntimeError:
    name = stream.opened.device.kind.upper()
    return RuntimeError(
        f"Cannot copy between CPU and {name} tensors during {name} graph capture unless the CPU tensor is pinned. "
        "Please use tensor.pin_memory() or allocate the tensor with pin_memory=True."
    )


def _check_cast(source: np.dtype[Any], target: np.dtype[Any]) -> None:
    if not np.can_cast(source, target, "unsafe"):
        raise TypeError(f"{source} cannot be converted to {target}")


def _report_complex_cast(source: np.dtype[Any], target: np.dtype[Any]) -> None:
    """Warn about a conversion of complex to real numbers, once per process, as PyTorch does."""
    global _complex_cast_reported  # noqa: PLW0603 -- see above
    if source.kind == "c" and target.kind not in "cb" and not _complex_cast_reported:
        _complex_cast_reported = True
        warnings.warn("Casting complex values to real discards the imaginary part", stacklevel=5)


def fill(target: Tensor, value: Any) -> None:
    """Queue a fill of every element with the value, on the current stream of the target's device."""
    element = np.empty((), target.numpy_dtype)
    element[()] = value
    if not target.numel():
        return
    stream = current_stream_for(target.raw_storage.opened)
    value = element.tobytes()
    contiguous = target.is_contiguous()
    with keep_alive(stream, target.raw_storage):
        queue = stream.queue
        tracer = observers.tracer
        token = tracer.queueing(queue) if tracer else None
        if contiguous and value.count(value[0]) == len(value):
            queue.fill(target.raw_address(), value[0], target.nbytes)
        elif can_copy_strided(queue):
            shape, strides, size = tuple(target.shape), target.byte_strides, len(value)
            if contiguous:
                shape, strides = (math.prod(shape),), (size,)
            name = torch_name(element.dtype)
            queue.copy_strided(StridedCopy(shape, target.raw_address(), strides, name, size, value=value))
        elif target.raw_storage.queue_visible and can_launch(queue):
            _queue_numpy_copy(queue, stream, target, element, "fill_")
            tracer = None
        else:
            copy_array(target, element, non_blocking=False)
            return
        if tracer:
            tracer.queued(queue, token, "fill", "fill_", target.nbytes)
    for listener in observers.launch_observers:
        listener.launched(stream, "fill_", (), (target,))


def zero(target: Tensor) -> None:
    """Queue a fill of every element with zero, which exists for each dtype."""
    fill(target, np.zeros((), target.numpy_dtype)[()])


def read_item(source: Tensor) -> Any:
    """Wait for the current stream and return the only element. Breaks the stream's capture, if any."""
    if capture_state.active and not source.raw_storage.host_visible:
        stream = current_stream_for(source.raw_storage.opened)
        capture_state.forbid_on(stream.queue, stream.opened.device.kind, "item")
    return read(source).item()


def read(source: Tensor) -> NDArray[Any]:
    """Wait for the current stream and return the elements, as a copy or, if the host can access them, as a view."""
    stream = current_stream_for(source.raw_storage.opened)
    for listener in observers.launch_observers:
        listener.launched(stream, "read", (source,), ())
    if source.raw_storage.host_visible:
        stream.synchronize()
        return source.raw_array()
    if capture_state.active and stream.capture is not None:
        raise _uncapturable(stream)
    if sync_debug.mode:
        sync_debug.check_wait(stream.opened)
    contiguous = source.contiguous()
    array = np.empty(source.shape, source.numpy_dtype)
    keep = [array, contiguous.raw_storage] if contiguous.raw_storage.borrowed else [array]
    with stream.opened.keep_alive(stream.queue, *keep) as kept:
        if array.nbytes:
            tracer = observers.tracer
            token = tracer.queueing(stream.queue) if tracer else None
            stream.queue.copy(address_of(array), contiguous.raw_address(), array.nbytes)
            if tracer:
                tracer.queued(stream.queue, token, "copy", "read", array.nbytes)
    stream.opened.wait(stream.queue, kept.tick)
    for listener in observers.registered:
        listener.stream_synchronized(stream)
    return array
