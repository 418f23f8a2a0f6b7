"""Steps of an allocator that no signal handler or RecursionError can split.

That of a port written in Python can still be interrupted inside the port's own method.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol, TypeAlias, TypeVar

from forebay._core import Block, Pool

_What = TypeVar("_What")
_Entry: TypeAlias = tuple[int, int]

class _Owner(Protocol):
    address: int
    freed: bool

# Reserve a segment, have the pool adopt it, and allocate a block in it. If the pool fails, the segment is released.
def reserve_and_adopt(
    pool: Pool,
    reserve: Callable[[_What], int],
    what: _What,
    release: Callable[[int], object],
    need: int,
    segment: int,
    queue: int,
    partition: int,
) -> Block: ...

# Reserve memory for an object that releases it unless it is `freed`.
def reserve_into(owner: _Owner, reserve: Callable[[int], int], nbytes: int) -> None: ...

# Append each segment that can be evicted, with a serial number.
def evict_into(
    entries: list[_Entry],
    addresses: Iterable[int],
    evict: Callable[[int, int], Any],
    stack: int,
    serial: Iterator[int],
) -> None: ...

# Remove an entry and release its segment; return False if it is not there. After DeviceError it is an entry again.
def release_entry(entries: list[_Entry], entry: _Entry, release: Callable[[int], object]) -> bool: ...
