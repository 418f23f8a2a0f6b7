"""The Tensor class: typed, shaped device memory."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Sequence
from copy import deepcopy
from typing import Any, Final, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray

from forebay import backends
from forebay._base.byte_sizes import LIMIT
from forebay._base.device_spec import NO_ACCELERATOR, Device, default_device
from forebay._base.dtypes import DType, DTypeLike, as_dtype
from forebay._base.dtypes import of as dtype_of
from forebay._base.layouts import Size, contiguous_format, layout, memory_format, preserve_format, size_of, strided
from forebay._core import MAX_REQUEST_BYTES
from forebay.errors import ForebayError, NoArithmetic, Unsupported
from forebay.runtime.devices import current
from forebay.runtime.devices.open_device import pinned_allocator
from forebay.runtime.memory import transfer
from forebay.runtime.memory.storage import Storage, array_at, pinned_block, record_use
from forebay.runtime.memory.strided_copy import is_c_contiguous
from forebay.runtime.memory.version_counter import VersionCounter
from forebay.runtime.pinned import registered_memory
from forebay.runtime.random import fill as random_fill
from forebay.runtime.random.generator import Generator
from forebay.runtime.streams.stream import Stream, default_stream_for
from forebay.runtime.tensors.dlpack_export import cuda_array_interface, dlpack_capsule, dlpack_device
from forebay.runtime.tensors.legacy_types import as_type, converter, data_for_new, type_name, type_text
from forebay.runtime.tensors.memory_formats import (
    check_format,
    is_contiguous_in,
    order_in,
    packed_strides,
    strides_of_copy,
    suggested_format,
)
from forebay.runtime.tensors.new_methods import NewTensors
from forebay.runtime.tensors.options import shape_of
from forebay.runtime.tensors.pinned import pinned_array
from forebay.runtime.tensors.storage_view import set_storage
from forebay.runtime.tensors.typed_storage import TypedStorage, warn_that_storages_are_deprecated
from forebay.runtime.tensors.untyped_storage import UntypedStorage
from forebay.runtime.tensors.view_methods import Views, argument
from forebay.runtime.tensors.views import dimension
from forebay.spi import PinnedHost

__all__ = ["Tensor", "borrowed_tensor", "new_tensor"]


class Tensor(Views, NewTensors):
    """A typed, shaped view of device memory.

    Factories such as `forebay.empty` and `forebay.tensor` create tensors. There is no arithmetic: NumPy, CuPy and other
    libraries share the memory through the buffer protocol, DLPack, `__array_interface__` and
    `__cuda_array_interface__`.

    As `torch.Tensor`. Operations are queued on the current stream of the device, in order with its other work;
    `numpy`, `tolist`, `item`, `repr` and the protocols wait for that stream first. Methods whose names end in an
    underscore change the tensor and return it.

    Parameters
    ----------
    storage : Storage
        The memory. Programs use factories instead of this constructor.
    dtype : numpy.dtype
        The element type.
    shape : tuple of int
        The lengths of the dimensions.
    strides : tuple of int
        The distances of neighbours along each dimension, in bytes.
    offset : int, default 0
        The distance of the first element from the storage's address, in bytes.

    Examples
    --------
    >>> import forebay
    >>> numbers = forebay.tensor([[1.0, 2.0], [3.0, 4.0]])
    >>> numbers[:, 1].tolist()
    [2.0, 4.0]
    """

    __hash__: Final = object.__hash__
    # There are only dense tensors, which no operation computed. A program may set `grad`.
    is_leaf = True
    is_xpu = is_xla = is_ipu = is_vulkan = is_maia = is_mkldnn = retains_grad = False
    is_meta = is_nested = is_quantized = is_sparse = is_sparse_csr = False
    grad: Tensor | None = None
    grad_fn = None
    versions: VersionCounter | None = None  # internal to the runtime; None until it is needed

    def __init__(
        self, storage: Storage, dtype: np.dtype[Any], shape: tuple[int, ...], strides: tuple[int, ...], offset: int = 0
    ) -> None:
        self.raw_storage: Storage = storage  # internal to the runtime, like `raw_array`
        self.byte_strides: tuple[int, ...] = strides
        self.byte_offset: int = offset
        self.numpy_dtype: np.dtype[Any] = dtype
        self.shape: Size = shape if shape.__class__ is Size else size_of(shape)

    # Properties.

    @property
    def dtype(self) -> DType:
        """The element type."""
        return dtype_of(self.numpy_dtype)

    @property
    def device(self) -> Device:
        """The device of the memory."""
        return self.raw_storage.opened.device

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return len(self.shape)

    @property
    def itemsize(self) -> int:
        """Bytes of one element."""
        return self.numpy_dtype.itemsize

    @property
    def nbytes(self) -> int:
        """Bytes of all elements."""
        return math.prod(self.shape) * self.numpy_dtype.itemsize

    @property
    def is_cuda(self) -> bool:
        """True on a CUDA device."""
        return self.device.kind == "cuda"

    @property
    def is_cpu(self) -> bool:
        """True on a CPU device."""
        return self.device.kind == "cpu"

    @property
    def is_mps(self) -> bool:
        """True on an MPS device."""
        return self.device.kind == "mps"

    @property
    def is_mtia(self) -> bool:
        """True on an MTIA device."""
        return self.device.kind == "mtia"

    @property
    def layout(self) -> layout:
        """The layout, which is `forebay.strided`."""
        return strided

    @property
    def _version(self) -> int:
        """The number of in-place changes to this tensor, its views and the tensors that it is a view of."""
        return self.version_counter().value

    def version_counter(self) -> VersionCounter:
        """Return the counter of in-place changes, which this tensor keeps from now on. Used by the runtime.

        Returns
        -------
        VersionCounter
            The counter: that of the memory, unless this tensor or the one that it is a view of has another.
        """
        if self.versions is None:
            self.versions = self.raw_storage.version_counter()
        return self.versions

    def count_change(self) -> None:
        """Count an in-place change of this tensor. Used by the runtime."""
        versions = self.versions
        if versions is None:
            versions = self.version_counter()
        versions.value += 1

    def get_device(self) -> int:
        """Return the index of the device; -1 for the CPU."""
        return -1 if self.device.kind == "cpu" else self.device.index or 0

    def is_floating_point(self) -> bool:
        """Return True for elements of a real floating-point type."""
        return self.dtype.is_floating_point

    def is_complex(self) -> bool:
        """Return True for complex elements."""
        return self.dtype.is_complex

    def is_signed(self) -> bool:
        """Return True for elements of a type with negative values."""
        return self.dtype.is_signed

    def is_shared(self) -> bool:
        """Return True for memory of a CUDA device, which processes can share."""
        return self.is_cuda

    def dim(self) -> int:
        """Return the number of dimensions."""
        return len(self.shape)

    def numel(self) -> int:
        """Return the number of elements."""
        return math.prod(self.shape)

    nelement = numel

    def ndimension(self) -> int:
        """Return the number of dimensions."""
        return len(self.shape)

    def share_memory_(self) -> Tensor:
        """Return this tensor: memory of a CUDA device can be shared by processes as it is.

        Raises
        ------
        Unsupported
            If the memory is the host's: `forebay.interop.multiprocessing` sends a copy.
        """
        if not self.is_shared():
            raise Unsupported(
                "only memory of CUDA devices is shared: a queue of multiprocessing sends a copy of others"
            )
        return self

    def is_inference(self) -> bool:
        """Return False: tensors made in `inference_mode` are as others."""
        return False

    def is_conj(self) -> bool:
        """Return False: no elements are stored as their conjugates."""
        return False

    is_neg = is_conj

    def resolve_conj(self) -> Tensor:
        """Return this tensor."""
        return self

    resolve_neg = resolve_conj

    def is_same_size(self, other: Tensor) -> bool:
        """Return True if another tensor has the same shape.

        Parameters
        ----------
        other : Tensor
            The other tensor.
        """
        return self.shape == argument("is_same_size", "other", other).shape

    def element_size(self) -> int:
        """Return the bytes of one element."""
        return self.itemsize

    @overload
    def size(self, dim: None = None) -> Size: ...
    @overload
    def size(self, dim: int) -> int: ...
    def size(self, dim: int | None = None) -> Size | int:
        """Return the shape, or the length of one dimension.

        Parameters
        ----------
        dim : int, optional
            The dimension; all by default.
        """
        return self.shape if dim is None else self.shape[dimension("size", "dim", dim, self.ndim, scalars=False)]

    @overload
    def stride(self, dim: None = None) -> tuple[int, ...]: ...
    @overload
    def stride(self, dim: int) -> int: ...
    def stride(self, dim: int | None = None) -> tuple[int, ...] | int:
        """Return the number of elements between neighbours along each dimension, or along one.

        Parameters
        ----------
        dim : int, optional
            The dimension; all by default.
        """
        steps = tuple(step // max(self.itemsize, 1) for step in self.byte_strides)
        return steps if dim is None else steps[dimension("stride", "dim", dim, self.ndim, scalars=False)]

    def storage_offset(self) -> int:
        """Return the number of elements between the start of the memory and the first element."""
        return self.byte_offset // max(self.itemsize, 1)

    def data_ptr(self) -> int:
        """Return the address of the first element; 0 for an empty tensor."""
        try:
            return self.raw_storage.address + self.byte_offset if self.numel() else 0
        except ForebayError:  # the storage is too small for its tensors, or access is forbidden
            return self.untyped_storage().data_ptr() + self.byte_offset

    def raw_address(self) -> int:
        """Return `data_ptr()` for queued work. Raises ForebayError if the memory must not be used."""
        return self.raw_storage.address + self.byte_offset if self.numel() else 0

    def set_(
        self,
        source: UntypedStorage | Tensor | None = None,
        storage_offset: int = 0,
        size: Sequence[int] | None = None,
        stride: Sequence[int] | None = None,
    ) -> Tensor:
        """Make this tensor a view of other memory of its device.

        As `torch.Tensor.set_`. A storage that is too small is enlarged.

        Parameters
        ----------
        source : UntypedStorage or Tensor, optional
            The memory; none by default, for an empty tensor.
        storage_offset : int, optional
            Elements of this tensor's dtype before the first one, from the start of the storage or tensor.
        size : sequence of int, optional
            The shape; by default that of a tensor, or all elements of a storage in one dimension.
        stride : sequence of int, optional
            The distances of neighbours, in elements; contiguous by default.

        Raises
        ------
        TypeError
            If `source` is neither a storage nor a tensor, or `storage_offset` is given without `size`.
        ForebayError
            If the memory is of another device, too small and not resizable, a tensor has another dtype, or a number
            is invalid.
        """
        if isinstance(source, Tensor):
            if source.numpy_dtype != self.numpy_dtype:
                raise ForebayError(f"Could not set tensor of type {source.dtype} to a tensor of type {self.dtype}")
            storage_offset += source.storage_offset()
            if size is None:
                size, stride = source.shape, source.stride()
            source = source.untyped_storage()
        elif source is None:
            source = UntypedStorage(0, device=self.device)
        elif not isinstance(source, UntypedStorage):
            raise TypeError(f"set_() expects a storage or a tensor, not {type(source).__name__}")
        if size is None:
            if storage_offset or stride is not None:
                raise TypeError("set_() expects size after storage_offset")
            size = (source.nbytes() // max(self.itemsize, 1),)
        set_storage(self, source, storage_offset, size, stride)
        self.count_change()
        return self

    def resize_(self, *sizes: int | Sequence[int], memory_format: memory_format | None = None) -> Tensor:
        """Change the shape in place. The memory is enlarged if it is too small, and remains as it is otherwise.

        As `torch.Tensor.resize_`.

        Parameters
        ----------
        *sizes : int or sequence of int
            The shape: `resize_(2, 3)` or `resize_((2, 3))`. Elements that are added are uninitialised.
        memory_format : memory_format, optional
            The order of the dimensions in memory.

        Raises
        ------
        TypeError
            If a length is not an int.
        ForebayError
            If a length is negative, or the memory has to be enlarged and cannot be, such as an array's.
        """
        if not sizes:
            raise TypeError('resize_() missing 1 required positional arguments: "size"')
        size = shape_of("resize_", sizes, None, self.numpy_dtype)
        if memory_format is not None:
            check_format("resize_", memory_format)
        count = math.prod(size)
        if count >= LIMIT:
            raise ForebayError("numel: integer multiplication overflow")
        if (count + self.storage_offset()) * self.itemsize >= LIMIT:
            raise ForebayError(f"Storage size calculation overflowed with sizes={[*size]}")
        if size != self.shape:
            set_storage(self, self.untyped_storage(), self.storage_offset(), size, None)
            self.count_change()
        if memory_format is preserve_format:
            raise ForebayError("Unsupported memory formatPreserve")
        if memory_format is not None:
            self.byte_strides = packed_strides(size, self.itemsize, order_in(memory_format, len(size)))
        return self

    def resize_as_(self, the_template: Tensor, *, memory_format: memory_format | None = None) -> Tensor:
        """Change the shape in place to that of another tensor.

        As `torch.Tensor.resize_as_`.

        Parameters
        ----------
        the_template : Tensor
            The tensor that has the shape.
        memory_format : memory_format, optional
            The order of the dimensions in memory.
        """
        template = argument("resize_as_", "the_template", the_template)
        if memory_format is preserve_format:
            memory_format = suggested_format(template)
        return self.resize_(template.shape, memory_format=memory_format)

    def is_contiguous(self, *, memory_format: memory_format = contiguous_format) -> bool:
        """Return True if the elements are adjacent in memory, the last dimension fastest.

        Parameters
        ----------
        memory_format : memory_format, optional
            Another order of the dimensions, such as `forebay.channels_last`.
        """
        if memory_format is not contiguous_format:
            check_format("is_contiguous", memory_format)
            return is_contiguous_in(self, memory_format)
        return is_c_contiguous(self.shape, self.byte_strides, self.numpy_dtype.itemsize)

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("len() of a 0-d tensor")
        return self.shape[0]

    def __iter__(self) -> Iterator[Tensor]:
        if not self.shape:
            raise TypeError("iteration over a 0-d tensor")
        return (self[i] for i in range(self.shape[0]))

    def __bool__(self) -> bool:
        """Return True if the only element is not zero; RuntimeError if there is not exactly one."""
        if self.numel() != 1:
            raise RuntimeError(
                f"Boolean value of Tensor with {'more than one value' if self.numel() else 'no values'} is ambiguous"
            )
        return bool(self.item())

    def __int__(self) -> int:
        return int(self._scalar())

    def __float__(self) -> float:
        return float(self._scalar())

    def __complex__(self) -> complex:
        return complex(self._scalar())

    def __index__(self) -> int:
        if self.numel() != 1 or self.numpy_dtype.kind not in "biu":
            raise TypeError("only integer tensors of a single element can be converted to an index")
        return int(self.item())

    def _scalar(self) -> Any:
        if self.numel() != 1:
            raise ValueError("only one element tensors can be converted to Python scalars")
        return self.item()

    def __format__(self, format_spec: str) -> str:
        return format(self.item(), format_spec) if not self.shape else object.__format__(self, format_spec)

    def __getattr__(self, name: str) -> Any:
        if name[:1] == "_":
            return object.__getattribute__(self, name)  # raises the error, also that of a property
        raise NoArithmetic("forebay.Tensor", name)

    def __repr__(self) -> str:
        from forebay.runtime.tensors.tensor_repr import tensor_text

        return tensor_text(self)

    def _repr_html_(self) -> str:
        from forebay.runtime.tensors.tensor_repr import tensor_html

        return tensor_html(self)

    # Memory.

    def untyped_storage(self) -> UntypedStorage:
        """Return the bytes of the memory, which views of this tensor share.

        As `torch.Tensor.untyped_storage`.

        Returns
        -------
        UntypedStorage
            The storage: the same object for all tensors over this memory, as long as the program keeps it.
        """
        return UntypedStorage.of(self.raw_storage)

    def storage(self) -> TypedStorage:
        """Return the memory as elements of this tensor's type.

        As `torch.Tensor.storage`.

        Warns
        -----
        UserWarning
            Once per process: typed storages are deprecated.
        """
        warn_that_storages_are_deprecated()
        return self._typed_storage()

    def _typed_storage(self) -> TypedStorage:
        return TypedStorage(self._elements(self.numpy_dtype))

    def _elements(self, dtype: np.dtype[Any]) -> Tensor:
        memory = self.raw_storage
        return Tensor(memory, dtype, (memory.nbytes // dtype.itemsize,), (dtype.itemsize,)).data

    def detach(self) -> Tensor:
        """Return another tensor over the same memory."""
        made = Tensor(self.raw_storage, self.numpy_dtype, self.shape, self.byte_strides, self.byte_offset)
        if self.versions is not None:
            made.versions = self.versions
        return made

    @property
    def data(self) -> Tensor:
        """Another tensor over the same memory. Assignment gives this tensor the memory and shape of the assigned one.

        The previous memory is freed if no other tensor uses it. Device and dtype may change. This tensor's version does
        not count changes to the other one.
        """
        made = self.detach()
        made.versions = VersionCounter()
        return made

    @data.setter
    def data(self, other: Tensor) -> None:
        if not isinstance(other, Tensor):
            raise TypeError(f"Variable data has to be a tensor, but got {type(other).__name__}")
        self.version_counter()  # it remains this tensor's own
        self.raw_storage, self.byte_offset = other.raw_storage, other.byte_offset
        self.numpy_dtype, self.shape, self.byte_strides = other.numpy_dtype, other.shape, other.byte_strides

    @data.deleter
    def data(self) -> None:
        raise RuntimeError("Deleting tensor data is not allowed. Delete tensor instead!")

    @property
    def requires_grad(self) -> bool:
        """False: there is no automatic differentiation."""
        return False

    @requires_grad.setter
    def requires_grad(self, value: bool) -> None:
        if not isinstance(value, bool):
            raise RuntimeError("requires_grad must be a bool")  # noqa: TRY004 -- PyTorch's type
        if value and not (self.is_floating_point() or self.is_complex()):
            raise RuntimeError("only Tensors of floating point and complex dtype can require gradients")
        self.requires_grad_(value)

    def requires_grad_(self, requires_grad: bool = True) -> Tensor:
        """Return this tensor if `requires_grad` is False.

        Parameters
        ----------
        requires_grad : bool, optional
            False.

        Raises
        ------
        RuntimeError
            If the elements are not numbers that can have gradients.
        Unsupported
            Otherwise if `requires_grad` is True: there is no automatic differentiation.
        """
        if not requires_grad:
            return self
        if not (self.is_floating_point() or self.is_complex()):
            raise RuntimeError("only Tensors of floating point dtype can require gradients")
        raise Unsupported("requires_grad=True needs automatic differentiation", ability="autograd")

    def raw_array(self) -> NDArray[Any]:
        """Return this memory as a NumPy array.

        Its elements may be read only if the host can read the device's memory, and after synchronisation.
        """
        return array_at(
            self.raw_storage.address + self.byte_offset,
            self.shape,
            self.byte_strides,
            self.numpy_dtype,
            self.raw_storage,
        )

    # Copies and fills.

    def __setitem__(self, index: Any, value: Tensor | ArrayLike) -> None:
        """Copy the value to a view, broadcast and converted."""
        part = self[index]
        if isinstance(value, (int, float, complex)):
            part.fill_(value)
        else:
            part.copy_(value)

    def copy_(self, src: Tensor | ArrayLike, non_blocking: bool = False) -> Tensor:
        """Copy elements into this tensor, broadcast and converted as NumPy does.

        As `torch.Tensor.copy_`. Copies between devices of one kind never block the host.

        Parameters
        ----------
        src : Tensor or array_like
            The source, on any device or in host memory.
        non_blocking : bool, optional
            True to return before host memory has been read: pinned memory must then not change until the stream has
            completed the copy, and other memory is staged first.
        """
        if isinstance(src, Tensor):
            if src is not self:
                transfer.copy_tensor(self, src, non_blocking=non_blocking)
        else:
            transfer.copy_array(self, np.asarray(src), non_blocking=non_blocking)
        self.count_change()
        return self

    def fill_(self, value: complex) -> Tensor:
        """Set every element to a value.

        Parameters
        ----------
        value : bool or int or float or complex
            The value.
        """
        transfer.fill(self, value)
        self.count_change()
        return self

    def zero_(self) -> Tensor:
        """Set every element to zero and return this tensor."""
        transfer.zero(self)
        self.count_change()
        return self

    # Random fills.

    def uniform_(self, from_: float = 0, to: float = 1, *, generator: Generator | None = None) -> Tensor:
        """Fill with uniform random numbers in `[from_, to)`.

        Parameters
        ----------
        from_, to : float, optional
            The bounds; 0 and 1 by default.
        generator : Generator, optional
            The generator; that of the device by default.
        """
        random_fill.uniform(self, from_, to, generator)
        self.count_change()
        return self

    def normal_(self, mean: float = 0, std: float = 1, *, generator: Generator | None = None) -> Tensor:
        """Fill with random numbers of a normal distribution.

        Parameters
        ----------
        mean, std : float, optional
            The mean and the standard deviation; 0 and 1 by default.
        generator : Generator, optional
            The generator; that of the device by default.
        """
        random_fill.normal(self, mean, std, generator)
        self.count_change()
        return self

    def exponential_(self, lambd: float = 1, *, generator: Generator | None = None) -> Tensor:
        """Fill with random numbers of an exponential distribution; none is 0.

        Parameters
        ----------
        lambd : float, optional
            The rate; 1 by default.
        generator : Generator, optional
            The generator; that of the device by default.
        """
        random_fill.exponential(self, lambd, generator)
        self.count_change()
        return self

    def cauchy_(self, median: float = 0, sigma: float = 1, *, generator: Generator | None = None) -> Tensor:
        """Fill with random numbers of a Cauchy distribution.

        Parameters
        ----------
        median, sigma : float, optional
            The median and the scale; 0 and 1 by default.
        generator : Generator, optional
            The generator; that of the device by default.
        """
        random_fill.cauchy(self, median, sigma, generator)
        self.count_change()
        return self

    def log_normal_(self, mean: float = 1, std: float = 2, *, generator: Generator | None = None) -> Tensor:
        """Fill with random numbers whose logarithms are normally distributed.

        Parameters
        ----------
        mean, std : float, optional
            The mean and the standard deviation of the logarithms; 1 and 2 by default.
        generator : Generator, optional
            The generator; that of the device by default.
        """
        random_fill.log_normal(self, mean, std, generator)
        self.count_change()
        return self

    def geometric_(self, p: float, *, generator: Generator | None = None) -> Tensor:
        """Fill with random numbers of trials up to the first success.

        Parameters
        ----------
        p : float
            The probability of a success, between 0 and 1.
        generator : Generator, optional
            The generator; that of the device by default.
        """
        random_fill.geometric(self, p, generator)
        self.count_change()
        return self

    def bernoulli_(self, p: float | Tensor = 0.5, *, generator: Generator | None = None) -> Tensor:
        """Fill with ones, each with a probability, and zeros.

        Parameters
        ----------
        p : float or Tensor, optional
            The probability of a one, or one probability for each element.
        generator : Generator, optional
            The generator; that of the device by default.
        """
        random_fill.bernoulli(self, p, generator)
        self.count_change()
        return self

    def random_(self, *bounds: int | None, generator: Generator | None = None) -> Tensor:
        """Fill with uniform random integers.

        Parameters
        ----------
        *bounds : int
            Nothing for all values of the dtype from 0; `to` for [0, to); `from, to` for [from, to), where `to` may be
            None.
        generator : Generator, optional
            The generator; that of the device by default.
        """
        if len(bounds) > 2 or bounds[:1] == (None,):
            raise TypeError(f"random_() takes no arguments, `to`, or `from` and `to`, not {bounds!r}")
        if bounds:
            low, high = bounds if len(bounds) == 2 else (0, *bounds)
            random_fill.integers(self, low or 0, high, generator)
        else:
            random_fill.integers_below(self, generator)
        self.count_change()
        return self

    def clone(self, *, memory_format: memory_format = preserve_format) -> Tensor:
        """Return a copy on the same device, without gaps.

        As `torch.Tensor.clone`.

        Parameters
        ----------
        memory_format : memory_format, optional
            The order of the dimensions in memory; that of this tensor by default.

        Raises
        ------
        ForebayError
            If the format is one for another number of dimensions.
        """
        if memory_format is not preserve_format:
            check_format("clone", memory_format)
        self.raw_storage.opened.check()  # its emulation may have ended: opening it again would raise another error
        made = new_tensor(self.shape, self.numpy_dtype, self.device)
        made.byte_strides = strides_of_copy(self, memory_format, self.itemsize)
        return _copied_to(made, self)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle a copy of the elements; `forebay.interop.multiprocessing` shares the memory instead."""
        return _from_elements, (transfer.read(self), self.device)

    def __copy__(self) -> Tensor:
        made = self.data
        made.count_change()  # as PyTorch, which sets the memory of an empty tensor, also for the other two
        return made

    def __deepcopy__(self, memo: dict[int, Any]) -> Tensor:
        storage = deepcopy(self.untyped_storage(), memo)
        made = new_tensor((), self.numpy_dtype, self.device)  # as PyTorch, which needs a block for it
        made.set_(storage, self.storage_offset(), self.shape, self.stride())
        memo[id(self)] = made
        return made

    def contiguous(self, *, memory_format: memory_format = contiguous_format) -> Tensor:
        """Return this tensor if it is contiguous, else a contiguous copy.

        As `torch.Tensor.contiguous`.

        Parameters
        ----------
        memory_format : memory_format, optional
            Another order of the dimensions, such as `forebay.channels_last`.

        Raises
        ------
        ForebayError
            If the format is one for another number of dimensions.
        """
        if memory_format is not contiguous_format:
            check_format("contiguous", memory_format)
        if self.is_contiguous(memory_format=memory_format):
            return self
        if memory_format is preserve_format:
            raise ForebayError("preserve memory format is unsupported by the contiguous operator")
        return self.clone(memory_format=memory_format)

    def to(
        self,
        target: Device | str | int | DTypeLike | Tensor | None = None,
        dtype: DTypeLike | None = None,
        non_blocking: bool = False,
        copy: bool = False,
        *,
        device: Device | str | int | None = None,
        memory_format: memory_format = preserve_format,
    ) -> Tensor:
        """Return this tensor with another device, dtype or order of dimensions in memory; itself if nothing changes.

        As `torch.Tensor.to`.

        Parameters
        ----------
        target : device or str or int or dtype or Tensor, optional
            A device, a dtype, or a tensor that has both. A string that could be either is a device.
        dtype : dtype, optional
            The element type, if `target` is a device.
        non_blocking : bool, optional
            As for `copy_`.
        copy : bool, optional
            True to copy even if nothing changes.
        device : device or str or int, optional
            The device, as a keyword.
        memory_format : memory_format, optional
            The order of the dimensions of a copy in memory; that of this tensor by default.
        """
        if isinstance(target, Tensor):
            device, dtype = target.device, target.numpy_dtype
        elif isinstance(target, (Device, int, np.integer)) or (isinstance(target, str) and _names_device(target)):
            device = int(target) if isinstance(target, np.integer) else target
        elif target is not None:
            dtype = target
        place = self.device if device is None else current.resolve(device)
        kind = self.numpy_dtype if dtype is None else as_dtype(dtype)
        if memory_format is not preserve_format:
            check_format("to", memory_format)
        same = place == self.device and kind == self.numpy_dtype
        if same and not copy and (memory_format is preserve_format or memory_format is suggested_format(self)):
            return self
        return self.copied(place, kind, non_blocking, memory_format)

    def copied(
        self, place: Device, kind: np.dtype[Any], non_blocking: bool, memory_format: memory_format = preserve_format
    ) -> Tensor:
        """Return a copy on another device, of another dtype, or both. Used by the runtime.

        Parameters
        ----------
        place : Device
            The device, with its index.
        kind : numpy.dtype
            The element type.
        non_blocking : bool
            As for `copy_`.
        memory_format : memory_format, optional
            As for `to`.
        """
        opened = self.raw_storage.opened
        opened.check()  # as in `clone`
        strides = strides_of_copy(self, memory_format, kind.itemsize)
        pinned = non_blocking and place.kind == "cpu" and place != self.device and isinstance(opened.port, PinnedHost)
        if pinned and self.numel():
            made = borrowed_tensor(pinned_array(self.shape, kind, opened.pinned), place)
        else:
            made = new_tensor(self.shape, kind, place)
        made.byte_strides = strides
        return _copied_to(made, self, non_blocking=non_blocking)

    def packed_like(self, kind: np.dtype[Any]) -> Tensor:
        """Return an uninitialised contiguous tensor of this shape on this device. Used by the runtime.

        Parameters
        ----------
        kind : numpy.dtype
            The element type.
        """
        return new_tensor(self.shape, kind, self.device)

    def cpu(self, *, memory_format: memory_format = preserve_format) -> Tensor:
        """Return this tensor on the CPU; itself if it is there.

        Parameters
        ----------
        memory_format : memory_format, optional
            As for `to`.
        """
        here = self.device.kind == "cpu"
        return (
            self
            if here and memory_format is preserve_format
            else self.to(self.device if here else "cpu", memory_format=memory_format)
        )

    def cuda(
        self,
        device: Device | str | int | None = None,
        non_blocking: bool = False,
        *,
        memory_format: memory_format = preserve_format,
    ) -> Tensor:
        """Return this tensor on a CUDA device; itself if it is there.

        As `torch.Tensor.cuda`.

        Parameters
        ----------
        device : device or str or int, optional
            The CUDA device; the current one by default.
        non_blocking : bool, optional
            As for `copy_`.
        memory_format : memory_format, optional
            As for `to`.

        Raises
        ------
        RuntimeError
            If `device` is of another kind.
        """
        if device is None:
            place = Device("cuda")
        else:
            place = Device("cuda", device) if device.__class__ is int else current.device_argument(device)
        if place.kind != "cuda":
            raise RuntimeError("Invalid device, must be cuda device")
        return self.to(place, non_blocking=non_blocking, memory_format=memory_format)

    def is_pinned(self, device: Device | str | int | None = None) -> bool:
        """Return True if the elements are in pinned (page-locked) host memory; False for a tensor of an accelerator.

        As `torch.Tensor.is_pinned`.

        Parameters
        ----------
        device : device or str or int, optional
            Deprecated: a device of the kind that pins the memory.

        Warns
        -----
        DeprecationWarning
            If `device` is given.
        """
        pinned = pinned_block(self.raw_storage.owner) is not None or registered_memory.contains(self.data_ptr())
        if device is None:
            return pinned
        kind = Device(device).kind
        _warn_of_device("is_pinned")
        return pinned and kind == current.accelerator_kind()

    def pin_memory(self, device: Device | str | int | None = None) -> Tensor:
        """Return this CPU tensor in pinned memory, which accelerators copy without blocking the host.

        As `torch.Tensor.pin_memory`. Does not initialise the accelerator.

        Parameters
        ----------
        device : device or str or int, optional
            Deprecated: a device of the kind that pins the memory.

        Raises
        ------
        RuntimeError
            If the tensor is not on the CPU, or if there is no accelerator.

        Warns
        -----
        DeprecationWarning
            If `device` is given.
        """
        kind = current.accelerator_kind()
        if device is not None:
            kind = Device(device).kind
            for method in ("pin_memory", "is_pinned"):  # PyTorch calls both
                _warn_of_device(method)
            if kind == "cpu":
                raise RuntimeError("CPU device type not an accelerator.")
        if self.is_pinned():
            return self
        if self.device.kind != "cpu":
            raise RuntimeError(f"cannot pin '{type_text(self)}' only dense CPU tensors can be pinned")
        if kind is None:
            raise RuntimeError(NO_ACCELERATOR)
        array = pinned_array(tuple(self.shape), self.numpy_dtype, pinned_allocator(current.resolve(kind)))
        return _copied_to(borrowed_tensor(array, self.device), self)

    def record_stream(self, stream: Stream) -> None:
        """Report to the allocator that a stream uses this memory, so that a free is deferred until it is done.

        As `torch.Tensor.record_stream`. Memory of other owners is not affected, except pinned memory.

        Parameters
        ----------
        stream : Stream
            A stream of the same device.
        """
        record_use(self.raw_storage, stream)

    # Sharing with other libraries.

    def numpy(self, *, force: bool = False) -> NDArray[Any]:
        """Return an array of NumPy that keeps the same memory alive, after waiting for the current stream.

        Parameters
        ----------
        force : bool, optional
            True for a copy of elements that the host cannot read.

        Raises
        ------
        TypeError
            If the host cannot read the device's memory.
        """
        if not self.raw_storage.host_visible and not force:
            raise TypeError(self.no_host_memory())
        return transfer.read(self)

    def tolist(self) -> Any:
        """Return the elements as nested lists, after waiting for the current stream."""
        return transfer.read(self).tolist()

    def equal(self, other: Tensor) -> bool:
        """Return True if another tensor of this device has the same shape and elements; a NaN is not equal to itself.

        As `torch.equal`. Waits for the current stream.

        Parameters
        ----------
        other : Tensor
            The other tensor.

        Raises
        ------
        TypeError
            If `other` is not a tensor.
        RuntimeError
            If the devices differ.

        Examples
        --------
        >>> import forebay
        >>> forebay.ones(3).equal(forebay.tensor([1.0, 1.0, 1.0]))
        True
        """
        if not isinstance(other, Tensor):
            raise TypeError(f"equal(): argument 'other' (position 1) must be Tensor, not {other.__class__.__name__}")
        if self.device != other.device:
            kind = (other if self.is_cpu else self).device.kind.upper()
            raise RuntimeError(
                f"Expected all tensors to be on the same device, but got other is on {other.device}, different from "
                f"other tensors on {self.device} (when checking argument in method wrapper_{kind}__equal)"
            )
        return self.shape == other.shape and np.array_equal(transfer.read(self), transfer.read(other))

    def item(self) -> Any:
        """Return the only element as a Python number; RuntimeError if there is not exactly one."""
        if self.numel() != 1:
            raise RuntimeError(f"a Tensor with {self.numel()} elements cannot be converted to Scalar")
        return transfer.read_item(self)

    # Each protocol raises the exception after which its consumers try the next protocol.

    def _export(self) -> NDArray[Any]:
        if not self.raw_storage.host_visible:
            raise BufferError(self.no_host_memory())
        return transfer.read(self)

    def no_host_memory(self) -> str:
        """Return PyTorch's text of the error if the host cannot access the memory. Internal to the runtime."""
        return (
            f"can't convert {self.device} device type tensor to numpy. "
            "Use Tensor.cpu() to copy the tensor to host memory first."
        )

    @property
    def __array_interface__(self) -> dict[str, Any]:
        if not self.raw_storage.host_visible:
            raise AttributeError(self.no_host_memory())
        if self.numpy_dtype.isbuiltin == _REGISTERED:  # the interface cannot name it: NumPy then asks for `__array__`
            raise AttributeError(f"__array_interface__ cannot name {self.numpy_dtype}")
        return transfer.read(self).__array_interface__

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> NDArray[Any]:
        return np.array(self.numpy(), dtype=dtype, copy=copy)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """The address, the type and the layout of memory of a GPU, for CuPy, Numba and PyTorch; version 2."""
        return cuda_array_interface(self)

    def __dlpack__(
        self,
        *,
        stream: Any = -1,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
        read_only: bool = False,
    ) -> Any:
        """Return a DLPack capsule of the memory. (DLPack 1.0, Array API 2024.12)

        In the CPU's memory, the work of the stream is complete. On a GPU, `stream` waits for it: -1 for no order, None
        or 1 for the default stream, or a handle.
        """
        return dlpack_capsule(self, stream, max_version, dl_device, copy, read_only)

    def __dlpack_device__(self) -> tuple[int, int]:
        """Return the DLDeviceType and the index of the device: (1, 0) for the CPU, (2, index) for a GPU."""
        return dlpack_device(self)

    # PyTorch's older spellings. Last in the class, because the names hide Python's in the annotations that follow.

    def new(self, *args: Any, device: Device | str | int | None = None) -> Tensor:
        """Return a tensor of this dtype on this device.

        As `torch.Tensor.new`.

        Parameters
        ----------
        *args : int or sequence or Size or Tensor or storage
            The lengths of the dimensions, of uninitialised memory; the elements; or a tensor or a storage, whose memory
            the new tensor shares. Nothing for an empty tensor.
        device : device or str or int, optional
            Another device of the same kind.

        Raises
        ------
        TypeError
            If the arguments have another type, or a tensor has another dtype or kind of device.
        RuntimeError
            If the device is of another kind, or a length is negative.

        Examples
        --------
        >>> import forebay
        >>> forebay.ones(3).new([1, 2]).tolist()
        [1.0, 2.0]
        """
        place, source = data_for_new(self, args, device)
        if isinstance(source, Tensor):
            return source.detach()
        if isinstance(source, UntypedStorage):
            return new_tensor((0,), self.numpy_dtype, place).set_(source)
        if isinstance(source, np.ndarray):
            made = new_tensor(source.shape, self.numpy_dtype, place)
            transfer.copy_array(made, source, non_blocking=False)
            return made
        return new_tensor(source, self.numpy_dtype, place)

    def type_as(self, other: Tensor) -> Tensor:
        """Return this tensor with the dtype and on the device kind of another.

        As `torch.Tensor.type_as`.

        Parameters
        ----------
        other : Tensor
            The other tensor.

        Returns
        -------
        Tensor
            This tensor if nothing changes, else a copy: on this device if it is of that kind, else on the other's.

        Raises
        ------
        TypeError
            If `other` is not a tensor.
        """
        if not isinstance(other, Tensor):
            name = "forebay.dtype" if isinstance(other, DType) else other.__class__.__name__
            raise TypeError(f"type_as(): argument 'other' (position 1) must be Tensor, not {name}")
        return self.to(other)

    def type(self, dtype: Any = None, non_blocking: bool = False) -> Any:
        """Return the full name of this tensor's legacy type, or the tensor converted to another type.

        As `torch.Tensor.type`. Names may also begin with `torch`.

        Parameters
        ----------
        dtype : dtype or type or str, optional
            A dtype, a legacy type such as `forebay.cuda.FloatTensor`, or its full name; None to return the name.
        non_blocking : bool, optional
            As for `copy_`.

        Returns
        -------
        str or Tensor
            A name such as `"forebay.cuda.FloatTensor"`, or this tensor if nothing changes, else a copy.

        Raises
        ------
        TypeError
            If `dtype` is none of these.
        ValueError
            If there is no such type.

        Examples
        --------
        >>> import forebay
        >>> forebay.ones(3).type()
        'forebay.FloatTensor'
        """
        return type_name(self) if dtype is None else as_type(self, dtype, non_blocking)

    double: Final = converter("double", "float64")
    float: Final = converter("float", "float32")
    half: Final = converter("half", "float16")
    bfloat16: Final = converter("bfloat16", "bfloat16")
    long: Final = converter("long", "int64")
    int: Final = converter("int", "int32")
    short: Final = converter("short", "int16")
    char: Final = converter("char", "int8")
    byte: Final = converter("byte", "uint8")
    bool: Final = converter("bool", "bool")
    cfloat: Final = converter("cfloat", "complex64")
    cdouble: Final = converter("cdouble", "complex128")


_BYTE = np.dtype("u1")
_REGISTERED = 2  # dtypes of other packages, such as ml_dtypes


def new_tensor(shape: Sequence[int], dtype: np.dtype[Any], device: Device | str | int | None) -> Tensor:
    """Return an uninitialised contiguous tensor, allocated on the current stream of its device.

    None is the default device of the calling thread.
    """
    stream = current.stream_on(default_device() if device is None else device, default_stream_for)
    shape = tuple(shape) if shape.__class__ is not Size else shape
    nbytes = math.prod(shape) * dtype.itemsize
    if nbytes >= MAX_REQUEST_BYTES:
        raise _too_large(stream, shape, nbytes)
    storage = Storage.allocate(stream.opened, nbytes, stream.handle)
    strides = [dtype.itemsize]
    for length in shape[:0:-1]:
        strides.append(strides[-1] * max(length, 1))
    return Tensor(storage, dtype, shape, tuple(strides[: len(shape)][::-1]))


def _too_large(stream: Stream, shape: Sequence[int], nbytes: int) -> Exception:
    if nbytes >= LIMIT:
        return RuntimeError(f"Storage size calculation overflowed with sizes={list(shape)}")
    return stream.opened.allocator.too_large_error(nbytes)


def borrowed_tensor(array: NDArray[Any], device: Device) -> Tensor:
    """Return a tensor of a CPU device over an array's memory, which the tensor keeps alive."""
    address = array.__array_interface__["data"][0]
    storage = Storage(current.opened_for(device), array.nbytes, address, array)
    strides = array.strides if array.size else packed_strides(array.shape, array.itemsize, None)
    return Tensor(storage, array.dtype, array.shape, strides)


def _warn_of_device(method: str) -> None:
    warnings.warn(
        f"The argument 'device' of Tensor.{method}() is deprecated. Please do not pass this argument.",
        DeprecationWarning,
        stacklevel=3,
    )


def _copied_to(made: Tensor, source: Tensor, *, non_blocking: bool = False) -> Tensor:
    """Return a new tensor, to which a copy is queued. Its version remains 0."""
    transfer.copy_tensor(made, source, non_blocking=non_blocking)
    return made


def _from_elements(array: NDArray[Any], device: Device) -> Tensor:
    return new_tensor(array.shape, array.dtype, device).copy_(array)


def _names_device(text: str) -> bool:
    """Return True unless the text is a dtype: other texts get PyTorch's errors for device strings."""
    kind, colon, _ = text.partition(":")
    if colon or kind in ("cpu", *current.PREFERRED) or kind in backends.drivers():
        return True
    try:
        np.dtype(text)
    except TypeError:
        return text != "bfloat16"
    return False
