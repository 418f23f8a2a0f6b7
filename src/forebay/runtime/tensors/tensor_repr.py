"""The text of a tensor: its values, shortened as NumPy shortens arrays. In a notebook: beside its properties."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from forebay._base.byte_sizes import format_bytes
from forebay._base.html_repr import box, facts, preformatted
from forebay.runtime.memory import transfer
from forebay.runtime.streams.stream import current_stream_for

if TYPE_CHECKING:
    from forebay.runtime.tensors.tensor import Tensor

__all__ = ["tensor_html", "tensor_text"]

_THRESHOLD, _EDGE = 1000, 3  # elements shown in full; elements at each end of a shortened dimension
_PREFIX = "tensor("
_IMPLIED = {"bool", "int64", "float32", "complex64"}  # dtypes that the values show


def tensor_text(tensor: Tensor) -> str:
    """Return `tensor([...], device=..., dtype=...)`, or a description without values if they must not be read.

    Reading raises a failure of the stream's work, as any synchronisation does.
    """
    if tensor.raw_storage.opened.unusable or current_stream_for(tensor.raw_storage.opened).is_capturing():
        return _description(tensor)
    shown, threshold = _shown(tensor)
    if shown.dtype.name == "bfloat16":  # NumPy has no format for it
        shown = shown.astype(np.float32)
    width = 4 if shown.dtype.kind == "b" and shown.all() else 5  # of True and False
    values = np.array2string(
        shown,
        formatter={"bool": lambda value: f"{value!s:>{width}}"} if shown.dtype.kind == "b" else None,
        separator=", ",
        prefix=_PREFIX,
        precision=4,
        threshold=threshold,
        edgeitems=_EDGE,
        floatmode="maxprec" if _are_short_integers(shown) else "fixed",
    ).replace(", ..., ", ",  ..., ")
    parts = [values]
    if not tensor.numel() and tensor.ndim != 1:
        parts.append(f"size={tuple(tensor.shape)}")
    if tensor.device.kind != "cpu" or tensor.device.index is not None:
        parts.append(f"device='{tensor.device}'")
    name = tensor.numpy_dtype.name
    if name not in _IMPLIED or (not tensor.numel() and name != "float32"):
        parts.append(f"dtype=forebay.{name}")
    return f"{_PREFIX}{', '.join(parts)})"


def tensor_html(tensor: Tensor) -> str:
    """Return the shape, dtype, device and size of a tensor, and its text, or the reason why that cannot be read."""
    try:
        text = tensor_text(tensor)
    except Exception as error:  # noqa: BLE001 - a failure of the stream's work must not be lost, nor the display fail
        text = f"The values cannot be read: {type(error).__name__}: {error}"
    shape = " by ".join(f"{length:,}" for length in tensor.shape) or "scalar"
    properties = [("shape", shape), ("dtype", str(tensor.dtype)), ("device", str(tensor.device))]
    properties.append(("bytes", format_bytes(tensor.numel() * tensor.itemsize)))
    if not tensor.is_contiguous():
        properties.append(("strides", ", ".join(map(str, tensor.stride()))))
    return box("Tensor", facts(properties), preformatted(text))


def _are_short_integers(values: NDArray[Any]) -> bool:
    """Return True for floats that print as `1.`: integers of similar magnitude. (PyTorch's rule, which is NumPy's.)"""
    if values.dtype.kind not in "fc":
        return False
    magnitudes = np.abs(values[np.isfinite(values) & (values != 0)])
    if magnitudes.size:
        largest, smallest = float(magnitudes.max()), float(magnitudes.min())
        if largest > 1e8 or largest > 1000 * smallest:
            return False
    return bool(np.all(magnitudes == np.round(magnitudes)))


def _description(tensor: Tensor) -> str:
    return f"<forebay.Tensor shape={tuple(tensor.shape)} dtype={tensor.dtype} device={tensor.device}>"


def _shown(tensor: Tensor) -> tuple[NDArray[Any], int]:
    """Return the elements that the text needs, and NumPy's threshold for shortening them."""
    if tensor.numel() <= _THRESHOLD:
        return transfer.read(tensor), _THRESHOLD
    return _corners(tensor, 0), 0


def _corners(tensor: Tensor, dim: int) -> NDArray[Any]:
    """Read only the ends of long dimensions: a tensor may be larger than the memory of the host.

    One element more than NumPy shows stands for those that are left out.
    """
    if dim == tensor.ndim:
        return transfer.read(tensor)
    length = tensor.shape[dim]
    if length <= 2 * _EDGE + 1:
        return _corners(tensor, dim + 1)
    ends = slice(0, _EDGE + 1), slice(length - _EDGE, length)
    return np.concatenate([_corners(tensor[(slice(None),) * dim + (end,)], dim + 1) for end in ends], axis=dim)
