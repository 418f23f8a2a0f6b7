"""Type aliases of `torch.types`, for annotations."""

from __future__ import annotations

import builtins

from forebay._base import device_spec, dtypes, layouts
from forebay.runtime.tensors.tensor import Tensor
from forebay.storage import TypedStorage, UntypedStorage

__all__ = ["Device", "Number", "Storage", "Tensor"]

Device = device_spec.DeviceLike | None
Number = int | float | bool
Storage = TypedStorage | UntypedStorage
_device, _dtype, _layout, _size = device_spec.Device, dtypes.DType, layouts.layout, layouts.Size
_int, _float, _bool, _str, _complex = builtins.int, builtins.float, builtins.bool, builtins.str, builtins.complex
