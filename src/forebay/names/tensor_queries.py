"""Queries of tensors and storages under PyTorch's top-level names."""

from __future__ import annotations

from forebay.runtime.tensors.tensor import Tensor
from forebay.runtime.tensors.typed_storage import TypedStorage
from forebay.runtime.tensors.untyped_storage import UntypedStorage

__all__ = ["equal", "is_complex", "is_floating_point", "is_storage", "is_tensor", "numel"]


def is_tensor(obj: object, /) -> bool:
    """Return True for a tensor.

    Parameters
    ----------
    obj : object
        Any object.
    """
    return isinstance(obj, Tensor)


def is_storage(obj: object, /) -> bool:
    """Return True for a `TypedStorage` or an `UntypedStorage`.

    Parameters
    ----------
    obj : object
        Any object.
    """
    return isinstance(obj, TypedStorage | UntypedStorage)


def is_floating_point(input: Tensor) -> bool:  # noqa: A002 -- PyTorch's name
    """Return True for elements of a real floating-point type.

    Parameters
    ----------
    input : Tensor
        The tensor.

    Returns
    -------
    bool
        As `Tensor.is_floating_point`.
    """
    return input.is_floating_point()


def is_complex(input: Tensor) -> bool:  # noqa: A002 -- PyTorch's name
    """Return True for complex elements.

    Parameters
    ----------
    input : Tensor
        The tensor.
    """
    return input.is_complex()


def numel(input: Tensor) -> int:  # noqa: A002 -- PyTorch's name
    """Return the number of elements.

    Parameters
    ----------
    input : Tensor
        The tensor.

    Returns
    -------
    int
        As `Tensor.numel`.
    """
    return input.numel()


def equal(input: Tensor, other: Tensor) -> bool:  # noqa: A002 -- PyTorch's name
    """Return True if two tensors of one device have the same shape and elements.

    Parameters
    ----------
    input, other : Tensor
        The tensors.

    Returns
    -------
    bool
        As `Tensor.equal`.
    """
    if not isinstance(input, Tensor):
        raise TypeError(f"equal(): argument 'input' (position 1) must be Tensor, not {type(input).__name__}")
    if not isinstance(other, Tensor):
        raise TypeError(f"equal(): argument 'other' (position 2) must be Tensor, not {type(other).__name__}")
    return input.equal(other)
