"""Strided copies, conversions and fills by a kernel."""

from __future__ import annotations

import ctypes
import math
import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

from forebay.backends.nvidia._stream import ALL_DEVICES, NO_DEVICE
from forebay.backends.nvidia.calls import check, driver_api
from forebay.backends.nvidia.kernels.launch import KernelQueue, launch_packed
from forebay.backends.nvidia.kernels.sources import axes_class, own_program
from forebay.errors import DeviceError, Unsupported
from forebay.spi import StridedCopy
from forebay.vendor import SimplifiedCopy, copy_strided_now, simplify_strided_copy, touched_spans

__all__ = ["CopyQueue", "launch_strided_copy"]

_BLOCK = 256
_MOST_BLOCKS = 1 << 20  # each thread copies several elements beyond that
_TYPES = {
    "bool": "Bool",
    **{f"{sign}int{bits}": f"{sign}int{bits}_t" for sign in ("", "u") for bits in (8, 16, 32, 64)},
    "float16": "Float16",
    "bfloat16": "BFloat16",
    "float32": "float",
    "float64": "double",
    "complex64": "Complex<float>",
    "complex128": "Complex<double>",
}
_WORDS = {1: "uint8_t", 2: "uint16_t", 4: "uint32_t", 8: "uint64_t", 16: "Word16"}
_HEADER, _AXIS = 40, 24  # bytes
_VALUE = 64  # bytes of a fill's element that are a part of the kernel's argument


class CopyQueue(KernelQueue, Protocol):
    """The part of a queue that strided copies use."""

    @property
    def capture(self) -> Any: ...  # the CudaCapturedGraph, during a capture
    def copy(self, dst: int, src: int, nbytes: int) -> None: ...
    def signal(self) -> int: ...
    def wait(self, tick: int) -> None: ...


def launch_strided_copy(queue: CopyQueue, copy: StridedCopy) -> None:
    """Queue a strided copy or a fill.

    A kernel cannot access host memory that is not pinned. The elements of such a source are copied to the device at
    once; for such a destination the function returns when the copy is complete. Memory of another device is accessed
    directly if the hardware permits it; Unsupported is raised if the destination is memory that kernels of this device
    cannot access.
    """
    simplified = simplify_strided_copy(copy)
    queue.check_usable()
    if simplified is None:
        return
    to_device, source_device = queue.memory_device(copy.to), ALL_DEVICES
    if copy.source and not copy.value:
        source_device = queue.memory_device(copy.source)
    if not _reaches(queue, to_device, copy.to):
        message = f"{queue.name} cannot write elements to memory of cuda:{to_device}: copy them on that device"
        raise Unsupported(message, ability="StridedCopies")
    if not _reaches(queue, source_device, copy.source):
        _copy_from_other_device(queue, copy)
        return
    to_host, from_host = to_device == NO_DEVICE, source_device == NO_DEVICE
    if queue.capture is not None and (to_host or from_host or len(copy.value) > _VALUE):
        raise queue.capture.forbidden(queue, "copy_strided")
    if to_host:
        _copy_to_host(queue, copy, from_host=from_host)
    elif from_host:
        _copy_from_host(queue, copy)
    elif copy.may_overlap and not copy.value:
        with _staged(queue, copy, simplified.source_size) as (staged, rest):
            _launch(queue, staged)
            _launch(queue, rest)
    elif len(copy.value) > _VALUE:
        with _scratch(queue, len(copy.value)) as address:
            queue.copy(address, _address(copy.value), len(copy.value))
            _launch(queue, copy._replace(value=b"", source=address, source_strides=(0,) * len(copy.shape)))
    else:
        _launch(queue, copy, simplified)


def _reaches(queue: CopyQueue, device: int, address: int) -> bool:
    """Return True if kernels of the queue's device can use memory of a device, or none has to: it is the host's."""
    own = (int(queue.context.device), ALL_DEVICES, NO_DEVICE)
    return device in own or bool(queue.context.peers.reaches(device, address))


def _copy_to_host(queue: CopyQueue, copy: StridedCopy, *, from_host: bool) -> None:
    size = copy.itemsize
    buffer = ctypes.create_string_buffer(math.prod(copy.shape) * size)
    strides = _contiguous(copy.shape, size)
    if from_host:
        queue.wait(queue.signal())
        copy_strided_now(copy)
        return
    with _scratch(queue, len(buffer)) as address:
        _launch(queue, copy._replace(to=address, to_strides=strides))
        queue.copy(ctypes.addressof(buffer), address, len(buffer))
    queue.wait(queue.signal())
    target = StridedCopy(copy.shape, copy.to, copy.to_strides, "", size, ctypes.addressof(buffer), strides)
    copy_strided_now(target)


def _copy_from_host(queue: CopyQueue, copy: StridedCopy) -> None:
    simplified = simplify_strided_copy(copy)
    assert simplified is not None  # noqa: S101 -- the caller has checked
    size = simplified.source_size
    buffer = ctypes.create_string_buffer(math.prod(copy.shape) * size)
    strides = _contiguous(copy.shape, size)
    copy_strided_now(
        StridedCopy(copy.shape, ctypes.addressof(buffer), strides, "", size, copy.source, copy.source_strides)
    )
    with _scratch(queue, len(buffer)) as address:
        queue.copy(address, ctypes.addressof(buffer), len(buffer))  # the driver has read the buffer when this returns
        _launch(queue, copy._replace(source=address, source_strides=strides, may_overlap=False))


def _copy_from_other_device(queue: CopyQueue, copy: StridedCopy) -> None:
    """Copy the bytes that the source spans to this device, whose kernels cannot read memory of the other one."""
    start, nbytes = touched_spans(copy)[1]
    with _scratch(queue, nbytes) as address:
        queue.copy(address, start, nbytes)
        launch_strided_copy(queue, copy._replace(source=address + copy.source - start, may_overlap=False))


@contextmanager
def _staged(queue: CopyQueue, copy: StridedCopy, size: int) -> Iterator[tuple[StridedCopy, StridedCopy]]:
    """Yield a copy of the source to memory of its own, and the copy from there to the destination."""
    strides = _contiguous(copy.shape, size)
    with _scratch(queue, math.prod(copy.shape) * size) as address:
        yield (
            StridedCopy(copy.shape, address, strides, "", size, copy.source, copy.source_strides),
            copy._replace(source=address, source_strides=strides, may_overlap=False),
        )


@contextmanager
def _scratch(queue: CopyQueue, nbytes: int) -> Iterator[int]:
    """Allocate device memory for the work that is queued inside the block."""
    if queue.capture is not None:
        yield queue.capture.memory.allocate(nbytes)
        return
    api, context = driver_api(), queue.context
    address = check(context.invoke(api.cuMemAllocAsync, nbytes, queue.handle), "cuMemAllocAsync", queue.name)
    try:
        yield int(address)
    finally:
        try:
            check(context.invoke(api.cuMemFreeAsync, address, queue.handle), "cuMemFreeAsync", queue.name)
        except DeviceError:
            context.invoke(api.cuMemFree, address)  # waits for the queued work
            raise


def _launch(queue: KernelQueue, copy: StridedCopy, simplified: SimplifiedCopy | None = None) -> None:
    simplified = simplified or simplify_strided_copy(copy)
    if simplified is None:
        return
    if copy.source_element:
        to, source = _TYPES[copy.element], _TYPES[copy.source_element]
    else:
        to = source = _WORDS.get(copy.itemsize, "Bytes")
    axes = axes_class(len(simplified.axes)) if len(simplified.axes) > 1 else 1
    function = queue.context.modules.own_function(
        ("strided", to, source, axes),
        "copy_strided",
        lambda: own_program("strided.cu", TO=to, SOURCE=source, AXES=axes),
    )
    count = math.prod(length for length, _, _ in simplified.axes)
    head, packed_axes = simplified.packed[:_HEADER], simplified.packed[_HEADER:]
    aligned = _is_aligned(simplified, fill=bool(copy.value))
    job = head + struct.pack("=QQ", count, aligned) + copy.value.ljust(_VALUE, b"\0") + packed_axes
    job = job.ljust(_HEADER + 16 + _VALUE + axes * _AXIS, b"\0")
    blocks = min(-(-count // _BLOCK), _MOST_BLOCKS)
    launch_packed(queue, function, (blocks, 1, 1), (_BLOCK, 1, 1), [job])


def _is_aligned(copy: SimplifiedCopy, *, fill: bool) -> bool:
    """Return True if all elements are aligned to their size, or to 8 bytes if that is less."""
    to, source = copy.to, 0 if fill else copy.source
    for length, to_step, source_step in copy.axes:
        if length > 1:
            to |= to_step
            source |= source_step
    return not (to % math.gcd(copy.to_size, 8) or source % math.gcd(copy.source_size, 8))


def _contiguous(shape: Sequence[int], size: int) -> tuple[int, ...]:
    return tuple(math.prod(shape[axis + 1 :]) * size for axis in range(len(shape)))


def _address(content: bytes) -> int:
    return ctypes.cast(ctypes.c_char_p(content), ctypes.c_void_p).value or 0
