"""How bytes get from one place to another: which way each copy and fill takes, and who waits."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from penstock.errors import Unsupported
from penstock.runtime.storage import is_pinned
from penstock.runtime.stream import Stream, current_stream
from penstock.spi import Launches

if TYPE_CHECKING:
    from penstock.runtime.tensor import Tensor

__all__ = ["copy", "fill", "read"]


def copy(target: Tensor, source: Tensor | ArrayLike, *, non_blocking: bool) -> None:
    """Queue a copy into the target on its device's current stream; the source is broadcast to its shape."""
    stream = current_stream(target.device)
    if hasattr(source, "_storage"):
        _from_tensor(stream, target, source)  # type: ignore[arg-type]  # only a Tensor has one
    else:
        _from_host(stream, target, np.asarray(source), non_blocking=non_blocking)


def _from_tensor(stream: Stream, target: Tensor, source: Tensor) -> None:
    theirs = current_stream(source.device)
    stream.wait_stream(theirs)
    _queue_copy(stream, target, source._array(), readable=_host_visible(source))
    theirs.wait_stream(stream)  # so that the source's memory is not reused under the copy
    if source._storage.block is None:
        stream.keep(source._storage)


def _from_host(stream: Stream, target: Tensor, source: NDArray[Any], *, non_blocking: bool) -> None:
    if not _host_visible(target):  # then NumPy does what a copy of bytes cannot
        source = np.ascontiguousarray(np.broadcast_to(source, target.shape), dtype=target.dtype)
    _queue_copy(stream, target, source, readable=True)
    if non_blocking and is_pinned(source):
        stream.keep(source)
    else:
        stream.synchronize()


def _queue_copy(stream: Stream, target: Tensor, source: NDArray[Any], *, readable: bool) -> None:
    """By the queue's own copies where plain bytes move, else by NumPy in the queue where the host can see both ends."""
    array = target._array()
    source = np.broadcast_to(source, target.shape)
    if not target.numel():
        return
    overlapping = np.may_share_memory(array, source)
    if array.dtype == source.dtype and not overlapping and (runs := _runs(array, source)) is not None:
        for dst, src, nbytes in runs:
            stream.queue.copy(dst, src, nbytes)
        return
    queue = stream.queue
    if not (readable and _host_visible(target) and isinstance(queue, Launches)):
        raise Unsupported(
            f"{target.device} copies bytes only: no conversion from {source.dtype} to {array.dtype}, no overlap; "
            "convert with NumPy first",
            ability="Launches",
        )
    queue.call(lambda: np.copyto(array, source, casting="unsafe"))


_MOST_RUNS = 4096  # beyond it one pass by NumPy costs less than that many commands


def _runs(target: NDArray[Any], source: NDArray[Any]) -> Iterator[tuple[int, int, int]] | None:
    """The copies of unbroken bytes that make up this one; None when they are too many to queue."""
    inner, nbytes = target.ndim, target.itemsize
    while inner and target.strides[inner - 1] == source.strides[inner - 1] == nbytes:
        inner -= 1
        nbytes *= target.shape[inner]
    outer = target.shape[:inner]
    if math.prod(outer) > _MOST_RUNS:
        return None
    at, from_ = _address(target), _address(source)
    return (
        (at + int(np.dot(index, target.strides[:inner])), from_ + int(np.dot(index, source.strides[:inner])), nbytes)
        for index in np.ndindex(outer)
    )


def fill(target: Tensor, value: complex) -> None:
    """Queue the value for every element on the target's device's current stream."""
    element = np.empty(1, target.dtype)
    element[0] = value
    stream = current_stream(target.device)
    array = target._array()
    byte = set(element.tobytes())
    if not target.numel():
        return
    if len(byte) == 1 and array.flags.c_contiguous:
        stream.queue.fill(target.data_ptr(), byte.pop(), target.nbytes)
    elif _host_visible(target) and isinstance(queue := stream.queue, Launches):
        queue.call(lambda: array.fill(element[0]))
    else:
        _from_host(stream, target, np.broadcast_to(element, target.shape), non_blocking=False)


def read(source: Tensor) -> NDArray[Any]:
    """The elements in host memory, after waiting for the current stream."""
    if _host_visible(source):
        return source._export()
    stream = current_stream(source.device)
    whole = source.contiguous()
    array = np.empty(source.shape, source.dtype)
    if array.nbytes:
        stream.queue.copy(_address(array), whole.data_ptr(), array.nbytes)
    stream.synchronize()
    return array


def _host_visible(tensor: Tensor) -> bool:
    return tensor._storage.opened.port.props.host_visible


def _address(array: NDArray[Any]) -> int:
    address: int = array.__array_interface__["data"][0]
    return address

