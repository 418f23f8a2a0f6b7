"""Import of other libraries' arrays on GPUs by `__cuda_array_interface__`. The export is `dlpack_export`."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import Any

import numpy as np

from forebay._base.device_spec import Device
from forebay._base.dtypes import named
from forebay.runtime.devices import current
from forebay.runtime.devices.open_device import OpenDevice
from forebay.runtime.streams.stream import current_stream_for
from forebay.runtime.tensors.dlpack_devices import CUDA_TYPE, opened_for_type
from forebay.runtime.tensors.dlpack_export import stream_of_number
from forebay.runtime.tensors.foreign_memory import tensor_over_memory
from forebay.runtime.tensors.python_data import unsupported_dtype
from forebay.runtime.tensors.tensor import Tensor
from forebay.spi import IdentifiesMemory

__all__ = ["cuda_array_tensor"]

_WITH_STREAM = 3  # version of the interface


def cuda_array_tensor(source: Any) -> Tensor | None:
    """Return a tensor of the memory of an object with `__cuda_array_interface__`; None for another object.

    The current stream waits for the object's stream, if the interface names one. Raises TypeError or ValueError, with
    PyTorch's texts, for an invalid interface, and RuntimeError if the memory cannot be used.
    """
    if not hasattr(source, "__cuda_array_interface__"):
        return None
    interface = source.__cuda_array_interface__
    if not isinstance(interface, dict):
        raise TypeError("`__cuda_array_interface__` must be a dict")
    shape = _integers(_entry(interface, "shape"))
    dtype = _dtype(_entry(interface, "typestr"))
    address = _address(interface)
    strides = _strides(interface.get("strides"), shape, dtype.itemsize)
    try:
        opened = opened_for_type(CUDA_TYPE, None)
    except BufferError as error:
        raise RuntimeError(str(error)) from None
    if address:
        opened = _device_of(opened, address)
    _wait_for_producer(interface, opened)
    return tensor_over_memory(opened, address, shape, strides, dtype, (source, interface))


def _entry(interface: dict[str, Any], name: str) -> Any:
    try:
        return interface[name]
    except KeyError:
        raise TypeError(f"attribute `{name}` must exist") from None


def _integers(sequence: Any) -> tuple[int, ...]:
    if not isinstance(sequence, Sequence):
        raise TypeError("shape and strides must be sequences")
    return tuple(operator.index(number) for number in sequence)


def _dtype(name: Any) -> np.dtype[Any]:
    """Return the dtype of a NumPy type string. Two raw bytes are bfloat16, as PyTorch and ml_dtypes name it."""
    if name == "<V2":
        return named("bfloat16").dtype
    try:
        dtype: np.dtype[Any] = np.dtype(name if isinstance(name, str) else "")
    except (TypeError, ValueError, SyntaxError):
        raise ValueError("cannot parse `typestr`") from None
    if dtype.kind not in "biufc" or dtype.itemsize > (16 if dtype.kind == "c" else 8):
        raise unsupported_dtype(dtype)
    return dtype


def _address(interface: dict[str, Any]) -> int:
    if "data" not in interface:
        raise TypeError("attribute `shape` data exist")
    data = interface["data"]
    if not isinstance(data, tuple) or len(data) != 2:
        raise TypeError("`data` must be a 2-tuple of (int, bool)")
    address, read_only = data
    if not isinstance(address, int):
        raise TypeError("an integer is required")
    if read_only:
        raise TypeError("the read only flag is not supported, should always be False")
    if not 0 <= address < 1 << 64:
        raise ValueError(f"{address} is not an address")
    return address


def _strides(given: Any, shape: tuple[int, ...], itemsize: int) -> tuple[int, ...]:
    if given is None:
        return tuple(itemsize * math.prod(shape[dim + 1 :]) for dim in range(len(shape)))
    if not isinstance(given, Sequence) or len(given) != len(shape):
        raise TypeError("strides must be a sequence of the same length as shape")
    strides = _integers(given)
    if any(step % itemsize for step in strides):
        raise ValueError(
            "given array strides not a multiple of the element byte size. "
            "Make a copy of the array to reallocate the memory."
        )
    return strides


def _device_of(opened: OpenDevice, address: int) -> OpenDevice:
    """Return the device whose memory an address is, opened."""
    port = opened.port
    index = port.memory_device(address) if isinstance(port, IdentifiesMemory) else opened.device.index
    if index is None:
        kind = opened.device.kind.upper()
        raise RuntimeError(
            f"The specified pointer resides on host memory and is not registered with any {kind} device."
        )
    return opened if index == opened.device.index else current.opened_for(Device(opened.device.kind, index))


def _wait_for_producer(interface: dict[str, Any], opened: OpenDevice) -> None:
    """Make the current stream wait for the stream that the interface names, if it does."""
    number = interface.get("stream") if interface.get("version", 0) >= _WITH_STREAM else None
    if number is None:
        return
    if not number:
        raise ValueError("`stream` must be None, 1, 2 or a handle, not 0")
    current_stream_for(opened).wait_stream(stream_of_number(opened, operator.index(number)))
