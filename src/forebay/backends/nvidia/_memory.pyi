"""Memory of a device as steps that no signal handler can split: the driver's call, and the entry in a table.

# Note [Calls of the driver are one step]
A call of the driver returns or takes back a resource. A signal handler that raises between the call and the entry in a
table loses the resource, or releases it twice; it may do so also inside the functions of cuda-bindings, which run
Python code after the driver's. So the call and the entry are one compiled step here, and a release is done or not
begun. Results that Python code must see go into a list that the step fills (`call_into`), and are found there by
the code that cleans up. Rejected: `try` and `finally` in Python, which begin an instruction too late.
Test: tests/backends/nvidia/test_interrupts.py::test_interrupt_at_each_point_of_the_port_loses_nothing
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

from typing_extensions import disjoint_base

from forebay.backends.nvidia.calls import Context
from forebay.errors import OutOfMemory
from forebay.vendor import ReleaseLog

FUNCTIONS: Final[tuple[str, ...]]  # of the driver, which `load` sets

def load(addresses: Mapping[str, int]) -> None: ...  # by name; before the first call of the others

@disjoint_base
class DriverMemory:
    """Base class of a port: the memory that the driver has provided, by address. A release is done or not begun."""

    @property
    def context(self) -> Context: ...
    @property
    def name(self) -> str: ...
    @property
    def segments(self) -> dict[int, tuple[int, int]]: ...  # what the driver returned, and the size
    @property
    def shared_handles(self) -> dict[int, bytes]: ...  # of segments, by what the driver returned
    @property
    def pinned(self) -> dict[int, int]: ...  # sizes, as the next two
    @property
    def managed(self) -> dict[int, int]: ...
    @property
    def pinned_in_place(self) -> dict[int, int]: ...
    @property
    def releases(self) -> ReleaseLog: ...  # see `forebay.vendor.MemorySource`
    def __init__(self, context: Context) -> None: ...
    def out_of_memory(self, nbytes: int, function: str) -> OutOfMemory: ...  # implemented by a subclass
    def reserve(self, nbytes: int) -> int: ...
    def release(self, address: int) -> None: ...
    def unpin(self, address: int) -> None: ...
    def pin_in_place(self, address: int, nbytes: int) -> None: ...
    def unpin_in_place(self, address: int) -> None: ...
    def release_managed(self, address: int) -> None: ...

# Map new memory with the driver's properties to a page of the current context's address space. Returns the driver's
# code, and the function that returned it. Memory that is mapped, or not, but not released by its handle, is appended.
def map_page(properties: int, page: int, nbytes: int, unreleased: list[int]) -> tuple[int, str]: ...

# Call a function of the driver and, if it succeeds, append what it returns with the function that destroys it. Returns
# the result.
def obtain(
    handles: list[tuple[str, Any]], destroy: str, function: Callable[..., Any], *arguments: Any
) -> tuple[Any, ...]: ...

# Take the last entry, a function and its handle, and call it; the entry is kept if the call fails. Returns the driver's
# code; None without an entry. The functions of cuda-bindings would not do: they run Python code after the driver's.
def destroy_last(handles: list[tuple[str, Any]]) -> int | None: ...

# Free reserved addresses, and append the driver's code.
def free_addresses(address: int, nbytes: int, codes: list[int]) -> None: ...

# Close memory of another process once, and count that. Returns the driver's code.
def close_memory(opened: dict[int, int], address: int) -> int: ...
