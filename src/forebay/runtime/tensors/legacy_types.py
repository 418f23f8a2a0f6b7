"""PyTorch's legacy types of tensors, such as `torch.cuda.FloatTensor`: their names, conversions, and `Tensor.new`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from forebay import backends
from forebay._base import dtypes
from forebay._base.device_spec import Device
from forebay._base.dtypes import DType
from forebay._base.layouts import Size, memory_format
from forebay.errors import ForebayError
from forebay.runtime.base.torch_types import named_type, torch_type
from forebay.runtime.devices import current
from forebay.runtime.tensors.memory_formats import check_format
from forebay.runtime.tensors.options import shape_of
from forebay.runtime.tensors.typed_storage import TypedStorage
from forebay.runtime.tensors.untyped_storage import UntypedStorage

if TYPE_CHECKING:
    from forebay.runtime.tensors.tensor import Tensor

__all__ = ["as_type", "converter", "data_for_new", "type_name", "type_text"]

_LEGACY = frozenset(("uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64"))  # oldest types


def converter(name: str, element: str) -> Callable[..., Tensor]:
    """Return the method that converts a tensor to elements of a type, such as `Tensor.float`."""

    def convert(self: Tensor, *, memory_format: memory_format | None = None) -> Tensor:
        if memory_format is None:
            return self.to(dtype=dtypes.named(element))
        check_format(name, memory_format)
        return self.to(dtype=dtypes.named(element), memory_format=memory_format)

    convert.__name__, convert.__qualname__ = name, f"Tensor.{name}"
    convert.__module__ = "forebay.runtime.tensors.tensor"
    convert.__doc__ = (
        f"Return this tensor with elements of type {element}.\n\n"
        "Parameters\n----------\nmemory_format : memory_format, optional\n"
        "    Order of the dimensions in the memory of a copy.\n\n"
        "Returns\n-------\nTensor\n    This tensor if it has that type, else a copy."
    )
    return convert


def type_text(tensor: Any) -> str:
    """Return the type as C++ errors spell it: "forebay.FloatTensor", but "CPUBoolType"."""
    dtype = tensor.numpy_dtype
    if dtype.name in _LEGACY:
        return type_name(tensor)
    return f"{tensor.raw_storage.opened.device.kind.upper()}{torch_type(dtype).name}Type"


def type_name(tensor: Tensor) -> str:
    """Return the full name of a tensor's legacy type, such as `"forebay.cuda.FloatTensor"`."""
    kind = tensor.device.kind
    return f"forebay.{'' if kind == 'cpu' else f'{kind}.'}{torch_type(tensor.numpy_dtype).name}Tensor"


def as_type(tensor: Tensor, wanted: Any, non_blocking: bool) -> Tensor:
    """Return the tensor with another element type, which a dtype names, or a legacy type, whose kind it also has."""
    if isinstance(wanted, (DType, np.dtype)):
        return tensor.to(dtype=wanted, non_blocking=non_blocking)
    if isinstance(wanted, type):
        wanted = wanted.__name__ if wanted.__module__ == "builtins" else f"{wanted.__module__}.{wanted.__name__}"
    elif not isinstance(wanted, str):
        raise TypeError("dtype must be a type, str, or dtype object")
    library, _, name = wanted.partition(".")
    kind, dot, name = name.rpartition(".")
    kind = kind if dot else "cpu"
    element = named_type(name.removesuffix("Tensor")) if name.endswith("Tensor") else ""
    if (
        library not in ("forebay", "torch")
        or not element
        or kind not in ("cpu", *current.PREFERRED, *backends.drivers())
    ):
        raise ValueError(f"invalid type: {wanted!r}")
    place = tensor.device if tensor.device.kind == kind else Device(kind)
    return tensor.to(place, dtypes.named(element), non_blocking)


def data_for_new(
    tensor: Tensor, args: tuple[Any, ...], device: Any
) -> tuple[Device, tuple[int, ...] | np.ndarray[Any, Any] | UntypedStorage | Tensor]:
    """Return where `Tensor.new` makes a tensor, and of what: a shape, elements, a storage, or another tensor.

    Raises TypeError or RuntimeError, with PyTorch's texts, for other arguments.
    """
    place = tensor.device
    if device is not None:
        place = Device(device)
        if place.kind != tensor.device.kind:
            raise ForebayError(
                f"legacy constructor expects device type: {tensor.device.kind} but device type: {place.kind} was passed"
            )
        place = tensor.device if place.index is None else current.resolve(place)
    if not args:
        return place, (0,)
    data = args[0] if len(args) == 1 else None
    if len(args) > 1 or isinstance(data, (Size, np.integer)) or data.__class__ is int:
        return place, shape_of("new", args, None, tensor.numpy_dtype)
    if isinstance(data, TypedStorage):
        found, expected = (torch_type(each.numpy_dtype).name for each in (data.elements, tensor))
        if found != expected:
            raise ForebayError(
                f"Expected a Storage of type {expected} or an UntypedStorage, but got type {found} for argument 1 "
                "'storage'"
            )
        return place, data.untyped()
    if isinstance(data, UntypedStorage):
        return place, data
    if isinstance(data, type(tensor)):
        if device is not None:
            raise ForebayError(
                "Legacy tensor new of the form tensor.new(tensor, device=device) is not supported.  Use "
                "forebay.as_tensor(...) instead."
            )
        if data.numpy_dtype != tensor.numpy_dtype or data.device.kind != place.kind:
            raise TypeError(f"expected {_options(tensor, place.kind)} (got {_options(data, str(data.device))})")
        return place, data
    if isinstance(data, (str, bytes)):
        raise TypeError(f"new(): invalid data type {type(data).__name__!r}")
    if not isinstance(data, (Sequence, np.ndarray)):
        raise TypeError(f"new(): data must be a sequence (got {type(data).__name__})")
    return place, np.asarray(data, tensor.numpy_dtype)


def _options(tensor: Tensor, device: str) -> str:
    return (
        f"TensorOptions(dtype={torch_type(tensor.numpy_dtype).spelled}, device={device}, layout=Strided, "
        "requires_grad=false (default), pinned_memory=false (default), memory_format=(nullopt))"
    )
