"""Copies, fills and reads of tensors: the execution of their plans, and stream synchronisation."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from forebay import backends
from forebay.errors import Unsupported, user_frame
from forebay.runtime.base import capture_state, observers
from forebay.runtime.base.queue_capabilities import can_copy_strided, can_launch, is_lazily_backed
from forebay.runtime.base.torch_types import torch_name
from forebay.runtime.memory.copy_plan import CopyPlan, Side, plan_copy
from forebay.runtime.memory.storage import Storage, keep_alive, pinned_block
from forebay.runtime.memory.strided_copy import (
    CHEAP_RUNS,
    MAX_RUNS,
    Elements,
    Run,
    address_of,
    broadcast_error,
    byte_ranges,
    contiguous_runs,
    elements_of,
    is_c_contiguous,
    may_overlap,
    overlap,
    plain_run,
    slowest_first,
    strided_copy,
)
from forebay.runtime.pinned import registered_memory
from forebay.runtime.streams import sync_debug
from forebay.runtime.streams.stream import Stream, current_stream_for
from forebay.spi import Peers, PinnedHost, Queue, StridedCopy

if TYPE_CHECKING:
    from forebay.runtime.base.capture_state import Capture
    from forebay.runtime.base.queue_capabilities import LaunchingQueue, StridedCopyQueue
    from forebay.runtime.tensors.tensor import Tensor

__all__ = ["copy_array", "copy_tensor", "element_queues", "ensure_backed", "fill", "read", "read_item", "zero"]

_complex_cast_reported = False


def copy_tensor(target: Tensor, source: Tensor, *, non_blocking: bool) -> None:
    """Queue a copy as `plan_copy` decides.

    Reports a blocking copy between device kinds to `sync_debug`: another runtime would synchronise. Raises RuntimeError
    if the source cannot be broadcast to the target.
    """
    given = source
    if source.shape != target.shape:
        try:
            source = source.expand(*target.shape)
        except RuntimeError:
            raise broadcast_error(target.shape, source.shape) from None
    streams = to, from_ = current_stream_for(target.raw_storage.opened), current_stream_for(source.raw_storage.opened)
    capture = None
    if to.opened.device.kind == from_.opened.device.kind:
        plan = plan_copy(same_kind=True, source_visible=source.raw_storage.host_visible)
    else:
        if capture_state.active and (capture := to.capture or from_.capture) is not None and not target.numel():
            return
        captured: Side | None = None if capture is None else "target" if to.capture is capture else "source"
        plan = _plan_between_kinds(target, source, captured, non_blocking=non_blocking)
    if capture is None and to.opened is not from_.opened and target.numel():
        order = _shared_order(target, source)
        if order is not None:
            target, source = target.in_order(order), source.in_order(order)
        elif not _is_direct(target, source):
            _copy_by_temporaries(target, source, given, non_blocking=non_blocking)
            return
    if plan.synchronizes and sync_debug.mode and target.numel():
        for each in streams:
            sync_debug.check_wait(each.opened)
    stream, other = streams if plan.queue == "target" else streams[::-1]
    if plan.route == "direct":
        _copy_directly(plan, stream, other, target, source, non_blocking=non_blocking)
    elif plan.route == "asynchronous":
        _copy_asynchronously(plan, stream, other, target, source)
    elif capture is not None:
        _capture_copy(plan, capture, stream, target, source, non_blocking=non_blocking)
    else:
        copy_array(target, read(source), non_blocking=False)


# Note [Temporaries of copies]
# A copy between two devices is one command if the elements have the same type and the same order in memory, without
# gaps. PyTorch makes others by way of contiguous temporaries: those on a device count in its statistics and can make it
# run out of memory, so they are made here as there. Types are converted on the device that has the queue for it: on the
# host unless the copy is `non_blocking`. Two devices that can access each other's memory need no temporary, and neither
# does memory that the host can access on both sides.
# Test: tests/names/test_scenes.py::test_forebay_does_as_recorded


def _is_direct(target: Tensor, source: Tensor) -> bool:
    """Return True if elements can be copied from one device to the other one by one."""
    (to, visible), (from_, source_visible) = (
        (each.raw_storage.opened, each.raw_storage.host_visible) for each in (target, source)
    )
    if visible and source_visible:
        return True
    if to.device.kind != from_.device.kind:
        return False
    driver = backends.driver(to.device.kind)
    return isinstance(driver, Peers) and driver.can_access(to.device.index or 0, from_.device.index or 0)


def _shared_order(target: Tensor, source: Tensor) -> list[int] | None:
    """Return the dimensions in the order in which both are contiguous, of one type; None if there is no such order."""
    dtype = target.numpy_dtype
    if dtype != source.numpy_dtype:
        return None
    order = slowest_first(target.shape, target.byte_strides, source.byte_strides)
    shape = tuple(target.shape[dim] for dim in order)
    alike = all(
        is_c_contiguous(shape, tuple(each.byte_strides[dim] for dim in order), dtype.itemsize)
        for each in (target, source)
    )
    return order if alike else None


def _copy_by_temporaries(target: Tensor, source: Tensor, given: Tensor, *, non_blocking: bool) -> None:
    """Copy by way of contiguous temporaries: Note [Temporaries of copies]. `given` is the source before it expands."""
    contiguous = target.is_contiguous()
    device = source.raw_storage.opened if target.raw_storage.host_visible else target.raw_storage.opened
    converts = target.numpy_dtype != source.numpy_dtype
    on_device = non_blocking and (
        not converts
        or any(element_queues(device.default_queue, target.numpy_dtype, source.numpy_dtype, (given.raw_storage,)))
    )
    if on_device != source.raw_storage.host_visible:  # the source's device converts
        to = target if contiguous else target.packed_like(target.numpy_dtype)
        from_ = given.to(dtype=target.numpy_dtype).expand(*target.shape).contiguous()
    else:
        to = target if contiguous and not converts else target.packed_like(source.numpy_dtype)
        from_ = source.contiguous()
    copy_tensor(to, from_, non_blocking=non_blocking)
    del from_  # freed before the other one, as there
    if to is not target:
        copy_tensor(target, to, non_blocking=non_blocking)


def _plan_between_kinds(target: Tensor, source: Tensor, captured: Side | None, *, non_blocking: bool) -> CopyPlan:
    """Plan with the facts that can matter: whether memory is pinned takes long to find out."""
    pinned: Side | None = None
    if non_blocking or captured:
        if captured != "source" and source.is_pinned():
            pinned = "source"
        elif captured != "target" and target.is_pinned():
            pinned = "target"
    host = target if pinned == "target" else source
    return plan_copy(
        non_blocking=non_blocking,
        target_visible=target.raw_storage.host_visible,
        source_visible=source.raw_storage.host_visible,
        captured=captured,
        pinned=pinned,
        registered=pinned is not None and pinned_block(host.raw_storage.owner) is None,
        contiguous=captured is None or host.is_contiguous(),
        converts=captured is not None and target.numpy_dtype != source.numpy_dtype,
    )


def _copy_directly(
    plan: CopyPlan, stream: Stream, other: Stream, target: Tensor, source: Tensor, *, non_blocking: bool
) -> None:
    run = plain_run(target, source)
    if run is None and plan.temporary == "clone" and not can_copy_strided(stream.queue) and overlap(target, source):
        source = source.clone()
    with keep_alive(stream, target.raw_storage, source.raw_storage, non_blocking=non_blocking):
        stream.wait_stream(other)
        _queue_tensor(stream, target, source, run)
    try:
        for listener in observers.launch_observers:
            listener.launched(stream, "copy_", (source,), (target,))
    finally:
        other.wait_stream(stream)  # the source's memory must not be reused during the copy


def _copy_asynchronously(plan: CopyPlan, stream: Stream, other: Stream, target: Tensor, source: Tensor) -> None:
    """Queue a copy between a device and pinned memory, whose other use by the host is not ordered with the copy.

    As in PyTorch.
    """
    stream.wait_stream(other)  # the host waits: PyTorch's would have nothing left
    owned = ((source if plan.queue == "target" else target).raw_storage,) if plan.keeps == "host" else ()
    storages = target.raw_storage, source.raw_storage
    uses = keep_alive(stream, *storages, non_blocking=not plan.synchronizes)
    with uses, stream.opened.keep_alive(stream.queue, *owned):
        _queue_tensor(stream, target, source, plain_run(target, source))
    for listener in observers.launch_observers:
        listener.launched(stream, "copy_", (source,), (target,))


def _capture_copy(
    plan: CopyPlan, capture: Capture, stream: Stream, target: Tensor, source: Tensor, *, non_blocking: bool
) -> None:
    if plan.temporary != "none":
        raise _uncapturable(stream)
    if not non_blocking:  # the host would wait for the copy
        capture_state.forbid_on(stream.queue, stream.opened.device.kind, "copy_")
    host, there = (source, target) if plan.queue == "target" else (target, source)
    capture.hosts.add(host.raw_storage.opened)
    capture.recording.retain(host.raw_storage)
    with keep_alive(stream, there.raw_storage):
        _queue_tensor(stream, target, source, None)
    for listener in observers.launch_observers:
        listener.launched(stream, "copy_", (source,), (target,))


def copy_array(target: Tensor, source: NDArray[Any], *, non_blocking: bool) -> None:
    """Queue a copy from host memory as `plan_copy` decides."""
    stream = current_stream_for(target.raw_storage.opened)
    _check_cast(source.dtype, target.numpy_dtype)
    array = np.broadcast_to(source, target.shape)
    if not target.numel():
        return
    visible = target.raw_storage.host_visible
    if not visible or source.dtype.kind in "OSUT":
        # NumPy converts now what a copy of bytes cannot, and raises for bad objects and strings.
        array = np.array(array, target.numpy_dtype, order="C", copy=None)
    pinned = pinned_block(array) if non_blocking else None
    registered = non_blocking and pinned is None and registered_memory.covers(stream.opened.device.kind, array)
    plan = plan_copy(
        non_blocking=non_blocking,
        target_visible=visible,
        source_on_stream=False,
        captured="target" if capture_state.active and stream.capture is not None else None,
        pinned="source" if pinned is not None or registered else None,
        registered=registered,
    )
    if plan.temporary == "host":
        if plan.route == "captured":
            raise _uncapturable(stream)
        array = array.copy()
    if plan.synchronizes and sync_debug.mode:
        sync_debug.check_wait(stream.opened)
    keep: list[object] = [target.raw_storage] if target.raw_storage.borrowed else []  # others are freed in stream order
    if plan.keeps != "owners":
        keep.append(array)
    elif pinned is not None:
        pinned.record_stream(stream.queue)
    with stream.opened.keep_alive(stream.queue, *keep) as kept:
        _queue_elements(stream, target, elements_of(array), array)
    if plan.synchronizes:
        stream.opened.wait(stream.queue, kept.tick)
    try:
        for listener in observers.launch_observers:
            listener.launched(stream, "copy_", (), (target,))
    finally:
        if plan.synchronizes:  # the copy precedes the synchronization, which orders all streams after it
            for listener in observers.registered:
                listener.stream_synchronized(stream)


def ensure_backed(queue: Queue, *arrays: NDArray[Any]) -> None:
    """Ensure that memory backs the arrays, before a function that writes to them is queued.

    Raises OutOfMemory. Does nothing for a queue without the ability `LazilyBacked`.
    """
    if is_lazily_backed(queue):
        queue.ensure_backed(*(span for array in arrays for span in byte_ranges(elements_of(array))))


def _queue_tensor(stream: Stream, target: Tensor, source: Tensor, run: Run | None) -> None:
    if run is not None:  # four times as fast as the general case, whose checks with NumPy dominate
        _queue_runs(stream.queue, (run,), run[2])
    else:
        _queue_elements(stream, target, elements_of(source), source.raw_storage)


def _queue_elements(stream: Stream, target: Tensor, source: Elements, owner: Storage | NDArray[Any]) -> None:
    """Queue copies of byte ranges if that suffices, else a strided copy, else a NumPy copy if it can access both.

    `owner` keeps the source's memory alive.
    """
    to = elements_of(target)
    same = to.dtype == source.dtype
    queue = stream.queue
    storages = (target.raw_storage, owner) if isinstance(owner, Storage) else (target.raw_storage,)
    strided, by_numpy = element_queues(queue, to.dtype, source.dtype, storages)
    if not same and strided is None:
        _check_cast(source.dtype, to.dtype)
    if source.shape != to.shape:
        source = source.broadcast_to(to.shape)
    if 0 in to.shape:
        return
    if not same:
        _report_complex_cast(source.dtype, to.dtype)
    overlapping = may_overlap(to, source)
    if same and not overlapping:
        max_runs = 1 if strided else CHEAP_RUNS if by_numpy else MAX_RUNS
        if (runs := contiguous_runs(to, source, max_runs=max_runs)) is not None:
            _queue_runs(queue, runs, to.nbytes)
            return
    if strided is not None:
        tracer = observers.tracer
        token = tracer.queueing(queue) if tracer else None
        strided.copy_strided(strided_copy(to, source, may_overlap=overlapping))
        if tracer:
            tracer.queued(queue, token, "copy", "copy_", to.nbytes)
    elif by_numpy is not None:
        _queue_numpy_copy(by_numpy, stream, to, source.array(), "copy_", target.raw_storage, owner)
    else:
        raise Unsupported(
            f"{stream.opened.device} can only copy bytes, in at most {MAX_RUNS} runs: cannot copy {source.dtype} of "
            f"strides {source.strides} to {to.dtype} of strides {to.strides}; use NumPy on the host instead",
            ability="Launches",
        )


def element_queues(
    queue: Queue, target: np.dtype[Any], source: np.dtype[Any], storages: Iterable[Storage]
) -> tuple[StridedCopyQueue | None, LaunchingQueue | None]:
    """Return the queue first if it copies and converts such elements, second if NumPy does in functions that it runs.

    Neither if it can only copy bytes.
    """
    if can_copy_strided(queue) and (target == source or (torch_name(target) and torch_name(source))):
        return queue, None
    return None, queue if can_launch(queue) and all(storage.queue_visible for storage in storages) else None


def _queue_numpy_copy(
    queue: LaunchingQueue, stream: Stream, target: Elements, source: NDArray[Any], name: str, *owners: object
) -> None:
    """Queue a function that copies by address. A graph keeps the memory alive, as it cannot check what is still there.

    A function that owned its arrays would keep their blocks from being reused until it has run.
    """
    array = target.array()
    ensure_backed(queue, array)
    if capture_state.active and (capture := stream.capture) is not None:
        capture.recording.retain(*owners)
    tracer = observers.tracer
    token = tracer.queueing(queue) if tracer else None
    queue.call(lambda: np.copyto(array, source, casting="unsafe"))
    if tracer:
        tracer.queued(queue, token, "call", name, array.nbytes)


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
        warnings.warn("Casting complex values to real discards the imaginary part", stacklevel=user_frame()[1])


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
            _queue_numpy_copy(queue, stream, elements_of(target), element, "fill_", target.raw_storage)
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
    if source.raw_storage.host_visible:
        return read(source).item()
    opened = source.raw_storage.opened
    if capture_state.active:
        stream = current_stream_for(opened)
        capture_state.forbid_on(stream.queue, opened.device.kind, "item")
    if not isinstance(opened.port, PinnedHost):
        return read(source).item()
    block = opened.pinned.allocate(source.itemsize)  # as PyTorch, which copies to it
    try:
        return read(source).item()
    finally:
        block.free()


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
