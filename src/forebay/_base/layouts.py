"""Shapes, layouts and memory formats under PyTorch's names."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Final, Self, SupportsIndex, overload

__all__ = [
    "Size",
    "channels_last",
    "channels_last_3d",
    "contiguous_format",
    "layout",
    "memory_format",
    "preserve_format",
    "size_of",
    "strided",
]


class Size(tuple[int, ...]):
    """The shape of a tensor: a tuple of its dimensions.

    As `torch.Size`.

    Parameters
    ----------
    shape : iterable of int, optional
        The dimensions; none by default.

    Raises
    ------
    TypeError
        If a dimension is not an int.

    Examples
    --------
    >>> import forebay
    >>> forebay.empty(2, 3).shape
    forebay.Size([2, 3])
    """

    __slots__ = ()

    def __new__(cls, shape: Iterable[SupportsIndex] = (), /) -> Self:
        lengths = []
        for position, length in enumerate(shape):
            try:
                lengths.append(operator.index(length))
            except TypeError:
                name = type(length).__name__
                raise TypeError(f"forebay.Size() takes an iterable of 'int' (item {position} is '{name}')") from None
        return tuple.__new__(cls, lengths)

    def numel(self) -> int:
        """Return the number of elements of a tensor of this shape."""
        return math.prod(self)

    @overload
    def __getitem__(self, index: SupportsIndex) -> int: ...
    @overload
    def __getitem__(self, index: slice) -> Size: ...
    def __getitem__(self, index: Any) -> Any:
        found = tuple.__getitem__(self, index)
        return size_of(found) if isinstance(index, slice) else found

    def __add__(self, other: Any) -> Size:
        if not isinstance(other, tuple):
            raise TypeError(f"can only concatenate tuple (not {type(other).__name__}) to forebay.Size")
        return Size(tuple.__add__(self, other))

    def __radd__(self, other: Any) -> Size:
        return Size(tuple.__add__(other, self)) if isinstance(other, tuple) else NotImplemented

    def __mul__(self, count: SupportsIndex) -> Size:
        if not hasattr(count, "__index__"):
            raise TypeError(f"can't multiply sequence by non-int of type '{type(count).__name__}'")
        return size_of(tuple.__mul__(self, count))

    def __rmul__(self, count: SupportsIndex) -> Size:
        return self.__mul__(count)

    def __repr__(self) -> str:
        return f"forebay.Size([{', '.join(map(str, self))}])"


size_of: Callable[[Iterable[int]], Size] = partial(tuple.__new__, Size)  # ints as a Size, unchecked


class _Constant:
    """A constant that prints as its public name."""

    __slots__ = ("_name",)

    def __init__(self, name: str) -> None:
        self._name = name

    def __repr__(self) -> str:
        return f"forebay.{self._name}"

    def __reduce__(self) -> str:
        return self._name


class layout(_Constant):  # noqa: N801 - PyTorch's name
    """The layout of a tensor in memory; `forebay.strided` is the only one.

    As `torch.layout`.

    Parameters
    ----------
    name : str
        The public name.
    """


class memory_format(_Constant):  # noqa: N801 - PyTorch's name
    """The order of a tensor's dimensions in memory.

    As `torch.memory_format`.

    Parameters
    ----------
    name : str
        The public name.
    """


strided: Final = layout("strided")
contiguous_format: Final = memory_format("contiguous_format")
preserve_format: Final = memory_format("preserve_format")
channels_last: Final = memory_format("channels_last")
channels_last_3d: Final = memory_format("channels_last_3d")

for _type in (Size, layout, memory_format):
    _type.__module__ = "forebay"
