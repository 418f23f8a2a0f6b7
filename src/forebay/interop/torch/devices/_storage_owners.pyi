"""Owners that PyTorch deletes with a storage, and tables of what they own.

# Note [Storages are deleted in one step]
PyTorch deletes a storage at any point of a program, also where a signal handler may raise, or where the stack has no
room for another call. An error in a destructor is swallowed, and what the destructor has not done yet never happens:
the block is lost for good, or a table keeps an entry that the next storage at the same address inherits. Signal
handlers run between Python instructions, and the depth of the stack is checked at calls of Python functions. So an
owner executes none: it is an object of this module, a list gets the records of observers, and what the owner refers to
is deleted in C as well, a Block of the core and PyTorch's storage of the values.
Test: tests/interop/torch/devices/test_interrupts.py::test_an_interrupt_at_any_point_loses_nothing_and_arrives
"""

from collections.abc import Callable
from typing import Any, TypeAlias, final

import torch

from forebay.runtime.devices.open_device import OpenDevice
from forebay.runtime.memory.storage import AnyBlock

# Exchanges the memory of two storages in PyTorch. None for a version that cannot: then the address stays.
_Swap: TypeAlias = Callable[[torch.UntypedStorage, torch.UntypedStorage], object]

@final
class EmulatedMemory:
    """The memory of one storage of an emulated device."""

    def __new__(
        cls,
        values: torch.UntypedStorage,  # on the CPU or the meta device
        block: AnyBlock | None,  # None for no bytes
        opened: OpenDevice,
        nbytes: int,  # as requested
    ) -> EmulatedMemory: ...
    @property
    def values(self) -> torch.UntypedStorage: ...
    @property
    def block(self) -> AnyBlock | None: ...
    @property
    def opened(self) -> OpenDevice: ...
    @property
    def nbytes(self) -> int: ...
    known: torch.UntypedStorage | None  # few values, if they are known although none are computed
    assumed: Any  # about all its elements, otherwise: Note [Assumed values]
    record: Any  # of an observer
    freed: list[Any] | None  # the observer's list, which gets the record when the memory is freed

@final
class MemoryOwner:
    """The owner that PyTorch deletes with a storage of an emulated device. The tables contain its memory."""

    def __new__(cls, memory: EmulatedMemory) -> MemoryOwner: ...  # ValueError if the memory has an owner
    # Note the address of the storage that will delete this owner. ValueError if it was noted before.
    def attach(self, storage_key: int) -> None: ...

# Return the memory of the storage at an address, or None.
def memory_of_storage(storage_key: int) -> EmulatedMemory | None: ...

# Return the memory whose values are in the storage at an address, or None.
def memory_of_values(values_key: int) -> EmulatedMemory | None: ...

# Return the memory whose block begins at an address, or None.
def memory_at(address: int) -> EmulatedMemory | None: ...

# Return the addresses of all blocks.
def block_addresses() -> list[int]: ...

# Move all memory from the tables to that of ended memory. Return the addresses of its storages.
def end_all() -> list[int]: ...

# Return True if ended memory is alive.
def has_ended() -> bool: ...

# Return the ended memory of the storage at an address, or None.
def ended_memory(storage_key: int) -> EmulatedMemory | None: ...

# Exchange the memory of two storages. KeyError if they have none.
def exchange_memory(swap: _Swap | None, one: torch.UntypedStorage, other: torch.UntypedStorage) -> None: ...

# Exchange the memory of a storage with that of a new one of another size, by way of one without memory. Nothing changes
# if `prepare`, which is called before, raises.
def replace_memory(
    swap: _Swap | None,
    storage: torch.UntypedStorage,
    empty: torch.UntypedStorage,
    new: torch.UntypedStorage,
    prepare: Callable[[], object],
) -> None: ...

# Call functions with the address of each block that is allocated or freed from now on; None for no function.
def set_trace(on_allocation: Callable[[int], object] | None, on_free: Callable[[int], object] | None) -> None: ...

# Return the first of the functions.
def allocation_trace() -> Callable[[int], object] | None: ...
