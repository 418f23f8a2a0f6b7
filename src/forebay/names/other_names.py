"""Top-level names of torch that few programs use: factories, and questions about types and defaults."""

from __future__ import annotations

from typing import Any

from forebay._base.device_spec import CPU
from forebay._base.dtypes import DType, named
from forebay.errors import Unsupported
from forebay.names import cpu
from forebay.runtime.random.generator import Generator
from forebay.runtime.random.generator import default_generator as _default_generator
from forebay.runtime.tensors.legacy_types import type_name
from forebay.runtime.tensors.other_factories import asarray, empty_strided, eye, frombuffer, linspace, scalar_tensor
from forebay.runtime.tensors.tensor import Tensor

__all__ = [
    "asarray",
    "cpu",
    "default_generator",
    "empty_strided",
    "eye",
    "frombuffer",
    "get_default_dtype",
    "is_inference",
    "linspace",
    "scalar_tensor",
    "set_default_dtype",
    "typename",
]

default_generator: Generator = _default_generator(CPU)


def get_default_dtype() -> DType:
    """Return float32, the dtype of factories without one.

    As `torch.get_default_dtype`.
    """
    return named("float32")


def set_default_dtype(d: Any, /) -> None:
    """Accept float32, the only default dtype.

    As `torch.set_default_dtype`.

    Parameters
    ----------
    d : dtype
        The dtype.

    Raises
    ------
    Unsupported
        If it is another one.
    """
    if d != named("float32"):
        raise Unsupported(f"the default dtype is float32; pass dtype={d} to each factory", ability="default dtype")


def is_inference(input: Tensor) -> bool:  # noqa: A002 -- PyTorch's name
    """Return False: tensors made in `inference_mode` are as others.

    As `torch.is_inference`.

    Parameters
    ----------
    input : Tensor
        A tensor.
    """
    return input.is_inference()


def typename(obj: object, /) -> str:
    """Return the full name of an object's type, that of the legacy type for a tensor.

    As `torch.typename`.

    Parameters
    ----------
    obj : object
        The object.
    """
    if isinstance(obj, Tensor):
        return type_name(obj)
    named_object: Any = obj if hasattr(obj, "__qualname__") else type(obj)
    module = getattr(named_object, "__module__", "") or ""
    return named_object.__qualname__ if module in ("", "builtins") else f"{module}.{named_object.__qualname__}"
