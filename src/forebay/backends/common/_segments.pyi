"""Memory segments of a host port, and the mappings behind them.

`reserve` and `release` are one step each: if an exception leaves them, also that of a signal handler, either nothing is
reserved, or the memory is released. If queued work still uses it, a later call of either unmaps it.
"""

from abc import abstractmethod

from typing_extensions import disjoint_base

from forebay.backends.common._releases import ReleaseLog
from forebay.errors import DeviceError, OutOfMemory

ALIGNMENT: int  # of each mapping, and the size of a huge page

# Unmap each range, which is removed first. Raises OSError.
def unmap_all(ranges: list[tuple[int, int]]) -> None: ...
def map_aligned(nbytes: int, *, writable: bool, charged: bool) -> int:
    """Map zeroed memory, aligned to ALIGNMENT, and return its address. Raises OSError if there is none."""

@disjoint_base
class HostSegments:
    """Base class of a port: its segments, which count against the capacity."""

    _closed: bool
    _process: int  # that uses the port
    charged: bool  # see `common.mmap.map_memory`
    name: str
    @property
    def releases(self) -> ReleaseLog: ...  # see `common.captured_memory.MemorySource`
    @property
    def segment_bytes(self) -> int: ...
    def segments(self) -> list[tuple[int, int]]: ...  # address and size of each
    def recount(self) -> None: ...  # counts the segments' bytes anew, as another thread's step was lost in a fork
    def take_segments(self) -> list[tuple[int, int]]: ...  # removes them without unmapping
    def reserve(self, nbytes: int) -> int: ...
    def release(self, address: int) -> None: ...
    def unpin(self, address: int) -> None: ...  # an interrupt is raised when the memory is unmapped
    def release_managed(self, address: int) -> None: ...  # likewise

    # Hooks: a subclass implements them

    @abstractmethod
    def check_open(self) -> None: ...  # raises Forked or WrongState if the port is not usable
    @abstractmethod
    def over_capacity(self) -> bool: ...
    @abstractmethod
    def out_of_memory(self, nbytes: int, error: OSError | None = None, lacks: str = "memory") -> OutOfMemory: ...
    @abstractmethod
    def device_error(self, error: OSError, message: str, remedy: str = "") -> DeviceError: ...
    @abstractmethod
    def on_mapped(self, address: int, nbytes: int, segment: int) -> None: ...
    @abstractmethod
    def on_unmapping(self, address: int, nbytes: int, *, part: bool = False) -> None: ...  # idempotent
    @abstractmethod
    def drain(self) -> None: ...  # waits for the work that is queued now; WrongState if that is not possible
    @abstractmethod
    def settled(self) -> bool: ...  # no work is queued
    @abstractmethod
    def on_released(self, address: int) -> None: ...
