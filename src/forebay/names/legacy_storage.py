"""The legacy classes of typed storages, such as `torch.cuda.FloatStorage`: constructors and conversions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Final, Self, cast

import numpy as np

from forebay._base import dtypes
from forebay._base.byte_sizes import LIMIT
from forebay._base.device_spec import Device, DeviceLike
from forebay.errors import ForebayError, Unsupported
from forebay.names.kind import DeviceKind
from forebay.runtime.allocator.oom_message import too_large_error
from forebay.runtime.tensors import creation
from forebay.runtime.tensors.tensor import Tensor
from forebay.runtime.tensors.typed_storage import TypedStorage, warn_that_storages_are_deprecated
from forebay.runtime.tensors.untyped_storage import UntypedStorage

__all__ = ["LegacyStorage"]


class _ElementType:
    """Descriptor of `dtype`; access through the class warns unless `silent`."""

    def __init__(self, *, silent: bool) -> None:
        self._silent = silent

    def __get__(self, instance: object, owner: type[LegacyStorage]) -> dtypes.DType:
        if instance is None and not self._silent:
            warn_that_storages_are_deprecated()
        return dtypes.named(owner.element)


class _LegacyType(type):
    """Metaclass with PyTorch's rule: a storage of a tensor is an instance of the class of its kind and element type."""

    def __instancecheck__(cls, instance: object) -> bool:
        if type(instance) is not TypedStorage or not hasattr(cls, "element"):
            return super().__instancecheck__(instance)
        legacy, elements = cast("type[LegacyStorage]", cls), instance.elements
        return (elements.device.kind, elements.numpy_dtype.name) == (legacy.kind.name, legacy.element)


class LegacyStorage(TypedStorage, metaclass=_LegacyType):
    """One-dimensional storage of one element type on one device kind; subclasses fix both.

    As `torch.TypedStorage`. Deprecated: use tensors. Initialises the kind.

    Parameters
    ----------
    *args : int or sequence
        The number of elements or their values; empty by default.
    wrap_storage : UntypedStorage, optional
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
    """

    elements: Tensor

    kind: ClassVar[DeviceKind]
    element: ClassVar[str]
    classes_by_element: ClassVar[dict[str, type[LegacyStorage]]]  # the storage classes of the kind, by element type
    dtype: Final = _ElementType(silent=False)
    _dtype = _ElementType(silent=True)

    def __init__(
        self,
        *args: Any,
        wrap_storage: UntypedStorage | None = None,
        dtype: Any = None,
        device: DeviceLike | None = None,
        _internal: bool = False,
    ) -> None:
        if not _internal:
            warn_that_storages_are_deprecated()
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
        if not -LIMIT <= length * self._dtype.itemsize < LIMIT:
            raise ValueError("Overflow when unpacking long long")
        if length < 0:
            raise too_large_error(str(self.kind.device_at(self.kind.current_index())), length)
        return length

    def _shared_elements(self, args: tuple[Any, ...], storage: UntypedStorage) -> Tensor:
        if args:
            raise ForebayError(self._expected("No positional arguments should be given when using 'wrap_storage'"))
        if not isinstance(storage, UntypedStorage):
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

    def hpu(self, device: DeviceLike | None = None, non_blocking: bool = False) -> Self:  # noqa: ARG002 -- PyTorch's signature
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

    def share_memory_(self) -> Self:
        """Return this storage, which can be shared as it is."""
        return self

    def _converted(self, element: str) -> LegacyStorage:
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
        warn_that_storages_are_deprecated()
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
