"""Arguments of interpreted kernels, and what they access."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from forebay.interop.torch.triton.addressed_memory import AddressedMemory

__all__ = ["Descriptor", "OutsideAccess", "Pointer"]


class Pointer(NamedTuple):
    """An argument that is an address of the device, and the memory that it belongs to."""

    address: int
    memory: AddressedMemory | None


class Descriptor(NamedTuple):
    """A descriptor of a tensor, which a kernel reads and writes in blocks."""

    base: Pointer
    shape: Sequence[int]
    strides: Sequence[int]
    block_shape: Sequence[int]
    padding: str


class OutsideAccess(NamedTuple):
    """An access outside the memory of a tensor.

    Attributes
    ----------
    kernel : str
        The name of the kernel.
    file : str
        The file of the line that accesses.
    line : int
        The number of the line.
    program : tuple of int
        The program of the grid.
    verb : {"reads", "writes"}
        What it does.
    argument : str
        The name of the argument from which the address was computed; "" if unknown.
    address : int
        The address on the device.
    offset : int
        Bytes from the beginning of the argument's memory.
    nbytes : int
        The bytes of that memory.
    """

    kernel: str
    file: str
    line: int
    program: tuple[int, ...]
    verb: str
    argument: str
    address: int
    offset: int
    nbytes: int

    @property
    def where(self) -> str:
        """The place that is accessed, the program and the line."""
        program = ", ".join(str(each) for each in self.program)
        what = f"address {self.address:#x}, which no tensor has"
        if self.argument:
            what = f"byte {self.offset:,} of {self.argument}, which has {self.nbytes:,}"
        return f"{what}, in program ({program}) at {Path(self.file).name}:{self.line}"

    def __str__(self) -> str:
        return f"the kernel {self.kernel} {self.verb} outside a tensor: {self.where}"
