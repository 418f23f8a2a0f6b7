"""Blocks of a device's allocator for other libraries, which name streams by the driver's handles."""

from __future__ import annotations

from forebay._base.device_spec import Device
from forebay.backends.nvidia.calls import current_device_index
from forebay.errors import Unsupported
from forebay.runtime.devices.current import opened_for
from forebay.runtime.devices.open_device import OpenDevice
from forebay.runtime.memory.storage import AnyBlock, allocate_raw_block
from forebay.runtime.streams.stream import Stream, from_queue

__all__ = ["allocate_on", "current_gpu", "gpu", "queue_of", "record_use_on", "stream_with_handle"]

_LEGACY_STREAM, _PER_THREAD_STREAM = 1, 2  # handles that CUDA reserves

_gpus: dict[int, OpenDevice] = {}  # results of `gpu`, as the look-up of a device costs more than an allocation


def gpu(index: int) -> OpenDevice:
    """Return an NVIDIA GPU, opened. Raises Unsupported for an emulated one, whose memory is the host's."""
    opened = _gpus.get(index)
    if opened is not None and not opened.unusable:
        return opened
    opened = opened_for(Device("cuda", index))
    if opened.port.props.emulated:
        raise Unsupported(
            f"{opened.device} is emulated, so its memory is the host's, and other libraries need memory of a GPU: end "
            "the emulation, or unset FOREBAY_EMULATE"
        )
    _gpus[index] = opened
    return opened


def current_gpu() -> OpenDevice:
    """Return the GPU that other libraries use in this thread: that of the current context, else the first one."""
    return gpu(current_device_index())


def queue_of(opened: OpenDevice, stream: int) -> int:
    """Return the handle of the queue of a stream that any library created.

    The device's waits for all its work include the stream from then on. Raises Unsupported for the per-thread default
    stream, which has no handle of its own.
    """
    if stream in opened.queues or stream in opened.external_queues:
        return stream
    if stream == _LEGACY_STREAM:
        return 0
    if stream == _PER_THREAD_STREAM:
        raise Unsupported(
            f"{opened.device}: the per-thread default stream is a different stream in each thread, so memory cannot be "
            "allocated for it: use a stream that the program creates"
        )
    if opened.wrap_queue(stream) is None:
        raise Unsupported(f"{opened.device} has no stream with the handle {stream:#x}")
    return stream


def allocate_on(opened: OpenDevice, nbytes: int, stream: int) -> AnyBlock:
    """Allocate memory that the stream uses first. Once freed, later work of the stream may use it again at once."""
    return allocate_raw_block(opened, nbytes, queue_of(opened, stream))


def record_use_on(opened: OpenDevice, block: AnyBlock, stream: int) -> None:
    """Keep the memory from being reused before the work queued on the stream at the time of its free is done."""
    block.record_stream(queue_of(opened, stream))


def stream_with_handle(opened: OpenDevice, handle: int) -> Stream:
    """Return the stream with the driver's handle."""
    return from_queue(Stream, opened, opened.queues.get(queue_of(opened, handle)) or opened.external_queues[handle])
