"""Import of other libraries' arrays through DLPack. The export is `Tensor.__dlpack__`."""

from __future__ import annotations

import math
import warnings
from typing import Any

import numpy as np
from numpy.typing import NDArray

from forebay._base.device_spec import CPU, Device
from forebay._base.dtypes import named
from forebay.runtime.devices.current import opened_for, resolve
from forebay.runtime.memory._dlpack import MAX_VERSION, ManagedTensor, device_of, element_of
from forebay.runtime.streams.stream import current_stream_for
from forebay.runtime.tensors.creation import READ_ONLY_WARNING, from_numpy, tensor_over
from forebay.runtime.tensors.dlpack_devices import opened_for_type
from forebay.runtime.tensors.dlpack_export import BFLOAT16, CODES, check_current
from forebay.runtime.tensors.foreign_memory import tensor_over_memory
from forebay.runtime.tensors.options import DeviceLike
from forebay.runtime.tensors.tensor import Tensor

__all__ = ["from_dlpack"]

_TYPES = {"cpu": (1, "kDLCPU"), "cuda": (2, "kDLCUDA"), "mps": (8, "kDLMetal")}  # of DLPack
_OTHER_TYPE = 12, "kDLExtDev"
_HOST_TYPES = frozenset({1, 3, 11, 13})  # NumPy reads memory of these: of the CPU, pinned, and managed
_NO_INDEX = 255  # as PyTorch prints it

_SHOWS_READ_ONLY: bool = np.from_dlpack(np.empty(1)).flags.writeable  # NumPy 2.1 imports every array as read-only
_KINDS = {code: kind for kind, code in CODES.items()}  # of NumPy dtypes
_NAMES = {0: "kInt", 1: "kUInt", 2: "kFloat", 4: "kFloat", 5: "kFloat", 6: "kDLBool"}  # as PyTorch prints them


def from_dlpack(ext_tensor: Any, *, device: DeviceLike = None, copy: bool | None = None) -> Tensor:
    """Return a tensor that shares the memory of another library's array, or of a tensor.

    As `torch.from_dlpack`. The current stream of a GPU waits for the array's pending work. The array's memory is
    released when the tensor is deleted and the work queued on it has completed. An emulated device exports its memory
    to this library only.

    Parameters
    ----------
    ext_tensor : object
        An object with `__dlpack__`: an array on the CPU or a GPU, or a tensor of this library on any device. Or the
        capsule that `__dlpack__` returned, once.
    device : device or str or int, optional
        The device of the result; that of `ext_tensor` by default.
    copy : bool, optional
        True to copy always, False never; by default only to another device.

    Returns
    -------
    Tensor
        A tensor of the same memory, or a copy.

    Raises
    ------
    BufferError
        If no device of this process can use the memory, the elements have no dtype, or a tensor is on a CUDA device
        that is not the current one.
    DeviceError
        If the memory is on a device that does not exist.
    RuntimeError
        If `ext_tensor` is neither, or a capsule that was used.
    ValueError
        If `copy` is False and the device is another one.

    Examples
    --------
    >>> import forebay, numpy as np
    >>> forebay.from_dlpack(np.arange(3))
    tensor([0, 1, 2])
    """
    if isinstance(ext_tensor, Tensor):
        check_current(ext_tensor.device)
        found = ext_tensor.data
    elif not hasattr(ext_tensor, "__dlpack__"):
        found = _tensor_of(ext_tensor, warns=not copy)
    elif (place := _device_of(ext_tensor)) is not None:
        found = _tensor_of(_capsule_of(ext_tensor, *place, copy=copy), warns=not copy)
    elif (array := _numpy_array(ext_tensor)) is None:
        found = _tensor_of(_host_capsule_of(ext_tensor), warns=not copy)
    else:
        warns = _is_read_only(ext_tensor, array) and not copy
        found = from_numpy(array) if warns else tensor_over(array)
    target = None if device is None else resolve(device)
    if target is None or target == found.device:
        return found.clone() if copy else found
    if copy is False:
        number, name = _TYPES.get(found.device.kind, _OTHER_TYPE)
        wanted = _TYPES.get(target.kind, _OTHER_TYPE)[0], _index_in(device, target)
        raise ValueError(
            f"cannot move DLPack tensor from device (<DLDeviceType.{name}: {number}>, {found.device.index or 0}) to "
            f"{wanted} without copying. Set copy=None or copy=True."
        )
    return found.to(target)


def _numpy_array(source: Any) -> NDArray[Any] | None:
    """Return an object on the host as an array, or None for elements that NumPy does not import: bfloat16."""
    try:
        return np.from_dlpack(source)
    except (RuntimeError, BufferError):
        if element_of(_host_capsule_of(source)) != BFLOAT16:
            raise
        return None


def _host_capsule_of(source: Any) -> Any:
    """Return the capsule of an object on the host."""
    try:
        return source.__dlpack__(max_version=MAX_VERSION)
    except TypeError:  # producers of older versions have no such option
        return source.__dlpack__()


def _is_read_only(source: object, imported: NDArray[Any]) -> bool:
    """Return True if an imported object is known to be read-only."""
    if isinstance(source, np.ndarray):
        return not source.flags.writeable
    return _SHOWS_READ_ONLY and not imported.flags.writeable


class _Capsule:
    """A capsule as an object that exports it. NumPy checks that its memory is the CPU's."""

    def __init__(self, capsule: object) -> None:
        self._capsule = capsule

    def __dlpack__(self, **_options: Any) -> Any:
        return self._capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return 1, 0


def _device_of(source: Any) -> tuple[int, int] | None:
    """Return the DLDeviceType and the index of an object's memory; None if NumPy can read the memory."""
    if not hasattr(source, "__dlpack_device__"):
        return None
    number, index = source.__dlpack_device__()
    return None if int(number) in _HOST_TYPES else (int(number), int(index))


def _capsule_of(source: Any, number: int, index: int, *, copy: bool | None) -> Any:
    """Return the capsule of an object on a device, whose current stream then waits for the object's work."""
    opened = opened_for_type(number, index)
    stream = current_stream_for(opened).handle or 1  # the default stream
    options = {"max_version": MAX_VERSION} | ({"copy": False} if copy is False else {})
    while True:  # producers of older versions have fewer options
        try:
            return source.__dlpack__(stream=stream, **options)
        except TypeError:
            if not options:
                raise
            options.pop(next(iter(options)))


def _tensor_of(capsule: Any, *, warns: bool) -> Tensor:
    """Return a tensor of the memory of a capsule, which is consumed. `warns` if the memory is read-only."""
    on_host = device_of(capsule)[0] in _HOST_TYPES
    if on_host and element_of(capsule) != BFLOAT16:
        return tensor_over(np.from_dlpack(_Capsule(capsule)))  # for NumPy, most capsules are read-only
    opened = opened_for(CPU) if on_host else opened_for_type(*device_of(capsule))
    managed = ManagedTensor(capsule)
    dtype = _dtype_of(*managed.element, managed.lanes)
    shape, strides = managed.shape, managed.strides
    if strides is None:
        strides = tuple(math.prod(shape[dim + 1 :]) for dim in range(len(shape)))
    found = tensor_over_memory(
        opened, managed.address, shape, tuple(step * dtype.itemsize for step in strides), dtype, managed
    )
    if managed.read_only and warns:
        warnings.warn(READ_ONLY_WARNING, stacklevel=3)
    return found


def _dtype_of(code: int, bits: int, lanes: int) -> np.dtype[Any]:
    """Return the NumPy dtype of DLPack's elements. Raises BufferError, with PyTorch's texts, if there is none."""
    if lanes != 1:
        raise BufferError(f"ATen does not support lanes != 1 for dtype code{code}")
    if code not in _NAMES:
        raise BufferError(f"Unsupported code {code}")
    try:
        if code not in _KINDS:
            if bits == 16:
                return named("bfloat16").dtype
        elif bits % 8 == 0:
            dtype: np.dtype[Any] = np.dtype(f"{_KINDS[code]}{bits // 8}")
            if code != CODES["f"] or bits <= 64:  # not the extended precision of the CPU
                return dtype
    except TypeError:  # NumPy has none of that size
        pass
    except AttributeError as error:  # a package is missing
        raise BufferError(str(error)) from None
    raise BufferError(f"Unsupported {_NAMES[code]} bits {bits}")


def _index_in(device: DeviceLike, target: Device) -> int:
    """Return the index that a device argument names."""
    named = device if isinstance(device, Device) else Device(str(device)) if isinstance(device, str) else target
    return 0 if target.kind == "cpu" else _NO_INDEX if named.index is None else named.index
