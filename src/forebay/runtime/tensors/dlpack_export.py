"""Export of device memory to other libraries: capsules of DLPack, and `__cuda_array_interface__`.

A capsule keeps the memory alive: Note [Lifetimes of DLPack].
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from forebay._base.device_spec import CPU, Device
from forebay.runtime.devices.current import current_index
from forebay.runtime.devices.open_device import OpenDevice
from forebay.runtime.memory._dlpack import MAX_VERSION, export_memory
from forebay.runtime.streams.stream import Stream, current_stream_for, default_stream_for, from_queue
from forebay.runtime.tensors.dlpack_devices import CPU_TYPE, CUDA_TYPE, opened_for_type

if TYPE_CHECKING:
    from forebay.runtime.tensors.tensor import Tensor

__all__ = [
    "BFLOAT16",
    "CODES",
    "check_current",
    "cuda_array_interface",
    "dlpack_capsule",
    "dlpack_device",
    "stream_of_number",
]

CODES: Final = {"i": 0, "u": 1, "f": 2, "c": 5, "b": 6}  # DLDataTypeCode by the kind of a NumPy dtype
BFLOAT16: Final = (4, 16)  # code and bits, of elements that NumPy does not exchange
_DEFAULT_STREAM, _PER_THREAD_STREAM = 1, 2  # numbers of streams in the protocol
_NO_ORDER = -1  # in place of a stream


def dlpack_device(tensor: Tensor) -> tuple[int, int]:
    """Return the DLDeviceType and the index of a tensor's memory. Raises BufferError if it cannot be exported."""
    storage = tensor.raw_storage
    number = storage.opened.port.props.dlpack_type
    if number:
        return number, tensor.device.index or 0
    if not storage.host_visible:
        raise BufferError(tensor.no_host_memory())
    return CPU_TYPE, 0


def check_current(device: Device) -> None:
    """Raise BufferError, with PyTorch's text, for a CUDA device that is not the current one."""
    if device.kind == "cuda" and device.index != (current := current_index("cuda")):
        message = "Can't export tensors on a different CUDA device index."
        raise BufferError(f"{message} Expected: {device.index}. Current device: {current}.")


def dlpack_capsule(
    tensor: Tensor, stream: Any, max_version: Any, dl_device: Any, copy: bool | None, read_only: bool
) -> Any:
    """Return a capsule of a tensor's memory, for `Tensor.__dlpack__`."""
    check_current(tensor.device)
    if stream is not None and type(stream) is not int:
        raise TypeError("stream must be ``int`` or ``none``")
    versioned = max_version is not None and max_version[0] >= MAX_VERSION[0]
    if read_only and not versioned:
        raise BufferError("read_only export requires the versioned DLPack protocol; pass max_version=(1, 0) or higher")
    here = dlpack_device(tensor)
    on_host = here[0] == CPU_TYPE
    if on_host and stream not in (None, _NO_ORDER):
        raise AssertionError("stream should be None on cpu.")
    consumer = None if on_host or stream == _NO_ORDER else stream_of_number(tensor.raw_storage.opened, stream)
    target = tensor.device if dl_device is None else _target(tensor.device, here[0], dl_device)
    if on_host and target == tensor.device:
        return _host_capsule(tensor, max_version, copy, read_only)
    element = _element(tensor)
    copied = tensor
    if target != tensor.device:
        if copy is False:
            raise ValueError(f"cannot move (i.e. copy=False) tensor from {tensor.device} to {target} without copying.")
        copied = tensor.to(target)
    elif copy:
        copied = tensor.clone()
    if target is CPU:
        return _host_capsule(copied, max_version, None, read_only)
    storage = copied.raw_storage
    if consumer is not None and consumer != (producer := current_stream_for(storage.opened)):
        consumer.wait_stream(producer)
    return export_memory(
        copied.raw_address(),
        copied.shape,
        copied.stride(),
        element,
        dlpack_device(copied),
        (storage, storage.owner),  # the owner changes if the storage is resized
        versioned=versioned,
        read_only=read_only,
        copied=copied is not tensor,
    )


def stream_of_number(opened: OpenDevice, number: int | None) -> Stream:
    """Return the stream that another library names: None or 1 for the default stream, or a handle."""
    if number is None or number == _DEFAULT_STREAM:
        return default_stream_for(opened)
    if number == _PER_THREAD_STREAM:
        raise BufferError("per-thread default stream is not supported.")
    queue = opened.wrap_queue(number) if 0 < number < 1 << 64 else None
    if queue is None:
        raise AssertionError(f"unsupported stream on {opened.device.kind.upper()}: {number}.")
    return from_queue(Stream, opened, queue)


def _target(own: Device, own_type: int, wanted: Any) -> Device:
    """Return the device that a consumer names by DLDeviceType and index."""
    if not isinstance(wanted, tuple) or len(wanted) != 2 or not all(isinstance(each, int) for each in wanted):
        raise TypeError(f"__dlpack__(): argument 'dl_device' must be tuple of ints, not {type(wanted).__name__}")
    number, index = int(wanted[0]), int(wanted[1])
    if number == CPU_TYPE:  # the index is ignored, as PyTorch does
        return own if own_type == CPU_TYPE else CPU
    return Device(own.kind, index) if number == own_type else opened_for_type(number, index).device


def _element(tensor: Tensor) -> tuple[int, int]:
    """Return DLPack's code and number of bits of a tensor's elements."""
    dtype = tensor.numpy_dtype
    if dtype.name == "bfloat16":
        return BFLOAT16
    if dtype.kind not in CODES or not dtype.isnative:
        raise BufferError(f"DLPack has no type for elements of type {dtype}")
    if any(step % dtype.itemsize for step in tensor.byte_strides):
        raise BufferError("DLPack has no strides that are not multiples of the element's size")
    return CODES[dtype.kind], 8 * dtype.itemsize


def _host_capsule(tensor: Tensor, max_version: Any, copy: bool | None, read_only: bool) -> Any:
    """Return a capsule of memory that the host can access, after waiting for the stream. NumPy makes most of them."""
    array = tensor._export()  # noqa: SLF001 -- this is a part of the class
    if array.dtype.name == "bfloat16":
        return _bfloat16_capsule(array.copy() if copy else array, max_version, read_only=read_only, copied=bool(copy))
    if read_only:
        array = array.view()
        array.flags.writeable = False
    options = {"max_version": max_version, "copy": copy}
    return array.__dlpack__(**{name: value for name, value in options.items() if value is not None})


def _bfloat16_capsule(array: NDArray[Any], max_version: Any, *, read_only: bool, copied: bool) -> Any:
    strides = tuple(step // array.itemsize for step in array.strides)
    address = array.__array_interface__["data"][0]
    versioned = max_version is not None and max_version[0] >= MAX_VERSION[0]
    return export_memory(
        address,
        array.shape,
        strides,
        BFLOAT16,
        (CPU_TYPE, 0),
        array,
        versioned=versioned,
        read_only=read_only,
        copied=copied,
    )


def cuda_array_interface(tensor: Tensor) -> dict[str, Any]:
    """Return the description of a tensor's memory for `Tensor.__cuda_array_interface__`."""
    storage = tensor.raw_storage
    if storage.opened.port.props.dlpack_type != CUDA_TYPE:
        raise AttributeError(
            f"Can't get __cuda_array_interface__ on non-CUDA tensor type: {tensor.type()} "
            "If CUDA data is required use tensor.cuda() to copy tensor to device memory."
        )
    dtype: np.dtype[Any] = tensor.numpy_dtype
    return {
        "typestr": dtype.str,
        "shape": tuple(tensor.shape),
        "strides": None if tensor.is_contiguous() else tensor.byte_strides,
        "data": (tensor.raw_address(), False),
        "version": 2,
    }
