"""Assumptions about the elements of a tensor whose values are not computed.

# Note [Assumed values]
A program without values reads its loss, its predicted tokens and the counts of its masks all the same. What its memory
depends on is mostly not in these numbers, so that it is given some: the same in each run, plausible for what computed
them, and such that loops go on to their limits and checks pass. Each memory of unknown values carries what is assumed
about all its elements: one value, a range of integers, the share of a mask that is true. Operators whose result follows
from that of their arguments pass it on (`rules`); a read asks for it (`reads`), as does an operator whose result has a
size that depends on values (`sizes`). Each line that receives an assumed value is listed with the result, as the answer
is only as good as these. Rejected: values for each element, which would cost what the real ones cost; random numbers,
with which two runs differ; to raise an error at the first read, which is the mode "strict".
Test: tests/interop/torch/assumptions/test_reads.py::test_every_read_of_a_training_loop_is_answered
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from forebay.interop.torch.devices import host_values
from forebay.interop.torch.devices.emulated_memory import memory_of

__all__ = ["NOTHING", "Elements", "Reading", "assumed", "is_integral", "note_elements", "reading_of"]

_INTEGRAL = {torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.uint16, torch.uint32, torch.uint64}


_MOST_VALUES = 1 << 20


# Note [Unchanged numbers]
# The number that a line reads falls from read to read, but of elements that no operator has written in between, each
# read gives the same: a program that prints a tensor twice, compares its copies on the host, or logs the loss that
# it has tested before must not see two. It belongs to what is assumed about a memory, which every operator that
# writes there replaces. Rejected: PyTorch's version of the tensor, which `data` and inference mode do not count.
# Test: tests/interop/torch/assumptions/test_reads.py::test_a_number_falls_only_when_its_tensor_has_changed
class Reading:
    """The number that was read of unknown elements, which copies of them share: Note [Unchanged numbers]."""

    def __init__(self) -> None:
        self.number: float | None = None


class Elements(NamedTuple):
    """Assumptions about each element of a tensor.

    Parameters
    ----------
    origin : str, optional
        The operator that has computed them; "" if no assumption decides them.
    value : complex or bool, optional
        What each reads as. None: it is chosen where it is read, of integers the smallest.
    low, high : int, optional
        The smallest and the largest integer that the operator can return.
    share : float, optional
        The share of a mask that is true, from 0 to 1.
    total : int, optional
        The sum of all elements, which are counts of the parts of something, such as the tokens of each expert.
    classes : int, optional
        The length of the last dimension of one-hot codes in memory, whose elements are chosen by a class.
    row : int, optional
        The length of the rows in memory whose elements are different integers, from `low` on: Note [Ranks].
    read : Reading, optional
        The number that the host has read: Note [Unchanged numbers].
    """

    origin: str = ""
    value: complex | None = None
    low: int | None = None
    high: int | None = None
    share: float | None = None
    total: int | None = None
    classes: int | None = None
    row: int | None = None
    read: Reading | None = None

    def joined(self, other: Elements) -> Elements:
        """Return what holds for the elements of two tensors together."""
        if self == other:
            return self
        bounded = None not in (self.low, self.high, other.low, other.high)
        return Elements(
            other.origin or self.origin,
            self.value if self.value == other.value else None,
            min(self.low, other.low) if bounded else None,  # type: ignore[type-var]  # checked in `bounded`
            max(self.high, other.high) if bounded else None,  # type: ignore[type-var]  # as above
            None if self.share is None or other.share is None else max(self.share, other.share),
        )

    def without_places(self) -> Elements:
        """Return what holds for the elements at other places of a memory."""
        return self._replace(total=None, classes=None, row=None)

    @property
    def is_exact(self) -> bool:
        """True if all elements are one number, which no assumption decides."""
        return not self.origin and self.value is not None

    def as_type(self, dtype: torch.dtype) -> Elements:
        """Return what holds for the elements after a conversion."""
        if self.value is None:
            if dtype == torch.bool and (self.low, self.high) == (0, 1):
                return self  # a mask
            if self.low is None or self.high is None or not is_integral(dtype):
                return NOTHING._replace(read=self.read if dtype.is_floating_point else None)
            ends = torch.iinfo(dtype)
            return self if ends.min <= self.low and self.high <= ends.max else NOTHING
        converted = _of_values(torch.tensor(self.value, dtype=dtype))
        return converted._replace(origin=self.origin)


NOTHING = Elements()


def is_integral(dtype: torch.dtype) -> bool:
    """Return True for types of integers; False for that of masks."""
    return dtype in _INTEGRAL


def assumed(argument: Any) -> Elements:
    """Return what is known or assumed about the elements of an argument, which is a tensor or a number."""
    if isinstance(argument, torch.Tensor):
        if not argument.is_cuda:
            return NOTHING if host_values.reads_as_zeros(argument) else _of_values(argument)
        memory = memory_of(argument)
        if memory.known is not None:
            elements = memory.known.elements(argument.dtype, _of_values)
            if isinstance(elements, Elements) and elements != NOTHING:
                return elements
        found, dtype = memory.assumed or (NOTHING, None)
        return found if dtype is argument.dtype or found.value == 0 else NOTHING  # else a view as another type
    if isinstance(argument, (bool, int)):
        return Elements("", argument, int(argument), int(argument), float(bool(argument)))
    if isinstance(argument, (float, complex)):
        return Elements("", argument)
    return NOTHING


def _of_values(tensor: torch.Tensor) -> Elements:
    """Return what holds for known values; nothing for many, which take time to search."""
    if not tensor.numel() or tensor.layout is not torch.strided or tensor.device.type != "cpu":
        return NOTHING
    for dim, stride in enumerate(tensor.stride()):
        if not stride:
            tensor = tensor.narrow(dim, 0, 1)
    if tensor.numel() > _MOST_VALUES:
        return NOTHING
    if tensor.dtype == torch.bool:
        share = float(tensor.float().mean())
        return Elements("", bool(share) if share in (0.0, 1.0) else None, 0, 1, share)
    if is_integral(tensor.dtype):
        low, high = int(tensor.min()), int(tensor.max())
        return Elements("", low if low == high else None, low, high)
    value = tensor.reshape(-1)[0]
    return Elements("", value.item() if bool((tensor == value).all()) else None)


def note_elements(tensor: torch.Tensor, found: Elements, before: Elements | None = None) -> None:
    """Note what is assumed about what was written to a tensor of a device.

    Parameters
    ----------
    tensor : torch.Tensor
        The tensor.
    found : Elements
        What is assumed about its elements.
    before : Elements, optional
        What held for the memory before, of which the tensor may be a part; nothing by default.
    """
    memory = memory_of(tensor)
    if memory.known is None or memory.known.storage is None:
        if not is_integral(tensor.dtype) and tensor.dtype != torch.bool:
            found = found._replace(low=None, high=None)
        is_whole = tensor.numel() * tensor.itemsize >= memory.nbytes
        made = found if is_whole else (before or NOTHING).joined(found)
        memory.assumed = None if made == NOTHING else (made, tensor.dtype)


def reading_of(tensor: torch.Tensor, found: Elements) -> Reading:
    """Return the number that stands for unknown elements of a tensor until they change; `found` is assumed of it."""
    if found.read is not None:
        return found.read
    made = Reading()
    memory = memory_of(tensor)
    if memory.assumed is None or memory.assumed[1] is tensor.dtype:
        memory.assumed = (found._replace(read=made), tensor.dtype)
    return made
