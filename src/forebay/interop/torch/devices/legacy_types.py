"""`torch.cuda.FloatTensor` and the other types of tensors of a device and a dtype."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch

from forebay.errors import Unsupported
from forebay.interop.torch.devices.python_names import NameReplacements

__all__ = ["replace_legacy_types"]

_DTYPES = {
    "Float": torch.float32, "Double": torch.float64, "Half": torch.float16, "BFloat16": torch.bfloat16,
    "Byte": torch.uint8, "Char": torch.int8, "Short": torch.int16, "Int": torch.int32, "Long": torch.int64,
    "Bool": torch.bool,
}  # fmt: skip


class _LegacyType(type):
    """The type of the classes, whose instances are tensors of any emulated device and one dtype."""

    dtype: torch.dtype

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, torch.Tensor) and instance.is_cuda and instance.dtype == cls.dtype


def replace_legacy_types(names: NameReplacements) -> None:
    """Replace the types by classes that create tensors of emulated devices."""
    for name, dtype in _DTYPES.items():
        names.replace(torch.cuda, f"{name}Tensor", _legacy_type(f"{name}Tensor", dtype))
    names.replace(torch.Tensor, "type", _converting(torch.Tensor.type))
    names.replace(torch, "set_default_tensor_type", _setting_default(torch.set_default_tensor_type))


def _legacy_type(name: str, of: torch.dtype) -> type:
    def create(cls: type, *args: Any, device: Any = None) -> torch.Tensor:
        device = "cuda" if device is None else device
        if all(isinstance(each, int) for each in args):
            return torch.empty(args or (0,), dtype=of, device=device)
        (data,) = args
        if isinstance(data, torch.Size):
            return torch.empty(data, dtype=of, device=device)
        if isinstance(data, cls):  # another tensor over the same memory
            return data.detach()  # type: ignore[attr-defined]  # a tensor, as the metaclass says
        return torch.as_tensor(data, dtype=of, device=device)

    return _LegacyType(name, (), {"__new__": create, "__module__": "torch.cuda", "dtype": of})


def _converting(convert: Callable[..., Any]) -> Callable[..., Any]:
    """Return the method Tensor.type, which accepts the classes, too."""

    @wraps(convert)
    def of_type(self: torch.Tensor, dtype: Any = None, *args: Any, **keywords: Any) -> Any:
        name = f"torch.cuda.{dtype.__name__}" if isinstance(dtype, _LegacyType) else dtype
        return convert(self, name, *args, **keywords)

    return of_type


def _setting_default(set_default: Callable[[Any], None]) -> Callable[[Any], None]:
    """Return the function torch.set_default_tensor_type, which says what to call for emulated devices."""

    @wraps(set_default)
    def set_type(t: Any) -> None:
        if isinstance(t, _LegacyType) or str(t).startswith("torch.cuda."):
            raise Unsupported(
                "torch.set_default_tensor_type() cannot choose an emulated device: call "
                "torch.set_default_device('cuda') and torch.set_default_dtype()"
            )
        set_default(t)

    return set_type
