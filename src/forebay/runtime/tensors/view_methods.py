"""Methods of tensors that return views: the same memory with another shape, other strides, another offset or dtype."""

from __future__ import annotations

import operator
from abc import abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, SupportsIndex, cast

import numpy as np

from forebay._base.dtypes import DType, as_dtype
from forebay._base.layouts import Size, size_of
from forebay._core import Exporter
from forebay.errors import NoArithmetic
from forebay.runtime.memory.version_counter import VersionCounter
from forebay.runtime.tensors import views
from forebay.runtime.tensors.legacy_types import type_text
from forebay.runtime.tensors.views import Geometry, dimension, dimensions

if TYPE_CHECKING:
    from forebay.runtime.memory.storage import Storage
    from forebay.runtime.tensors.tensor import Tensor

__all__ = ["Views", "argument"]


class Views(Exporter):
    """The views of a tensor, for which it only needs to know where its elements are. Internal to the runtime."""

    raw_storage: Storage
    byte_strides: tuple[int, ...]
    byte_offset: int
    numpy_dtype: np.dtype[Any]
    shape: Size
    versions: VersionCounter | None

    @abstractmethod
    def numel(self) -> int:
        """Return the number of elements."""

    @abstractmethod
    def contiguous(self) -> Tensor:
        """Return this tensor if it is contiguous, else a contiguous copy."""

    def _geometry(self) -> Geometry:
        return Geometry(tuple(self.shape), self.byte_strides, self.byte_offset)

    def viewed(self, geometry: Geometry, dtype: np.dtype[Any] | None = None) -> Tensor:
        """Return a view of this memory. Used by the runtime.

        Parameters
        ----------
        geometry : Geometry
            Its shape, strides and offset.
        dtype : numpy.dtype, optional
            Another element type.
        """
        make: Any = type(self)
        made = make(self.raw_storage, dtype or self.numpy_dtype, geometry.shape, geometry.strides, geometry.offset)
        if self.versions is not None:
            made.versions = self.versions
        return cast("Tensor", made)

    def _changed(self, geometry: Geometry) -> Tensor:
        """Make this tensor the view."""
        self.shape, self.byte_strides, self.byte_offset = size_of(geometry.shape), geometry.strides, geometry.offset
        this = cast("Tensor", self)
        this.count_change()
        return this

    def __getitem__(self, index: Any) -> Tensor:
        """Return a view for ints, slices, None and Ellipsis; IndexError for others, which would need a gather."""
        parts = index if isinstance(index, tuple) else (index,)
        for at, part in enumerate(parts):
            if part is None or part is Ellipsis or isinstance(part, slice):
                continue
            if isinstance(part, Views) and not part.shape and part.numpy_dtype.kind in "iu":
                number: Any = part
                parts = (*parts[:at], int(number), *parts[at + 1 :])
            elif not isinstance(part, SupportsIndex) or isinstance(part, (bool, np.bool_, np.ndarray, Views)):
                raise IndexError(f"a tensor is indexed by ints, slices, None and ..., not {type(part).__name__}")
        alone = not isinstance(index, tuple)
        return self.viewed(views.index(self._geometry(), parts, self.numpy_dtype.itemsize, alone=alone))

    def __contains__(self, element: object) -> bool:
        raise NoArithmetic("forebay.Tensor", "__contains__")

    def view(self, *shape: Any) -> Tensor:
        """Return the same memory with another shape or another dtype.

        Parameters
        ----------
        *shape : int or sequence of int or dtype
            The shape, in which one -1 is inferred, or the dtype.

        Raises
        ------
        RuntimeError
            If only a copy could have that shape or dtype, or no tensor of this size.
        """
        if len(shape) == 1 and (
            isinstance(shape[0], (type, str, DType)) or not isinstance(shape[0], (SupportsIndex, Sequence))
        ):
            dtype = as_dtype(shape[0])
            return self.viewed(views.of_dtype(self._geometry(), self.numpy_dtype, dtype), dtype)
        found = self._view_of(self._inferred("view", shape))
        if found is None:
            raise RuntimeError(
                "view size is not compatible with input tensor's size and stride (at least one dimension spans across "
                "two contiguous subspaces). Use .reshape(...) instead."
            )
        return found

    def _inferred(self, function: str, shape: tuple[Any, ...]) -> tuple[int, ...]:
        return views.infer_size(dimensions(function, "shape" if function == "reshape" else "size", shape), self.numel())

    def _view_of(self, shape: tuple[int, ...]) -> Tensor | None:
        found = views.viewed(self._geometry(), shape, self.numpy_dtype.itemsize)
        return None if found is None else self.viewed(found)

    def reshape(self, *shape: Any) -> Tensor:
        """Return a view of another shape if there is one, else a copy.

        Parameters
        ----------
        *shape : int or sequence of int
            The shape, in which one -1 is inferred.
        """
        wanted = self._inferred("reshape", shape)
        found = self._view_of(wanted)
        return self.contiguous().view(wanted) if found is None else found

    def flatten(self, start_dim: int = 0, end_dim: int = -1) -> Tensor:
        """Return a tensor with some dimensions as one; a view if possible.

        Parameters
        ----------
        start_dim, end_dim : int, optional
            The first and the last of the dimensions; all by default.

        Raises
        ------
        RuntimeError
            If the first dimension comes after the last one.
        """
        first, last = self._dim("flatten", start_dim, "start_dim"), self._dim("flatten", end_dim, "end_dim", 2)
        if first > last:
            raise RuntimeError("flatten() has invalid args: start_dim cannot come after end_dim")
        shape = tuple(self.shape)
        if first == last and shape:
            return cast("Tensor", self)
        merged = 1
        for length in shape[first : last + 1]:
            merged *= length
        return self.reshape((*shape[:first], merged, *shape[last + 1 :]))

    def unflatten(self, dim: int, sizes: Sequence[int]) -> Tensor:
        """Return a view with one dimension as several.

        Parameters
        ----------
        dim : int
            The dimension.
        sizes : sequence of int
            The lengths, in which one -1 is inferred.

        Raises
        ------
        RuntimeError
            If the product of the lengths is not the dimension's.
        """
        at = self._dim("unflatten", dim)
        if not sizes:
            raise RuntimeError("unflatten: sizes must be non-empty")
        length, parts = self.shape[at], dimensions("unflatten", "sizes", (sizes,))
        known = 1
        for part in parts:
            known *= part if part != -1 else 1
        if parts.count(-1) > 1:
            raise RuntimeError("only one dimension can be inferred")
        if length % known if -1 in parts else length != known:
            raise RuntimeError(
                f"unflatten: Provided sizes {[*parts]} don't multiply up to the size of dim {at} ({length}) in the "
                "input tensor"
            )
        found = tuple(length // known if part == -1 else part for part in parts)
        return self.view((*self.shape[:at], *found, *self.shape[at + 1 :]))

    def permute(self, *dims: Any) -> Tensor:
        """Return a view with its dimensions in another order.

        Parameters
        ----------
        *dims : int or sequence of int
            The dimensions in their new order.

        Raises
        ------
        RuntimeError
            If a dimension is named twice, or not at all.
        """
        order, rank = dimensions("permute", "dims", dims), len(self.shape)
        if len(order) != rank:
            raise RuntimeError(
                "permute(sparse_coo): number of dimensions in the tensor input does not match the length of the "
                f"desired ordering of dimensions i.e. input.dim() = {rank} is not equal to len(dims) = {len(order)}"
            )
        found = [self._dim("permute", dim, "dims") for dim in order]
        if len({*found}) != rank:
            raise RuntimeError("permute(): duplicate dims are not allowed.")
        return self.in_order(found)

    def in_order(self, dims: Sequence[int]) -> Tensor:
        """Return `permute(dims)`, of valid dimensions. Used by the runtime.

        Parameters
        ----------
        dims : sequence of int
            The dimensions in their new order, from 0.
        """
        return self.viewed(views.in_order(self._geometry(), dims))

    def transpose(self, dim0: int, dim1: int) -> Tensor:
        """Return a view with two dimensions swapped.

        Parameters
        ----------
        dim0, dim1 : int
            The dimensions.
        """
        return self.viewed(self._swapped("transpose", dim0, dim1))

    def transpose_(self, dim0: int, dim1: int) -> Tensor:
        """Swap two dimensions of this tensor.

        Parameters
        ----------
        dim0, dim1 : int
            The dimensions.
        """
        return self._changed(self._swapped("transpose_", dim0, dim1))

    def _swapped(self, function: str, dim0: int, dim1: int) -> Geometry:
        first, second = self._dim(function, dim0, "dim0"), self._dim(function, dim1, "dim1", 2)
        return views.swapped(self._geometry(), first, second)

    def swapaxes(self, axis0: int, axis1: int) -> Tensor:
        """Return a view with two dimensions swapped. As `transpose`.

        Parameters
        ----------
        axis0, axis1 : int
            The dimensions.
        """
        return self.transpose(axis0, axis1)

    def swapdims(self, dim0: int, dim1: int) -> Tensor:
        """Return a view with two dimensions swapped. As `transpose`.

        Parameters
        ----------
        dim0, dim1 : int
            The dimensions.
        """
        return self.transpose(dim0, dim1)

    def swapaxes_(self, axis0: int, axis1: int) -> Tensor:
        """Swap two dimensions of this tensor. As `transpose_`.

        Parameters
        ----------
        axis0, axis1 : int
            The dimensions.
        """
        return self.transpose_(axis0, axis1)

    def swapdims_(self, dim0: int, dim1: int) -> Tensor:
        """Swap two dimensions of this tensor. As `transpose_`.

        Parameters
        ----------
        dim0, dim1 : int
            The dimensions.
        """
        return self.transpose_(dim0, dim1)

    def t(self) -> Tensor:
        """Return a view with the two dimensions swapped; this tensor's if it has one or none.

        Raises
        ------
        RuntimeError
            If there are more than two dimensions.
        """
        return self.viewed(self._transposed("t"))

    def t_(self) -> Tensor:
        """Swap the two dimensions of this tensor.

        Raises
        ------
        RuntimeError
            If there are more than two dimensions.
        """
        return self._changed(self._transposed("t_"))

    def _transposed(self, function: str) -> Geometry:
        rank = len(self.shape)
        if rank > 2:
            raise RuntimeError(f"{function}() expects a tensor with <= 2 dimensions, but self is {rank}D")
        return views.in_order(self._geometry(), range(rank)[::-1])

    @property
    def T(self) -> Tensor:  # noqa: N802 -- PyTorch's name
        """A view with the dimensions in the opposite order."""
        return self.in_order(range(len(self.shape))[::-1])

    @property
    def mT(self) -> Tensor:  # noqa: N802 -- as above
        """A view with the last two dimensions swapped."""
        rank = len(self.shape)
        if rank < 2:
            raise RuntimeError(f"tensor.mT is only supported on matrices or batches of matrices. Got {rank}-D tensor.")
        return self.transpose(-2, -1)

    def movedim(self, source: int | Sequence[int], destination: int | Sequence[int]) -> Tensor:
        """Return a view with dimensions at other positions.

        Parameters
        ----------
        source : int or sequence of int
            The dimensions.
        destination : int or sequence of int
            Their new positions.

        Raises
        ------
        RuntimeError
            If there are not as many positions as dimensions, or one is named twice.
        """
        given = [part if isinstance(part, (list, tuple)) else (part,) for part in (source, destination)]
        if len(given[0]) != len(given[1]):
            raise RuntimeError(
                f"movedim: Invalid source or destination dims: source ({[*given[0]]} dims) should contain the same "
                f"number of dims as destination ({[*given[1]]} dims)"
            )
        found = [[self._dim("movedim", dim, "source") for dim in part] for part in given]
        for name, part, dims in zip(("source", "destination"), given, found, strict=True):
            if len({*dims}) != len(dims):
                raise RuntimeError(f"movedim: repeated dim in `{name}` ({[*part]})")
        return self.viewed(views.moved(self._geometry(), *found)) if self.shape else self.viewed(self._geometry())

    moveaxis = movedim

    def squeeze(self, dim: int | Sequence[int] | None = None) -> Tensor:
        """Return a view without dimensions of length 1.

        Parameters
        ----------
        dim : int or sequence of int, optional
            The only dimensions to remove, if their length is 1; all by default.
        """
        return self.viewed(self._squeezed("squeeze", dim))

    def squeeze_(self, dim: int | Sequence[int] | None = None) -> Tensor:
        """Remove dimensions of length 1 from this tensor.

        Parameters
        ----------
        dim : int or sequence of int, optional
            The only dimensions to remove, if their length is 1; all by default.
        """
        return self._changed(self._squeezed("squeeze_", dim))

    def _squeezed(self, function: str, dim: int | Sequence[int] | None) -> Geometry:
        given = dim if isinstance(dim, (list, tuple)) else (dim,)
        dims = range(len(self.shape)) if dim is None else [self._dim(function, each) for each in given]
        if repeated := [at for at in dims if [*dims].count(at) > 1]:
            raise RuntimeError(f"dim {repeated[0]} appears multiple times in the list of dims")
        return views.squeeze(self._geometry(), dims)

    def unsqueeze(self, dim: int) -> Tensor:
        """Return a view with one more dimension, of length 1.

        Parameters
        ----------
        dim : int
            The position of the new dimension.
        """
        return self.viewed(self._unsqueezed("unsqueeze", dim))

    def unsqueeze_(self, dim: int) -> Tensor:
        """Insert a dimension of length 1 into this tensor.

        Parameters
        ----------
        dim : int
            The position of the new dimension.
        """
        return self._changed(self._unsqueezed("unsqueeze_", dim))

    def _unsqueezed(self, function: str, dim: int) -> Geometry:
        at = dimension(function, "dim", dim, len(self.shape) + 1)
        return views.unsqueeze(self._geometry(), at, self.numpy_dtype.itemsize)

    def expand(self, *shape: Any) -> Tensor:
        """Return a view that repeats dimensions of length 1; repeated elements share memory.

        Parameters
        ----------
        *shape : int or sequence of int
            The shape; -1 keeps the length of a dimension.

        Raises
        ------
        RuntimeError
            If a dimension of another length would have to be repeated.
        """
        wanted = dimensions("expand", "size", shape)
        return self.viewed(views.expand(self._geometry(), wanted, self.numpy_dtype.itemsize, type_text(self)))

    def view_as(self, other: Tensor) -> Tensor:
        """Return the same memory with the shape of another tensor.

        Parameters
        ----------
        other : Tensor
            The tensor that has the shape.
        """
        return self.view(argument("view_as", "other", other).shape)

    def reshape_as(self, other: Tensor) -> Tensor:
        """Return a view with the shape of another tensor if there is one, else a copy.

        Parameters
        ----------
        other : Tensor
            The tensor that has the shape.
        """
        return self.reshape(argument("reshape_as", "other", other).shape)

    def expand_as(self, other: Tensor) -> Tensor:
        """Return a view with the shape of another tensor, which repeats dimensions of length 1 and shares memory.

        Parameters
        ----------
        other : Tensor
            The tensor that has the shape.
        """
        return self.expand(argument("expand_as", "other", other).shape)

    # Parts.

    def select(self, dim: int, index: int) -> Tensor:
        """Return the view at one element of a dimension, without that dimension.

        Parameters
        ----------
        dim : int
            The dimension.
        index : int
            The element.

        Raises
        ------
        IndexError
            If there is no such dimension or element.
        """
        if not self.shape:
            raise IndexError("select() cannot be applied to a 0-dim tensor.")
        return self.viewed(views.select(self._geometry(), self._dim("select", dim), operator.index(index)))

    def narrow(self, dim: int, start: int, length: int) -> Tensor:
        """Return the view of a range of a dimension.

        Parameters
        ----------
        dim : int
            The dimension.
        start : int
            The first element.
        length : int
            The number of elements.

        Raises
        ------
        IndexError
            If there is no such dimension or first element.
        RuntimeError
            If there are fewer elements.
        """
        if not self.shape:
            raise RuntimeError("narrow() cannot be applied to a 0-dim tensor.")
        if length < 0:
            raise RuntimeError("narrow(): length must be non-negative.")
        return self.viewed(views.narrow(self._geometry(), self._dim("narrow", dim), int(start), int(length)))

    def split(self, split_size: int | Sequence[int], dim: int = 0) -> tuple[Tensor, ...]:
        """Return views of consecutive ranges of a dimension.

        Parameters
        ----------
        split_size : int or sequence of int
            The length of each part, of which the last may be shorter, or all lengths.
        dim : int, optional
            The dimension.

        Raises
        ------
        RuntimeError
            If the lengths are not those of a division of the dimension.
        """
        if not self.shape:
            raise RuntimeError("split expects at least a 1-dimensional tensor")
        at = self._dim("split", dim, "dim", 2)
        size = self.shape[at]
        if isinstance(split_size, (list, tuple)):
            lengths = [int(length) for length in split_size]
            if any(length < 0 for length in lengths):
                raise RuntimeError(f"split_with_sizes expects split_sizes have only non-negative entries, but got "
                                   f"split_sizes={lengths}")  # fmt: skip
            if sum(lengths) != size:
                raise RuntimeError(
                    f"split_with_sizes expects split_sizes to sum exactly to {size} (input tensor's size at dimension "
                    f"{at}), but got split_sizes={lengths}"
                )
        else:
            step = operator.index(cast("int", split_size))
            if step < 0:
                raise RuntimeError(f"split expects split_size be non-negative, but got split_size={step}")
            if not step and size:
                raise RuntimeError(f"split_size can only be 0 if dimension size is 0, but got dimension size of {size}")
            lengths = [min(step, size - start) for start in range(0, size, step or 1)] or [0]
        return self._parts(at, lengths)

    def chunk(self, chunks: int, dim: int = 0) -> tuple[Tensor, ...]:
        """Return views of at most so many consecutive ranges of a dimension, of equal length up to the last.

        Parameters
        ----------
        chunks : int
            The number of ranges.
        dim : int, optional
            The dimension.

        Raises
        ------
        RuntimeError
            If there is no dimension, or `chunks` is not positive.
        """
        if not self.shape:
            raise RuntimeError("chunk expects at least a 1-dimensional tensor")
        if chunks <= 0:
            raise RuntimeError(f"chunk expects `chunks` to be greater than 0, got: {chunks}")
        at = self._dim("chunk", dim, "dim", 2)
        length = -(-self.shape[at] // chunks)
        return self.split(length, at) if length else self._parts(at, [0] * chunks)

    def _parts(self, dim: int, lengths: Sequence[int]) -> tuple[Tensor, ...]:
        made, start, here = list[Any](), 0, self._geometry()
        for length in lengths:
            made.append(self.viewed(views.slice_of(here, dim, slice(start, start + length))))
            start += length
        return tuple(made)

    def unbind(self, dim: int = 0) -> tuple[Tensor, ...]:
        """Return a view for each element of a dimension.

        Parameters
        ----------
        dim : int, optional
            The dimension.
        """
        at = self._dim("unbind", dim)
        if not self.shape:
            raise IndexError(f"Dimension specified as {at} but tensor has no dimensions")
        return tuple(self.select(at, index) for index in range(self.shape[at]))

    def as_strided(self, size: Sequence[int], stride: Sequence[int], storage_offset: int | None = None) -> Tensor:
        """Return a view of the storage by lengths and distances.

        Parameters
        ----------
        size : sequence of int
            The lengths.
        stride : sequence of int
            The distances of neighbours, in elements.
        storage_offset : int, optional
            Elements before the first one, from the start of the storage; those of this tensor by default.

        Raises
        ------
        RuntimeError
            If a number is negative, or the storage is too small.
        """
        lengths, steps = dimensions("as_strided", "size", (size,)), dimensions("as_strided", "stride", (stride,))
        itemsize = self.numpy_dtype.itemsize
        offset = self.byte_offset // max(itemsize, 1) if storage_offset is None else operator.index(storage_offset)
        return self.viewed(views.as_strided(lengths, steps, offset, itemsize, self.raw_storage.nbytes))

    def diagonal(self, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Tensor:
        """Return the view of a diagonal of two dimensions, as the last dimension.

        Parameters
        ----------
        offset : int, optional
            The diagonal: above the main one, or, if negative, below it.
        dim1, dim2 : int, optional
            The dimensions.

        Raises
        ------
        RuntimeError
            If both dimensions are the same.
        """
        first = dimension("diagonal", "dim1", dim1, len(self.shape), position=2)
        second = dimension("diagonal", "dim2", dim2, len(self.shape), position=3)
        if first == second:
            raise RuntimeError(f"diagonal dimensions cannot be identical {dim1}, {dim2}")
        return self.viewed(views.diagonal(self._geometry(), offset, first, second))

    def unfold(self, dimension: int, size: int, step: int) -> Tensor:
        """Return the view of all slices of a length along a dimension, whose elements are the last dimension.

        Parameters
        ----------
        dimension : int
            The dimension.
        size : int
            The length of a slice.
        step : int
            The distance of the slices.

        Raises
        ------
        RuntimeError
            If the dimension is shorter than a slice, or a number is not positive.
        """
        at = self._dim("unfold", dimension, "dimension")
        return self.viewed(views.unfold(self._geometry(), at, size, step))

    def _dim(self, function: str, dim: Any, name: str = "dim", position: int = 1) -> int:
        return dimension(function, name, dim, len(self.shape), position=position)

    def is_set_to(self, tensor: Tensor) -> bool:
        """Return True if another tensor has the same memory, shape, strides and offset.

        Parameters
        ----------
        tensor : Tensor
            The other tensor.
        """
        other = argument("is_set_to", "tensor", tensor)
        return other.raw_storage is self.raw_storage and other._geometry() == self._geometry()  # noqa: SLF001 -- a base class


def argument(function: str, name: str, given: Any) -> Tensor:
    """Return a tensor that is an argument. Raises TypeError for another object."""
    if not isinstance(given, Views):
        raise TypeError(f"{function}(): argument '{name}' (position 1) must be Tensor, not {type(given).__name__}")
    return cast("Tensor", given)


_BINARY = "add sub mul truediv floordiv mod pow matmul and or xor lshift rshift"
_OPERATORS: Final = (
    *(f"__{kind}{name}__" for name in _BINARY.split() for kind in ("", "r", "i")),
    *(f"__{name}__" for name in ["divmod", "rdivmod", "lt", "le", "gt", "ge", "neg", "pos", "abs", "invert"]),
)
"""Operators of Python that compute, and so raise Unsupported."""


def _operator(name: str) -> Any:
    def refused(_: Tensor, *others: object) -> Any:
        if any(isinstance(other, (np.ndarray, np.generic)) for other in others):
            return NotImplemented  # NumPy computes with both
        raise NoArithmetic("forebay.Tensor", name)

    refused.__name__, refused.__qualname__ = name, f"Tensor.{name}"
    return refused


for _name in _OPERATORS:
    setattr(Views, _name, _operator(_name))
