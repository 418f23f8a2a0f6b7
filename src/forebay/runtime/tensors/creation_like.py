"""Functions that create a tensor with the shape, dtype, device and dimension order of another one."""

from __future__ import annotations

from forebay._base.dtypes import DTypeLike
from forebay._base.layouts import layout, memory_format, preserve_format
from forebay.runtime.memory.transfer import fill, zero
from forebay.runtime.tensors.creation import empty_for
from forebay.runtime.tensors.memory_formats import strides_of_copy
from forebay.runtime.tensors.options import DeviceLike, check_options
from forebay.runtime.tensors.tensor import Tensor

__all__ = ["empty_like", "full_like", "new_like", "ones_like", "zeros_like"]


# Written by tools/write_names.py from tools/names/factories.toml: edit the table, not these lines.


def empty_like(
    input: Tensor,  # noqa: A002 - PyTorch's name
    *,
    dtype: DTypeLike | None = None,
    layout: layout | None = None,
    device: DeviceLike = None,
    requires_grad: bool = False,
    pin_memory: bool = False,
    memory_format: memory_format = preserve_format,
) -> Tensor:
    """Create an uninitialised tensor like another.

    As `torch.empty_like`.

    Parameters
    ----------
    input : Tensor
        The tensor whose shape, dtype, device and order of dimensions are used.
    dtype : dtype, optional
        Another element type.
    layout : layout, optional
        Only `forebay.strided`.
    device : device or str or int, optional
        Another device.
    requires_grad : bool, optional
        Only False.
    pin_memory : bool, optional
        True to create a CPU tensor in page-locked memory.
    memory_format : memory_format, optional
        `forebay.preserve_format` keeps the order of dimensions in memory; `forebay.contiguous_format` does not.

    Returns
    -------
    Tensor
        The tensor, without gaps between its elements.
    """
    return new_like("empty_like", input, dtype, device, pin_memory, memory_format, layout, requires_grad)


def zeros_like(
    input: Tensor,  # noqa: A002 - PyTorch's name
    *,
    dtype: DTypeLike | None = None,
    layout: layout | None = None,
    device: DeviceLike = None,
    requires_grad: bool = False,
    pin_memory: bool = False,
    memory_format: memory_format = preserve_format,
) -> Tensor:
    """Create a tensor of zeros like another.

    As `torch.zeros_like`.

    Parameters
    ----------
    input : Tensor
        The tensor whose shape, dtype, device and order of dimensions are used.
    dtype : dtype, optional
        Another element type.
    layout : layout, optional
        Only `forebay.strided`.
    device : device or str or int, optional
        Another device.
    requires_grad : bool, optional
        Only False.
    pin_memory : bool, optional
        True to create a CPU tensor in page-locked memory.
    memory_format : memory_format, optional
        As for `empty_like`.

    Returns
    -------
    Tensor
        The tensor.
    """
    made = new_like("zeros_like", input, dtype, device, pin_memory, memory_format, layout, requires_grad)
    zero(made)
    return made


def ones_like(
    input: Tensor,  # noqa: A002 - PyTorch's name
    *,
    dtype: DTypeLike | None = None,
    layout: layout | None = None,
    device: DeviceLike = None,
    requires_grad: bool = False,
    pin_memory: bool = False,
    memory_format: memory_format = preserve_format,
) -> Tensor:
    """Create a tensor of ones like another.

    As `torch.ones_like`.

    Parameters
    ----------
    input : Tensor
        The tensor whose shape, dtype, device and order of dimensions are used.
    dtype : dtype, optional
        Another element type.
    layout : layout, optional
        Only `forebay.strided`.
    device : device or str or int, optional
        Another device.
    requires_grad : bool, optional
        Only False.
    pin_memory : bool, optional
        True to create a CPU tensor in page-locked memory.
    memory_format : memory_format, optional
        As for `empty_like`.

    Returns
    -------
    Tensor
        The tensor.
    """
    made = new_like("ones_like", input, dtype, device, pin_memory, memory_format, layout, requires_grad)
    fill(made, 1)
    return made


def full_like(
    input: Tensor,  # noqa: A002 - PyTorch's name
    fill_value: complex,
    *,
    dtype: DTypeLike | None = None,
    layout: layout | None = None,
    device: DeviceLike = None,
    requires_grad: bool = False,
    pin_memory: bool = False,
    memory_format: memory_format = preserve_format,
) -> Tensor:
    """Create a tensor with all elements equal, like another.

    As `torch.full_like`.

    Parameters
    ----------
    input : Tensor
        The tensor whose shape, dtype, device and order of dimensions are used.
    fill_value : bool or int or float or complex
        The value of each element.
    dtype : dtype, optional
        Another element type.
    layout : layout, optional
        Only `forebay.strided`.
    device : device or str or int, optional
        Another device.
    requires_grad : bool, optional
        Only False.
    pin_memory : bool, optional
        True to create a CPU tensor in page-locked memory.
    memory_format : memory_format, optional
        As for `empty_like`.

    Returns
    -------
    Tensor
        The tensor.
    """
    made = new_like("full_like", input, dtype, device, pin_memory, memory_format, layout, requires_grad)
    fill(made, fill_value)
    return made


# End of the written lines.


def new_like(
    function: str,
    like: Tensor,
    dtype: DTypeLike | None,
    device: DeviceLike,
    pin_memory: bool = False,
    memory_format: memory_format = preserve_format,
    layout: layout | None = None,
    requires_grad: bool = False,
) -> Tensor:
    """Return an uninitialised tensor like another, with the dimensions in memory in the order of the format."""
    check_options(function, layout, requires_grad, memory_format)
    if not isinstance(like, Tensor):
        raise TypeError(f"{function}(): argument 'input' (position 1) must be Tensor, not {type(like).__name__}")
    kind = like.numpy_dtype if dtype is None else dtype
    place = device
    if device is None:
        place = like.device
        like.raw_storage.opened.check()  # its emulation may have ended: opening it again would raise another error
    made = empty_for(function, (like.shape,), None, None, kind, place, pin_memory)
    made.byte_strides = strides_of_copy(like, memory_format, made.itemsize)
    return made
