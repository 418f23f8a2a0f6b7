"""Memory that a kernel of PyTorch's CUDA build takes while it runs, and helpers of the kernels that take it."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from types import TracebackType
from typing import Any, Self, TypeVar

import torch

from forebay.interop.torch.devices.emulated_memory import (
    adopt,
    alias,
    allocate_bytes,
    is_replaying,
    mixed_devices,
    open_torch_device,
)  # fmt: skip
from forebay.interop.torch.devices.other_cards import answer, card_bytes
from forebay.runtime.devices.open_device import OpenDevice
from forebay.runtime.memory.storage import AnyBlock

__all__ = [
    "Scratch",
    "by_capability",
    "bytes_by_capability",
    "check_devices",
    "first_of",
    "give",
    "is_dense",
    "nbytes_of",
    "type_name",
    "values_of",
]


_T = TypeVar("_T")
_CAPABILITY = ("major", "minor")


class Scratch:
    """Temporary buffers of a device, freed at the end of a `with` block, the newest first."""

    __slots__ = ("_blocks", "opened")

    def __init__(self, device: OpenDevice | torch.device) -> None:
        self.opened = open_torch_device(device) if isinstance(device, torch.device) else device
        self._blocks: list[AnyBlock | None] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Free all buffers."""
        while self._blocks:
            self._blocks.pop()

    def take(self, nbytes: int) -> int:
        """Allocate a buffer. Return its number."""
        self._blocks.append(None if is_replaying() else allocate_bytes(self.opened, nbytes))
        return len(self._blocks) - 1

    def free(self, number: int) -> None:
        """Free a buffer early."""
        self._blocks[number] = None

    def contiguous(
        self, tensor: torch.Tensor | None, layout: torch.memory_format = torch.contiguous_format
    ) -> None:  # fmt: skip
        """Allocate the contiguous copy of a tensor that is not contiguous in a layout."""
        if tensor is not None and not tensor.is_contiguous(memory_format=layout):
            self.take(nbytes_of(tensor))


def by_capability(opened: OpenDevice, rule: Callable[[tuple[int, int]], _T], key: Hashable | None = None) -> _T:
    """Return what a rule derives from the compute capability: Note [Runs shared by cards]."""
    return answer(opened, _CAPABILITY, lambda major, minor: rule((int(major), int(minor))), key)


def bytes_by_capability(opened: OpenDevice, rule: Callable[[tuple[int, int]], int], key: Hashable | None = None) -> int:
    """Return the size of scratch memory that a rule derives from the compute capability: see `card_bytes`."""
    return card_bytes(opened, _CAPABILITY, lambda major, minor: rule((int(major), int(minor))), key)


def check_devices(*tensors: torch.Tensor | None) -> None:
    """Raise PyTorch's error unless all tensors are on one device."""
    devices = {each.device for each in tensors if each is not None}
    if len(devices) > 1:
        one, other = sorted(devices, key=lambda device: (device.type != "cuda", device.index or 0))[:2]
        raise mixed_devices(one, other)


def first_of(results: tuple[Any, ...]) -> torch.Tensor:
    """Return the first result, and free the others in order, where Python begins with the last."""
    kept = [*results]
    del results
    while len(kept) > 1:
        del kept[1]
    first: torch.Tensor = kept[0]
    return first


def nbytes_of(tensor: torch.Tensor, dtype: torch.dtype | None = None) -> int:
    """Return the bytes of the elements of a tensor, with another type if one is named."""
    return int(tensor.numel() * (tensor.itemsize if dtype is None else dtype.itemsize))


def type_name(dtype: torch.dtype) -> str:
    """Return the name of a type in PyTorch's errors, such as "Long"."""
    return str(torch.empty(0, dtype=dtype).type()).rpartition(".")[2].removesuffix("Tensor")


def is_dense(tensor: torch.Tensor) -> bool:
    """Return True if the elements fill their memory, in any order of the dimensions."""
    expected = 1
    dimensions = zip(tensor.stride(), tensor.shape, strict=True)
    for stride, length in sorted(each for each in dimensions if each[1] != 1):
        if not length:
            return True
        if stride != expected:
            return False
        expected *= length
    return True


def values_of(argument: Any) -> Any:
    """Return an argument with tensors over values in place of tensors of the device."""
    if isinstance(argument, torch.Tensor):
        return alias(argument) if argument.is_cuda else argument
    if isinstance(argument, (list, tuple)):
        return [values_of(each) for each in argument]
    return argument


def give(values: torch.Tensor, opened: OpenDevice) -> torch.Tensor:
    """Return a tensor of the device with values that were computed, without elements that they do not use."""
    storage = values.untyped_storage()
    if values.storage_offset() or storage.nbytes() != nbytes_of(values) or not is_dense(values):
        values = values.clone(memory_format=torch.preserve_format)
    return adopt(values, opened)
