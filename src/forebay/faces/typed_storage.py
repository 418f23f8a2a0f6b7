"""PyTorch's legacy storages: one-dimensional memory of one element type, over a Tensor. New programs use tensors."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar, Self

import numpy as np

from forebay import dtypes
from forebay.device_spec import Device
from forebay.errors import ForebayError, Unsupported
from forebay.faces.kind import Kind
from forebay.runtime.tensors import creation
from forebay.runtime.tensors.tensor import Tensor

__all__ = ["TypedStorage"]

_MESSAGE = (
    "TypedStorage is deprecated. It will be removed in the future and UntypedStorage will be the only storage class. "
    "This should only matter to you if you are using storages directly.  To access UntypedStorage directly, use "
    "tensor.untyped_storage() instead of tensor.storage()"
)
_warned = False


def _warn(stacklevel: int = 3) -> None:
    """Once in a process, as PyTorch."""
    global _warned  # noqa: PLW0603 -- as it says
    if not _warned:
        _warned = True
        warnings.warn(_MESSAGE, UserWarning, stacklevel=stacklevel)


class _ElementType:
    """`.dtype` of a class, and of what is made of it; the class's own warns."""

    def __init__(self, *, silent: bool) -> None:
        self._silent = silent

    def __get__(self, instance: object, owner: type[TypedStorage]) -> np.dtype[Any]:
        if instance is None and not self._silent:
            _warn()
        return dtypes.as_dtype(owner.element)


def _converter(name: str, element: str) -> Callable[[TypedStorage], TypedStorage]:
    def convert(self: TypedStorage) -> TypedStorage:
        return self._as(element)

    convert.__name__ = convert.__qualname__ = name
    convert.__doc__ = f"A copy with elements of type {element}."
    return convert


class TypedStorage:
    """One element type of one kind; subclasses say which. Made of nothing, a size, a sequence, or another's memory.

    Initialises the kind. Raises RuntimeError and TypeError for other arguments. (`torch.TypedStorage`)
    """

    kind: ClassVar[Kind]
    element: ClassVar[str]
    family: ClassVar[dict[str, type[TypedStorage]]]  # the kind's, by element type
    is_sparse = False
    is_hpu = False
    dtype = _ElementType(silent=False)
    _dtype = _ElementType(silent=True)

    def __init__(
        self,
        *args: Any,
        wrap_storage: TypedStorage | None = None,
        dtype: Any = None,
        device: Any = None,
        _internal: bool = False,
    ) -> None:
        if not _internal:
            _warn()
        named = {"device": device, "dtype": dtype}
        for name, value in named.items():
            if value is not None:
                raise ForebayError(self._expected(f"Keyword argument {name!r} cannot be specified"))
        if wrap_storage is not None:
            self.elements = self._of(args, wrap_storage)
            return
        if len(args) > 1:
            raise ForebayError(self._expected("Too many positional arguments"))
        size = args[0] if args else 0
        if not isinstance(size, (int, np.integer, Sequence)) or isinstance(size, (str, bytes)):
            raise TypeError(self._expected(f"Argument type not recognized: {type(size)}"))
        place = Device(self.kind.name, self.kind.current_index())
        if isinstance(size, Sequence):
            self.elements = creation.tensor(np.asarray(size, self._dtype), device=place)
        else:
            self.elements = creation.empty(int(size), dtype=self._dtype, device=place)

    def _of(self, args: tuple[Any, ...], storage: TypedStorage) -> Tensor:
        if args:
            raise ForebayError(self._expected("No positional arguments should be given when using 'wrap_storage'"))
        if not isinstance(storage, TypedStorage):
            raise TypeError(self._expected(f"Argument 'wrap_storage' must be UntypedStorage, but got {type(storage)}"))
        place = storage.elements.device.kind
        if place != self.kind.name:
            raise ForebayError(self._expected(f"Device of 'wrap_storage' must be {self.kind.name}, but got {place}"))
        return storage.elements.view(self._dtype)

    def _expected(self, reason: str) -> str:
        return (
            f"{type(self)}.__new__ received an invalid combination of arguments. Expected one of:\n * no arguments\n"
            f" * (int size)\n * (Sequence data)\n * (*, UntypedStorage wrap_storage)\n{reason}"
        )

    @classmethod
    def over(cls, elements: Tensor) -> Self:
        """One over that very memory."""
        made = cls.__new__(cls)
        made.elements = elements
        return made

    # What it is

    @property
    def device(self) -> Device:
        return self.elements.device

    @property
    def is_cuda(self) -> bool:
        return self.device.kind == "cuda"

    @property
    def filename(self) -> str | None:
        """No file is behind it."""
        return None

    def get_device(self) -> int:
        return self.device.index or 0

    def __len__(self) -> int:
        return len(self.elements)

    def size(self) -> int:
        """How many elements."""
        return len(self.elements)

    def nbytes(self) -> int:
        return self.elements.nbytes

    def element_size(self) -> int:
        """Bytes of one element."""
        return self.elements.itemsize

    def data_ptr(self) -> int:
        return self.elements.data_ptr()

    def is_pinned(self, device: Any = None) -> bool:  # noqa: ARG002 -- PyTorch's
        return False

    def is_shared(self) -> bool:
        """Memory of a device always may be shared."""
        return True

    def resizable(self) -> bool:
        return True

    def pickle_storage_type(self) -> str:
        return type(self).__name__

    def type(self, dtype: Any = None, non_blocking: bool = False) -> Any:  # noqa: ARG002 -- PyTorch's
        """The name of its type, or a copy of another: a class of storages, or the name of one."""
        if dtype is None:
            return f"{type(self).__module__}.{type(self).__name__}"
        for each in self.family.values():
            if dtype is each or dtype == f"{each.__module__}.{each.__name__}":
                return self._as(each.element)
        raise ForebayError(f"{dtype!r} is no storage of {self.kind.name}")

    def __repr__(self) -> str:
        name = f"{type(self).__module__}.{type(self).__name__}"
        rows = "".join(f" {value}\n" for value in self.elements.tolist())
        return f"{rows}[{name}(dtype={self._dtype}, device={self.device}) of size {len(self)}]"

    # Its elements

    def __getitem__(self, idx: int) -> Any:
        if isinstance(idx, slice):
            raise ForebayError("slices are only supported in UntypedStorage.__getitem__")
        if not isinstance(idx, int):
            raise ForebayError(f"can't index a {type(self)} with {type(idx)}")
        if not -len(self) <= idx < len(self):
            raise IndexError(f"index {idx} out of range for storage of size {len(self)}")
        return self.elements[idx].item()

    def __setitem__(self, idx: int | slice, value: Any) -> None:
        if not isinstance(idx, (int, slice)):
            raise ForebayError(f"can't index a {type(self)} with {type(idx)}")
        if isinstance(value, TypedStorage):
            raise ForebayError(f"cannot set item with value type {type(value)}")
        self.elements[idx] = value

    def __iter__(self) -> Iterator[Any]:
        return iter(self.elements.tolist())

    def tolist(self) -> list[Any]:
        return list(self.elements.tolist())

    def fill_(self, value: complex) -> Self:
        """Set every element. Gives this storage."""
        self.elements.fill_(value)
        return self

    def copy_(self, source: TypedStorage, non_blocking: bool | None = None) -> Self:  # noqa: ARG002 -- PyTorch's
        """Copy the bytes of a storage of the same size. Gives this storage."""
        if self.nbytes() != source.nbytes():
            raise ForebayError(
                f"size does not match, self was {self.nbytes()} bytes but src was {source.nbytes()} bytes"
            )
        self.elements.view("uint8").copy_(source.elements.view("uint8"))
        return self

    def clone(self) -> Self:
        return self.over(self.elements.clone())

    def untyped(self) -> TypedStorage:
        """The same memory as bytes."""
        return self.family["uint8"].over(self.elements.view("uint8"))

    def resize_(self, size: int) -> None:
        """Become that large; what fits stays."""
        new = creation.empty(size, dtype=self._dtype, device=self.device)
        kept = min(size, len(self))
        new[:kept].copy_(self.elements[:kept])
        self.elements = new

    # Elsewhere

    def to(self, *, device: Any, non_blocking: bool = False) -> Any:  # noqa: ARG002 -- PyTorch's
        """A copy on another device; itself where it is there. A copy on another kind is a Tensor."""
        moved = self.elements.to(device=device)
        if moved is self.elements:
            return self
        return self.over(moved) if moved.device.kind == self.kind.name else moved

    def cuda(self, device: Any = None, non_blocking: bool = False) -> Any:  # noqa: ARG002 -- PyTorch's signature
        """A copy on another CUDA device; itself where it is there."""
        return self if device is None else self.to(device=Device("cuda", self.kind.index(device, optional=True)))

    def cpu(self) -> Tensor:
        """A copy on the host device, which is a Tensor."""
        return self.elements.cpu()

    def hpu(self, device: Any = None, non_blocking: bool = False) -> Self:  # noqa: ARG002 -- PyTorch's signature
        raise Unsupported("there are no devices of kind 'hpu'")

    def pin_memory(self, device: Any = None) -> Self:  # noqa: ARG002 -- PyTorch's signature
        raise TypeError(f"cannot pin {self.type()!r} only CPU memory can be pinned")

    def share_memory_(self) -> Self:
        """It may be shared already."""
        return self

    def _as(self, element: str) -> TypedStorage:
        copied = self.elements.to(dtype=dtypes.as_dtype(element), copy=True)
        return self.family[element].over(copied)

    @classmethod
    def from_buffer(cls, *args: Any, **kwargs: Any) -> Self:  # noqa: ARG003 -- PyTorch's signature
        _warn()
        raise ForebayError(f"from_buffer: Not available for {cls.kind.word} storage")

    @classmethod
    def from_file(cls, filename: Any, shared: Any, size: Any) -> Self:  # noqa: ARG003 -- PyTorch's signature
        raise ForebayError(f"from_file: Not available for {cls.kind.word} storage")

    @classmethod
    def _new_with_weak_ptr(cls, *args: Any, **kwargs: Any) -> Self:  # noqa: ARG003 -- PyTorch's signature
        raise ForebayError(f"_new_with_weak_ptr: Not available for {cls.kind.word} storage")

    @classmethod
    def _new_shared_filename(cls, manager: Any, obj: Any, size: Any, *, device: Any = None, dtype: Any = None) -> Self:  # noqa: ARG003 -- PyTorch's signature
        raise ForebayError(f"_new_shared_filename: Not available for {cls.kind.word} storage")

    double = _converter("double", "float64")
    float = _converter("float", "float32")
    half = _converter("half", "float16")
    bfloat16 = _converter("bfloat16", "bfloat16")
    long = _converter("long", "int64")
    int = _converter("int", "int32")
    short = _converter("short", "int16")
    char = _converter("char", "int8")
    byte = _converter("byte", "uint8")
    bool = _converter("bool", "bool")
    complex_double = _converter("complex_double", "complex128")
    complex_float = _converter("complex_float", "complex64")
