"""Import of other libraries' arrays through DLPack. The export is `Tensor.__dlpack__`."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from forebay.device_spec import Device
from forebay.runtime.devices.current import current_index, resolve
from forebay.runtime.tensors.creation import from_numpy, tensor_over
from forebay.runtime.tensors.options import DeviceLike
from forebay.runtime.tensors.tensor import Tensor

__all__ = ["from_dlpack"]

_TYPES = {"cpu": (1, "kDLCPU"), "cuda": (2, "kDLCUDA"), "mps": (8, "kDLMetal")}  # of DLPack
_OTHER_TYPE = 12, "kDLExtDev"
_NO_INDEX = 255  # as PyTorch prints it

_SHOWS_READ_ONLY: bool = np.from_dlpack(np.empty(1)).flags.writeable  # NumPy 2.1 imports every array as read-only


def from_dlpack(ext_tensor: Any, *, device: DeviceLike = None, copy: bool | None = None) -> Tensor:
    """Return a tensor that shares the memory of another library's CPU array, or of a tensor.

    Parameters
    ----------
    ext_tensor : object
        An object with `__dlpack__`: an array on the CPU, or a tensor of this library on any device. Or the capsule that
        `__dlpack__` returned, once.
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
        If the memory is on another library's GPU, or on a CUDA device that is not the current one.
    RuntimeError
        If `ext_tensor` is neither, or a capsule that was used.
    ValueError
        If `copy` is False and the device is another one.

    Notes
    -----
    As `torch.from_dlpack`. An emulated device exports its memory to this library only.

    Examples
    --------
    >>> import forebay, numpy as np
    >>> forebay.from_dlpack(np.arange(3))
    tensor([0, 1, 2])
    """
    if isinstance(ext_tensor, Tensor):
        _check_current(ext_tensor.device)
        found = ext_tensor.data
    elif hasattr(ext_tensor, "__dlpack__"):
        array = np.from_dlpack(ext_tensor)
        warns = _is_read_only(ext_tensor, array) and not copy
        found = from_numpy(array) if warns else tensor_over(array)
    else:
        found = tensor_over(np.from_dlpack(_Capsule(ext_tensor)))  # for NumPy, most capsules are read-only
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


def _is_read_only(source: object, imported: NDArray[Any]) -> bool:
    """Return True if an imported object is known to be read-only."""
    if isinstance(source, np.ndarray):
        return not source.flags.writeable
    return _SHOWS_READ_ONLY and not imported.flags.writeable


class _Capsule:
    """A capsule as an object that exports it. NumPy checks that its memory is the CPU's."""

    def __init__(self, capsule: object) -> None:
        if 'object "dltensor' not in repr(capsule) or type(capsule).__name__ != "PyCapsule":
            raise RuntimeError(
                "from_dlpack received an invalid capsule. Note that DLTensor capsules can be consumed only once, so "
                "you might have already constructed a tensor from it once."
            )
        self._capsule = capsule

    def __dlpack__(self, **_options: Any) -> Any:
        return self._capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return 1, 0


def _check_current(device: Device) -> None:
    if device.kind == "cuda" and device.index != (current := current_index("cuda")):
        message = "Can't export tensors on a different CUDA device index."
        raise BufferError(f"{message} Expected: {device.index}. Current device: {current}.")


def _index_in(device: DeviceLike, target: Device) -> int:
    """Return the index that a device argument names."""
    named = device if isinstance(device, Device) else Device(str(device)) if isinstance(device, str) else target
    return 0 if target.kind == "cpu" else _NO_INDEX if named.index is None else named.index
