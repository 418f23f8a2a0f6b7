"""Tensor: typed, shaped device memory. It moves, fills and lends bytes; arithmetic belongs to whoever borrows them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, SupportsIndex

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from forebay import backends
from forebay._core import Exporter
from forebay.device_spec import Device
from forebay.dtypes import as_dtype
from forebay.runtime.devices import current
from forebay.runtime.memory import transfer
from forebay.runtime.memory.storage import Storage, array_at, record_use
from forebay.runtime.memory.strided_copy import is_unbroken
from forebay.runtime.random import fill as random_fill
from forebay.runtime.random.generator import Generator
from forebay.runtime.streams.stream import Stream, current_stream

__all__ = ["Tensor", "new_tensor"]


class Tensor(Exporter):
    """A view of device memory; made by `forebay.empty`, `zeros`, `full`, `tensor`, `from_numpy` and `from_dlpack`.

    What it does is queued on the device's current stream, in order with all else there; `numpy`, `tolist`, `item` and
    the protocols (buffer, `__array_interface__`, DLPack) wait for that stream first. (`torch.Tensor`)
    """

    __hash__ = object.__hash__

    def __init__(
        self, storage: Storage, dtype: np.dtype[Any], shape: tuple[int, ...], strides: tuple[int, ...], address: int
    ) -> None:
        self.storage = storage  # the runtime's own, like `raw_array`
        self.byte_strides = strides
        self._address = address
        self.dtype = dtype
        self.shape = shape

    # What and where it is.

    @property
    def device(self) -> Device:
        return self.storage.opened.device

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def itemsize(self) -> int:
        """Bytes of one element."""
        return self.dtype.itemsize

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize

    @property
    def is_cuda(self) -> bool:
        """Whether its device is of kind cuda."""
        return self.device.kind == "cuda"

    def get_device(self) -> int:
        """The index of its device; -1 on the host's."""
        return -1 if self.device.kind == "host" else self.device.index or 0

    def numel(self) -> int:
        """How many elements."""
        return math.prod(self.shape)

    def element_size(self) -> int:
        """Bytes of one element."""
        return self.itemsize

    def size(self, dim: int | None = None) -> tuple[int, ...] | int:
        return self.shape if dim is None else self.shape[dim]

    def stride(self, dim: int | None = None) -> tuple[int, ...] | int:
        """Steps in elements."""
        steps = tuple(step // max(self.itemsize, 1) for step in self.byte_strides)
        return steps if dim is None else steps[dim]

    def storage_offset(self) -> int:
        """Elements between the start of the memory and the first element."""
        return (self._address - self.storage.address) // max(self.itemsize, 1)

    def data_ptr(self) -> int:
        """The address of the first element; 0 when there is none."""
        return self._address if self.numel() else 0

    def is_contiguous(self) -> bool:
        return is_unbroken(self.shape, self.byte_strides, self.dtype.itemsize)

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("len() of a 0-d tensor")
        return self.shape[0]

    def __iter__(self) -> Iterator[Tensor]:
        if not self.shape:
            raise TypeError("iteration over a 0-d tensor")
        return (self[i] for i in range(self.shape[0]))

    def __bool__(self) -> bool:
        """Whether the only element is not zero, as `item` tells it; ValueError when there is not just one."""
        return bool(self.item())

    def __repr__(self) -> str:
        return f"<forebay.Tensor shape={self.shape} dtype={self.dtype} device={self.device}>"

    # Views: NumPy does the arithmetic on addresses and strides, and reads nothing.

    def raw_array(self) -> NDArray[Any]:
        """This memory as NumPy sees it. Its elements may be read only where the host can, and after synchronizing."""
        return array_at(self._address, self.shape, self.byte_strides, self.dtype, self.storage)

    def _view(self, array: NDArray[Any]) -> Tensor:
        address = array.__array_interface__["data"][0] if array.size else self._address
        return Tensor(self.storage, array.dtype, array.shape, array.strides, address)

    def __getitem__(self, index: Any) -> Tensor:
        """Ints, slices, None and Ellipsis; always a view. IndexError for anything else: gathering is arithmetic."""
        parts = index if isinstance(index, tuple) else (index,)
        for part in parts:
            if not (part is None or part is Ellipsis or isinstance(part, (slice, SupportsIndex))) or isinstance(
                part, (bool, np.bool_, np.ndarray, Tensor)
            ):
                raise IndexError(f"a tensor is indexed by ints, slices, None and ..., not {type(part).__name__}")
        whole = any(part is Ellipsis for part in parts)
        return self._view(self.raw_array()[parts if whole else (*parts, ...)])

    def __setitem__(self, index: Any, value: Tensor | ArrayLike) -> None:
        """Copy the value there, broadcast and converted."""
        part = self[index]
        if isinstance(value, (int, float, complex)):
            part.fill_(value)
        else:
            part.copy_(value)

    def view(self, *shape: Any) -> Tensor:
        """The same memory under another shape (`view(2, -1)`) or another dtype (`view(forebay.uint8)`).

        Raises ValueError where only a copy could have that shape, or could be of that dtype.
        """
        if len(shape) == 1 and (
            isinstance(shape[0], (type, str)) or not isinstance(shape[0], (SupportsIndex, Sequence))
        ):
            found = self._view(self.raw_array().view(as_dtype(shape[0])))
            if any(step % found.itemsize for step in found.byte_strides):
                raise ValueError(f"a tensor of strides {self.byte_strides} bytes has no view of dtype {found.dtype}")
            return found
        wanted = _one_or_many(shape)
        if any(length < -1 for length in wanted):  # NumPy takes them for -1
            raise ValueError(f"a shape must not be negative, but for one -1: {wanted}")
        try:
            return self._view(self.raw_array().reshape(wanted, copy=False))
        except ValueError as error:
            raise ValueError(f"a tensor of shape {self.shape} has no view of shape {wanted}: {error}") from None

    def reshape(self, *shape: Any) -> Tensor:
        """A view of that shape where there can be one, else a copy."""
        wanted = _one_or_many(shape)
        return (self if self.is_contiguous() or self._viewable(wanted) else self.contiguous()).view(wanted)

    def _viewable(self, shape: tuple[int, ...]) -> bool:
        try:
            self.view(shape)
        except ValueError:
            return False
        return True

    def flatten(self) -> Tensor:
        return self.reshape(-1)

    def permute(self, *dims: Any) -> Tensor:
        array, order = self.raw_array(), _one_or_many(dims)
        return self._view(array.transpose(order) if order or self.shape else array)

    def transpose(self, first: int, second: int) -> Tensor:
        return self._view(self.raw_array().swapaxes(first, second))

    def squeeze(self, dim: int | None = None) -> Tensor:
        """Without the dimensions of length 1, or without that one if its length is 1."""
        array = self.raw_array()
        return self._view(array if dim is not None and self.shape[dim] != 1 else array.squeeze(dim))

    def unsqueeze(self, dim: int) -> Tensor:
        return self._view(np.expand_dims(self.raw_array(), dim))

    def expand(self, *shape: Any) -> Tensor:
        """The same memory read again along dimensions of length 1; -1 keeps a dimension as it is."""
        wanted = _one_or_many(shape)
        kept = (1,) * (len(wanted) - self.ndim) + self.shape
        lengths = tuple(now if length == -1 else length for length, now in zip(wanted, kept, strict=False))
        return self._view(np.broadcast_to(self.raw_array(), lengths if len(kept) == len(wanted) else wanted))

    # Moving and filling.

    def copy_(self, source: Tensor | ArrayLike, non_blocking: bool = False) -> Tensor:
        """Copy from a tensor of any device or anything NumPy understands, broadcast and converted as NumPy does.

        Between devices of a kind the host never waits. From host memory it waits, unless `non_blocking`: then pinned
        memory (`empty_pinned`) must not change until the stream is done, and other memory is copied aside first, but
        for a device whose memory the host reads. Gives this tensor.
        """
        if isinstance(source, Tensor):
            if source is not self:
                transfer.copy_tensor(self, source, non_blocking=non_blocking)
        else:
            transfer.copy_array(self, np.asarray(source), non_blocking=non_blocking)
        return self

    def fill_(self, value: complex) -> Tensor:
        """Set every element. Gives this tensor."""
        transfer.fill(self, value)
        return self

    def zero_(self) -> Tensor:
        """Set every element to zero. Gives this tensor."""
        transfer.fill(self, np.zeros((), self.dtype)[()])
        return self

    # Random numbers: see forebay.rand and the others, which are made of these.

    def uniform_(self, from_: float = 0, to: float = 1, *, generator: Generator | None = None) -> Tensor:
        """Numbers from `from_` on, below `to`. Gives this tensor, as all of these."""
        random_fill.uniform(self, from_, to, generator)
        return self

    def normal_(self, mean: float = 0, std: float = 1, *, generator: Generator | None = None) -> Tensor:
        """Numbers of the normal distribution."""
        random_fill.normal(self, mean, std, generator)
        return self

    def exponential_(self, lambd: float = 1, *, generator: Generator | None = None) -> Tensor:
        """Numbers of the exponential distribution, none of them 0."""
        random_fill.exponential(self, lambd, generator)
        return self

    def bernoulli_(self, p: float | Tensor = 0.5, *, generator: Generator | None = None) -> Tensor:
        """Ones with probability `p`, else zeros; a tensor has a probability for each."""
        random_fill.bernoulli(self, p, generator)
        return self

    def random_(self, *bounds: int | None, generator: Generator | None = None) -> Tensor:
        """Integers: `random_()` all from 0 on, `random_(to)` those below, `random_(from, to)`; `to` may be None."""
        if len(bounds) > 2 or bounds[:1] == (None,):
            raise TypeError(f"random_() takes nothing, `to`, or `from` and `to`, not {bounds!r}")
        if bounds:
            low, high = bounds if len(bounds) == 2 else (0, *bounds)
            random_fill.integers(self, low or 0, high, generator)
        else:
            random_fill.integers_below(self, generator)
        return self

    def clone(self) -> Tensor:
        """A contiguous copy on the same device."""
        return new_tensor(self.shape, self.dtype, self.device).copy_(self)

    def __reduce__(self) -> tuple[Any, ...]:
        """Of its elements a copy; but see `forebay.interop.multiprocessing`."""
        return _from_elements, (transfer.read(self), self.device)

    def __copy__(self) -> Tensor:
        return self[...]

    def __deepcopy__(self, memo: dict[int, Any]) -> Tensor:
        return self.clone()

    def contiguous(self) -> Tensor:
        return self if self.is_contiguous() else self.clone()

    def to(
        self,
        target: Device | str | int | DTypeLike | None = None,
        dtype: DTypeLike | None = None,
        *,
        device: Device | str | int | None = None,
        non_blocking: bool = False,
        copy: bool = False,
    ) -> Tensor:
        """This tensor on another device, or with another dtype, or both; itself when nothing changes and not `copy`.

        `target` is a device or a dtype; a string that could be either is a device.
        """
        if isinstance(target, (Device, int)) or (isinstance(target, str) and _names_device(target)):
            device = target
        elif target is not None:
            dtype = target
        place = self.device if device is None else current.resolve(device)
        kind, moved = self.dtype if dtype is None else as_dtype(dtype), self
        if place == self.device and kind == self.dtype:
            return self.clone() if copy else self
        if place != self.device and kind != self.dtype and self.storage.host_visible:  # convert where it can be done
            moved = moved.to(dtype=kind)
        if place != self.device:
            moved = new_tensor(self.shape, moved.dtype, place).copy_(moved, non_blocking)
        return moved if moved.dtype == kind else new_tensor(self.shape, kind, place).copy_(moved)

    def cpu(self) -> Tensor:
        """This tensor on the host device; itself when it is there."""
        return self if self.device.kind == "host" else self.to("host:0")

    def record_stream(self, stream: Stream) -> None:
        """Tell the allocator that the stream uses this memory, which then is not reused before the stream is done.

        Does nothing for memory that others own, but for `empty_pinned`'s. (`torch.Tensor.record_stream`)
        """
        record_use(self.storage, stream)

    # Lending.

    def numpy(self) -> NDArray[Any]:
        """The same memory as a NumPy array, after waiting for the current stream; the array keeps the memory alive.

        Raises TypeError where the host cannot read the device's memory.
        """
        if not self.storage.host_visible:
            raise TypeError(self._no_host_memory())
        return transfer.read(self)

    def tolist(self) -> Any:
        return transfer.read(self).tolist()

    def item(self) -> Any:
        """The only element, as Python's own type; ValueError when there is not just one."""
        if self.numel() != 1:
            raise ValueError(f"a tensor with {self.numel()} elements cannot be converted to a scalar")
        return transfer.read(self).item()

    # What each protocol raises is what whoever asks for it understands, and goes on to the next.

    def _export(self) -> NDArray[Any]:
        if not self.storage.host_visible:
            raise BufferError(self._no_host_memory())
        return transfer.read(self)

    def _no_host_memory(self) -> str:
        return (
            f"can't convert {self.device} device type tensor to numpy. "
            "Use Tensor.cpu() to copy the tensor to host memory first."
        )

    @property
    def __array_interface__(self) -> dict[str, Any]:
        if not self.storage.host_visible:
            raise AttributeError(self._no_host_memory())
        if self.dtype.isbuiltin == _REGISTERED:  # the interface has no word for it: NumPy then asks for `__array__`
            raise AttributeError(f"__array_interface__ cannot tell of {self.dtype}")
        return transfer.read(self).__array_interface__

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> NDArray[Any]:
        return np.array(self.numpy(), dtype=dtype, copy=copy)

    def __dlpack__(self, **wishes: Any) -> Any:
        """A DLPack capsule of the same memory, after waiting for the current stream. (DLPack 1.0, Array API 2024.12)"""
        wishes.pop("stream", None)  # the work is done, so any stream may use it
        return self._export().__dlpack__(**wishes)

    def __dlpack_device__(self) -> tuple[int, int]:
        if not self.storage.host_visible:
            raise BufferError(self._no_host_memory())
        return 1, 0  # the CPU


_REGISTERED = 2  # of a dtype that a package added, as ml_dtypes does


def new_tensor(shape: Sequence[int], dtype: np.dtype[Any], device: Device | str | int | None) -> Tensor:
    """A contiguous tensor of whatever the memory held, allocated on the current stream."""
    stream = current_stream(device)
    shape = tuple(shape)
    nbytes = math.prod(shape) * dtype.itemsize
    storage = Storage.allocate(stream.opened, nbytes, stream.handle)
    strides = [dtype.itemsize]
    for length in shape[:0:-1]:
        strides.append(strides[-1] * max(length, 1))
    return Tensor(storage, dtype, shape, tuple(strides[: len(shape)][::-1]), storage.address)


def _from_elements(array: NDArray[Any], device: Device) -> Tensor:
    return new_tensor(array.shape, array.dtype, device).copy_(array)


def _one_or_many(parts: tuple[Any, ...]) -> tuple[Any, ...]:
    """PyTorch's two spellings, `view(2, 3)` and `view((2, 3))`."""
    return tuple(parts[0]) if len(parts) == 1 and isinstance(parts[0], Sequence) else parts


def _names_device(text: str) -> bool:
    kind, colon, _ = text.partition(":")
    return bool(colon) or kind in ("cpu", *current.PREFERRED) or kind in backends.drivers()
