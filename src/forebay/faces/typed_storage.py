"""PyTorch's legacy typed storages: one-dimensional memory of one element type, implemented over a Tensor.

Over 400 lines because most of it is the docstrings of public methods.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar, Self

import numpy as np

from forebay import dtypes
from forebay.device_spec import Device
from forebay.errors import ForebayError, Unsupported
from forebay.faces.kind import DeviceKind
from forebay.runtime.allocator.oom_message import too_large_error
from forebay.runtime.tensors import creation
from forebay.runtime.tensors.tensor import Tensor

__all__ = ["TypedStorage"]

_LIMIT = 1 << 63

_MESSAGE = (
    "TypedStorage is deprecated. It will be removed in the future and UntypedStorage will be the only storage class. "
    "This should only matter to you if you are using storages directly.  To access UntypedStorage directly, use "
    "tensor.untyped_storage() instead of tensor.storage()"
)
_warned = False


def _warn(stacklevel: int = 3) -> None:
    """Issue PyTorch's deprecation warning once per process."""
    global _warned  # noqa: PLW0603 -- once per process
    if not _warned:
        _warned = True
        warnings.warn(_MESSAGE, UserWarning, stacklevel=stacklevel)


class _ElementType:
    """Descriptor of `dtype`; access through the class warns unless `silent`."""

    def __init__(self, *, silent: bool) -> None:
        self._silent = silent

    def __get__(self, instance: object, owner: type[TypedStorage]) -> np.dtype[Any]:
        if instance is None and not self._silent:
            _warn()
        return dtypes.as_dtype(owner.element)


def _converter(name: str, element: str) -> Callable[[TypedStorage], TypedStorage]:
    def convert(self: TypedStorage) -> TypedStorage:
        return self._converted(element)

    convert.__name__ = convert.__qualname__ = name
    convert.__doc__ = (
        f"Return a copy with elements of type {element}.\n\n"
        "Returns\n-------\nTypedStorage\n    The copy, on the same device."
    )
    return convert


class TypedStorage:
    """One-dimensional storage of one element type on one device kind; subclasses fix both.

    Parameters
    ----------
    *args : int or sequence
        The number of elements or their values; empty by default.
    wrap_storage : TypedStorage, optional
        A storage whose memory the new one shares.
    dtype : object, optional
        Must be None.
    device : object, optional
        Must be None.

    Raises
    ------
    ForebayError
        If the arguments are invalid.
    TypeError
        If an argument has the wrong type.

    Notes
    -----
    As `torch.TypedStorage`. Deprecated: use tensors. Initialises the kind.
    """

    kind: ClassVar[DeviceKind]
    element: ClassVar[str]
    classes_by_element: ClassVar[dict[str, type[TypedStorage]]]  # the storage classes of the kind, by element type
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
            self.elements = self._shared_elements(args, wrap_storage)
            return
        if len(args) > 1:
            raise ForebayError(self._expected("Too many positional arguments"))
        size = args[0] if args else 0
        if isinstance(size, (str, bytes)):
            raise TypeError(f"new(): invalid data type {type(size).__name__!r}")
        if not isinstance(size, (int, np.integer, Sequence)):
            raise TypeError(self._expected(f"Argument type not recognized: {type(size)}"))
        target = Device(self.kind.name, self.kind.current_index())
        if isinstance(size, Sequence):
            self.elements = creation.tensor(np.asarray(size, self._dtype), device=target)
        else:
            self.elements = creation.empty(self._checked_length(int(size)), dtype=self._dtype, device=target)

    def _checked_length(self, length: int) -> int:
        """Return the length. Raises ValueError or OutOfMemory, with PyTorch's texts, for an impossible one."""
        if not -_LIMIT <= length * self._dtype.itemsize < _LIMIT:
            raise ValueError("Overflow when unpacking long long")
        if length < 0:
            raise too_large_error(str(self.kind.device_at(self.kind.current_index())), length)
        return length

    def _shared_elements(self, args: tuple[Any, ...], storage: TypedStorage) -> Tensor:
        if args:
            raise ForebayError(self._expected("No positional arguments should be given when using 'wrap_storage'"))
        if not isinstance(storage, TypedStorage):
            raise TypeError(self._expected(f"Argument 'wrap_storage' must be UntypedStorage, but got {type(storage)}"))
        kind = storage.elements.device.kind
        if kind != self.kind.name:
            raise ForebayError(self._expected(f"Device of 'wrap_storage' must be {self.kind.name}, but got {kind}"))
        return storage.elements.view(self._dtype)

    def _expected(self, reason: str) -> str:
        return (
            f"{type(self)}.__new__ received an invalid combination of arguments. Expected one of:\n * no arguments\n"
            f" * (int size)\n * (Sequence data)\n * (*, UntypedStorage wrap_storage)\n{reason}"
        )

    @classmethod
    def from_tensor(cls, elements: Tensor) -> Self:
        """Return a storage over a tensor, whose memory it shares.

        Parameters
        ----------
        elements : Tensor
            A one-dimensional tensor.

        Returns
        -------
        TypedStorage
            The storage.
        """
        made = cls.__new__(cls)
        made.elements = elements
        return made

    # Properties

    @property
    def device(self) -> Device:
        """Device of the memory."""
        return self.elements.device

    @property
    def is_cuda(self) -> bool:
        """True for a CUDA device."""
        return self.device.kind == "cuda"

    @property
    def filename(self) -> str | None:
        """None: no file backs the storage."""
        return None

    def get_device(self) -> int:
        """Return the index of the device.

        Returns
        -------
        int
            The index.
        """
        return self.device.index or 0

    def __len__(self) -> int:
        return len(self.elements)

    def size(self) -> int:
        """Return the number of elements.

        Returns
        -------
        int
            The number of elements.
        """
        return len(self.elements)

    def nbytes(self) -> int:
        """Return the size in bytes.

        Returns
        -------
        int
            Bytes.
        """
        return self.elements.nbytes

    def element_size(self) -> int:
        """Return the size of one element in bytes.

        Returns
        -------
        int
            Bytes.
        """
        return self.elements.itemsize

    def data_ptr(self) -> int:
        """Return the address of the first element.

        Returns
        -------
        int
            The address.
        """
        return self.elements.data_ptr()

    def is_pinned(self, device: Any = None) -> bool:  # noqa: ARG002 -- PyTorch's
        """Return False: device memory is not pinned host memory.

        Parameters
        ----------
        device : object, optional
            Ignored.

        Returns
        -------
        bool
            False.
        """
        return False

    def is_shared(self) -> bool:
        """Return True: device memory can be shared between processes.

        Returns
        -------
        bool
            True.
        """
        return True

    def resizable(self) -> bool:
        """Return True.

        Returns
        -------
        bool
            True.
        """
        return True

    def pickle_storage_type(self) -> str:
        """Return the name of the class.

        Returns
        -------
        str
            The name.
        """
        return type(self).__name__

    def type(self, dtype: Any = None, non_blocking: bool = False) -> Any:  # noqa: ARG002 -- PyTorch's
        """Return the name of the storage type, or a copy of another type.

        Parameters
        ----------
        dtype : type or str, optional
            A storage class or its full name; None returns the name of this class.
        non_blocking : bool, default False
            Ignored.

        Returns
        -------
        str or TypedStorage
            The full name, or the converted copy.

        Raises
        ------
        ForebayError
            If `dtype` is not a storage type of the kind.
        """
        if dtype is None:
            return f"{type(self).__module__}.{type(self).__name__}"
        for each in self.classes_by_element.values():
            if dtype is each or dtype == f"{each.__module__}.{each.__name__}":
                return self._converted(each.element)
        raise ForebayError(f"{dtype!r} is not a storage type of {self.kind.name}")

    def __repr__(self) -> str:
        name = f"{type(self).__module__}.{type(self).__name__}"
        rows = "".join(f" {value}\n" for value in self.elements.tolist())
        return f"{rows}[{name}(dtype={self._dtype}, device={self.device}) of size {len(self)}]"

    # Elements

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
        """Return the elements as a list.

        Returns
        -------
        list
            Python numbers.

        Notes
        -----
        Waits for the work that writes them.
        """
        return list(self.elements.tolist())

    def fill_(self, value: complex) -> Self:
        """Set every element.

        Parameters
        ----------
        value : complex
            The value.

        Returns
        -------
        TypedStorage
            This storage.
        """
        self.elements.fill_(value)
        return self

    def copy_(self, source: TypedStorage, non_blocking: bool | None = None) -> Self:  # noqa: ARG002 -- PyTorch's
        """Copy the bytes of another storage.

        Parameters
        ----------
        source : TypedStorage
            A storage of the same size in bytes.
        non_blocking : bool, optional
            Ignored.

        Returns
        -------
        TypedStorage
            This storage.

        Raises
        ------
        ForebayError
            If the sizes differ.
        """
        if self.nbytes() != source.nbytes():
            raise ForebayError(
                f"size does not match, self was {self.nbytes()} bytes but src was {source.nbytes()} bytes"
            )
        self.elements.view("uint8").copy_(source.elements.view("uint8"))
        return self

    def clone(self) -> Self:
        """Return a copy on the same device.

        Returns
        -------
        TypedStorage
            The copy.
        """
        return self.from_tensor(self.elements.clone())

    def untyped(self) -> TypedStorage:
        """Return a storage of bytes over the same memory.

        Returns
        -------
        TypedStorage
            The storage of uint8.
        """
        return self.classes_by_element["uint8"].from_tensor(self.elements.view("uint8"))

    def resize_(self, size: int) -> None:
        """Change the number of elements.

        Parameters
        ----------
        size : int
            The new number; elements beyond it are dropped, new elements are uninitialised.

        Notes
        -----
        Allocates new memory and copies the elements.
        """
        new = creation.empty(size, dtype=self._dtype, device=self.device)
        shared = min(size, len(self))
        new[:shared].copy_(self.elements[:shared])
        self.elements = new

    # Copies on other devices

    def to(self, *, device: Any, non_blocking: bool = False) -> Any:  # noqa: ARG002 -- PyTorch's
        """Return the storage on another device.

        Parameters
        ----------
        device : device or str
            The device.
        non_blocking : bool, default False
            Ignored.

        Returns
        -------
        TypedStorage or Tensor
            This storage if it is on that device, else a copy; a Tensor on a device of another kind.
        """
        moved = self.elements.to(device=device)
        if moved is self.elements:
            return self
        return self.from_tensor(moved) if moved.device.kind == self.kind.name else moved

    def cuda(self, device: Any = None, non_blocking: bool = False) -> Any:  # noqa: ARG002 -- PyTorch's signature
        """Return the storage on another CUDA device.

        Parameters
        ----------
        device : device or str or int, optional
            The device; this storage's by default.
        non_blocking : bool, default False
            Ignored.

        Returns
        -------
        TypedStorage
            This storage if it is on that device, else a copy.
        """
        return self if device is None else self.to(device=Device("cuda", self.kind.index(device, optional=True)))

    def cpu(self) -> Tensor:
        """Return a copy on the CPU device.

        Returns
        -------
        Tensor
            The copy.
        """
        return self.elements.cpu()

    def hpu(self, device: Any = None, non_blocking: bool = False) -> Self:  # noqa: ARG002 -- PyTorch's signature
        """Raise Unsupported: there are no devices of kind "hpu".

        Parameters
        ----------
        device : object, optional
            Ignored.
        non_blocking : bool, default False
            Ignored.

        Raises
        ------
        Unsupported
            Always.
        """
        raise Unsupported("there are no devices of kind 'hpu'")

    def pin_memory(self, device: Any = None) -> Self:  # noqa: ARG002 -- PyTorch's signature
        """Raise TypeError: only host memory can be pinned.

        Parameters
        ----------
        device : object, optional
            Ignored.

        Raises
        ------
        TypeError
            Always.
        """
        raise TypeError(f"cannot pin {self.type()!r} only CPU memory can be pinned")

    def share_memory_(self) -> Self:
        """Return this storage, which can be shared as it is.

        Returns
        -------
        TypedStorage
            This storage.
        """
        return self

    def _converted(self, element: str) -> TypedStorage:
        copied = self.elements.to(dtype=dtypes.as_dtype(element), copy=True)
        return self.classes_by_element[element].from_tensor(copied)

    @classmethod
    def from_buffer(cls, *args: Any, **kwargs: Any) -> Self:  # noqa: ARG003 -- PyTorch's signature
        """Raise ForebayError: not available for device memory.

        Parameters
        ----------
        *args : Any
            Ignored.
        **kwargs : Any
            Ignored.

        Raises
        ------
        ForebayError
            Always.
        """
        _warn()
        raise ForebayError(f"from_buffer: Not available for {cls.kind.display_name} storage")

    @classmethod
    def from_file(cls, filename: Any, shared: Any, size: Any) -> Self:  # noqa: ARG003 -- PyTorch's signature
        """Raise ForebayError: not available for device memory.

        Parameters
        ----------
        filename : object
            Ignored.
        shared : object
            Ignored.
        size : object
            Ignored.

        Raises
        ------
        ForebayError
            Always.
        """
        raise ForebayError(f"from_file: Not available for {cls.kind.display_name} storage")

    @classmethod
    def _new_with_weak_ptr(cls, *args: Any, **kwargs: Any) -> Self:  # noqa: ARG003 -- PyTorch's signature
        raise ForebayError(f"_new_with_weak_ptr: Not available for {cls.kind.display_name} storage")

    @classmethod
    def _new_shared_filename(cls, manager: Any, obj: Any, size: Any, *, device: Any = None, dtype: Any = None) -> Self:  # noqa: ARG003 -- PyTorch's signature
        raise ForebayError(f"_new_shared_filename: Not available for {cls.kind.display_name} storage")

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
