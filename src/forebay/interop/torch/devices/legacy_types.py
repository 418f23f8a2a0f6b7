"""`torch.cuda.FloatTensor` and the other types of tensors of a device and a dtype."""

from __future__ import annotations

from typing import Any

import torch

from forebay.interop.torch.devices.python_names import NameReplacements

__all__ = ["replace_legacy_types"]

_DTYPES = {
    "Float": torch.float32, "Double": torch.float64, "Half": torch.float16, "BFloat16": torch.bfloat16,
    "Byte": torch.uint8, "Char": torch.int8, "Short": torch.int16, "Int": torch.int32, "Long": torch.int64,
    "Bool": torch.bool,
}  # fmt: skip


def replace_legacy_types(names: NameReplacements) -> None:
    """Replace the types by classes that create tensors of emulated devices."""
    for name, dtype in _DTYPES.items():
        names.replace(torch.cuda, f"{name}Tensor", _legacy_type(f"{name}Tensor", dtype))


def _legacy_type(name: str, of: torch.dtype) -> type:
    class Meta(type):
        dtype = of

        def __instancecheck__(cls, instance: object) -> bool:
            return isinstance(instance, torch.Tensor) and instance.is_cuda and instance.dtype == of

    def create(cls: type, *args: Any, device: Any = "cuda") -> torch.Tensor:
        if all(isinstance(each, int) for each in args):
            return torch.empty(args or (0,), dtype=of, device=device)
        if len(args) == 1 and isinstance(args[0], torch.Size):
            return torch.empty(args[0], dtype=of, device=device)
        (data,) = args
        return torch.as_tensor(data, dtype=of, device=device).clone()

    return Meta(name, (), {"__new__": create, "__module__": "torch.cuda"})
