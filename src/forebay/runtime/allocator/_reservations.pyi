"""Steps of an allocator that no signal handler or RecursionError can split.

# Note [Reservations are one step]
A signal handler that raises (Ctrl-C, a timer) may do so between any two Python instructions: also between the return of
`Port.reserve` and the statement that stores the address, and the segment would be lost. Python cannot defer the
exception, so these functions are compiled: they call the port and change the table without an instruction in between.
For the same reason a release removes an entry and calls the port in one step. The pool adopts a segment and allocates
its first block in one call, or another thread would get the block, and the request that reserved it would fail. A port
written in Python can still be interrupted inside its own method. Rejected: a second search for the block, and `try`
around the call, which begins after it.
Test: tests/process/test_interrupts.py::test_interrupts_lose_no_memory,
  tests/runtime/allocator/test_segment_allocator.py::test_new_segment_serves_the_request_that_reserved_it
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol, Self, TypeAlias, TypeVar

from typing_extensions import disjoint_base

from forebay._core import Block

_What = TypeVar("_What")
_Entry: TypeAlias = tuple[int, int]
_Release: TypeAlias = Callable[[], object]

class _Owner(Protocol):
    address: int
    freed: bool

class _Allocator(Protocol):
    num_reserved: int
    def adopt_and_allocate(
        self, need: int, address: int, segment: int, queue: int, pool_number: int, /
    ) -> Block | None: ...
    def owns(self, address: int, /) -> bool: ...

class _Releases(Protocol):
    num_released: int

class _Pool(Protocol):
    users: int

@disjoint_base
class PoolUser:
    """A user of a private pool, from its creation until `end` or its deletion."""

    def __new__(cls, pool: _Pool) -> Self: ...
    @property
    def pool(self) -> Any: ...  # None after `end`
    def end(self) -> None: ...  # once

# Reserve a segment, have the pool adopt it, allocate a block in it, and count the segment. If the pool fails, the
# segment is released.
def reserve_and_adopt(
    pool: _Allocator,
    reserve: Callable[[_What], int],
    what: _What,
    release: Callable[[int], object],
    need: int,
    segment: int,
    queue: int,
    pool_number: int,
) -> Block | None: ...

# Reserve memory for an object that releases it unless it is `freed`.
def reserve_into(owner: _Owner, reserve: Callable[[int], int], nbytes: int) -> None: ...

# Append the function that releases the memory of an object, once.
def free_into(entries: list[_Release], owner: _Owner, release: _Release) -> None: ...

# Remove a function and call it, unless it is not there.
def call_entry(entries: list[_Release], entry: _Release) -> None: ...

# Append each segment that can be evicted, with a serial number.
def evict_into(
    entries: list[_Entry],
    addresses: Iterable[int],
    evict: Callable[[int, int], Any],
    stack: int,
    serial: Iterator[int],
) -> None: ...

# Remove an entry, release its segment and count it; return False if it is not there. After DeviceError it is an entry
# again.
def release_entry(owner: _Releases, entries: list[_Entry], entry: _Entry, release: Callable[[int], object]) -> bool: ...
