"""PyTorch's legacy tensor types, such as `torch.cuda.FloatTensor`: constructors and `isinstance` checks."""

from __future__ import annotations

import warnings
from typing import Any

from forebay._base import dtypes
from forebay._base.device_spec import Device, DeviceLike
from forebay.errors import ForebayError
from forebay.names.kind import DeviceKind
from forebay.runtime.tensors import creation
from forebay.runtime.tensors.tensor import Tensor

__all__ = ["TensorType"]

_warned = {"cpu"}  # kinds whose types no longer warn; those of the CPU never do


class TensorType(type):
    """Metaclass of the legacy tensor types: a call creates a tensor, `isinstance` compares kind and dtype."""

    kind: DeviceKind
    element: str

    def __new__(cls, kind: DeviceKind, name: str, element: str) -> TensorType:
        module = "forebay" if kind.name == "cpu" else f"forebay.{kind.name}"
        doc = (
            f"Legacy constructor of {element} tensors on {kind.name} devices, from sizes, a sequence or a tensor.\n\n"
            "Parameters\n----------\n*args : int or sequence or Tensor\n    The sizes, or the elements.\n"
            "device : device or str or int, optional\n    The device; the current one by default.\n\n"
            f"Notes\n-----\nAs `{module.replace('forebay', 'torch')}.{name}`. Initialises the kind. Warns once per "
            "process, except for the CPU."
        )
        made = super().__new__(cls, name, (), {"__module__": module, "__doc__": doc})
        made.kind, made.element = kind, element
        return made

    def __init__(cls, _: DeviceKind, name: str, __: str) -> None:
        super().__init__(name, (), {})

    @property
    def dtype(cls) -> dtypes.DType:
        """Element type."""
        return dtypes.named(cls.element)

    @property
    def is_cuda(cls) -> bool:
        """True for the types of CUDA devices."""
        return cls.kind.name == "cuda"

    def __instancecheck__(cls, instance: object) -> bool:
        return (
            isinstance(instance, Tensor)
            and instance.device.kind == cls.kind.name
            and instance.numpy_dtype.name == cls.element
        )

    def __call__(cls, *args: Any, device: DeviceLike | None = None) -> Tensor:
        kind = cls.kind
        if kind.name not in _warned:
            _warned.add(kind.name)
            warnings.warn(
                f"The forebay.{kind.name}.*DtypeTensor constructors are no longer recommended. It's best to use "
                f"methods such as forebay.tensor(data, dtype=*, device='{kind.name}') to create tensors.",
                UserWarning,
                stacklevel=2,
            )
        return creation.empty(0, dtype=cls.dtype, device=cls._device(device)).new(*args)

    def _device(cls, device: Any) -> Device:
        kind = cls.kind
        if device is None:
            return Device(kind.name, kind.current_index())
        parsed = Device(device)
        if parsed.kind != kind.name:
            raise ForebayError(
                f"legacy constructor expects device type: {kind.name} but device type: {parsed.kind} was passed"
            )
        return Device(kind.name, kind.index(parsed, optional=True))
