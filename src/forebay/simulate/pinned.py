"""The pinned allocator over simulated memory."""

from __future__ import annotations

from typing import Any

from forebay.address_allocator import Addresses
from forebay.backends.common.arguments import index_of
from forebay.byte_sizes import format_bytes
from forebay.errors import DeviceError, ForebayError
from forebay.runtime.history import recording
from forebay.runtime.pinned.pinned_allocator import PinnedAllocator, PinnedBlock
from forebay.runtime.settings import allocator_settings as rules
from forebay.simulate.clock import Streams, World

__all__ = ["Pinned"]

_HOST, _ROOM = 0x300000000000, 0x100000000000


class Pinned(Streams):
    """Simulated pinned host memory, cached as PyTorch does; streams and holds as a `Device` of its world has them.

    `settings` are PyTorch's, of which only those that begin with ``pinned_`` count here. Where a background thread
    would look after what waits (pinned_use_background_threads), that is done after every call.

    >>> from forebay.simulate import Pinned
    >>> pinned = Pinned()
    >>> address = pinned.allocate(5000)
    >>> pinned.free(address)
    >>> pinned.stats()["allocated_bytes.current"]
    8192
    """

    def __init__(self, settings: str = "", *, world: World | None = None) -> None:
        super().__init__(world or World())
        self._settings = rules.at_start(settings)
        self._port = _Port()
        self._allocator = _Allocator("pinned memory", self._port, lambda: self._settings, lambda: 0)
        self._live: dict[int, PinnedBlock] = {}

    def allocate(self, nbytes: int) -> int:
        """The address of a block; 0 for 0 bytes. Raises ValueError for a negative size."""
        if nbytes == 0:
            return 0
        block = self._allocator.allocate(nbytes)
        self._live[block.address] = block
        return block.address

    def free(self, address: int) -> None:
        """Free the block that begins there; 0 is ignored."""
        if address:
            self._block(address).free()
            del self._live[address]
            self._time_goes_on()

    def record_stream(self, address: int, stream: int) -> None:
        """The stream copies from or to the block: once freed, it waits for what is queued there."""
        if address:
            self._block(address).used_on(self._queue(stream))

    def empty_cache(self) -> None:
        """Give back to the system all that is free."""
        self._allocator.empty()

    def apply_settings(self, settings: str) -> None:
        """New settings from now on. As in PyTorch, the reserved segment is what it was at the first allocation."""
        rules.change(settings, self._settings, self._set)

    def reset_peak_stats(self) -> None:
        self._allocator.reset_peaks()

    def reset_accumulated_stats(self) -> None:
        self._allocator.reset_accumulated()

    def fail_next(self, n: int) -> None:
        """The next `n` requests to the system fail."""
        self._port.failures = index_of(n, "n")

    def record_history(
        self,
        enabled: str | None = "all",
        context: str | None = "all",
        stacks: str = "all",
        max_entries: int = recording.UNLIMITED,
        *,
        clear_history: bool = False,
    ) -> None:
        """As `torch.cuda.memory._record_memory_history` with `record_pinned_host_memory=True`."""
        recording.check(enabled, context, stacks, max_entries)
        self._allocator.history.start(enabled, context, max_entries, clear_history=clear_history)

    def stats(self) -> dict[str, int]:
        """All that is counted, under the keys of torch.cuda.host_memory_stats. Nothing here takes time."""
        return self._allocator.stats()

    def snapshot(self) -> dict[str, Any]:
        """What torch.cuda.memory._snapshot says of pinned memory; empty lists unless its history is recorded."""
        return {"host_segments": self._allocator.segments(), "host_traces": self._allocator.history.traces()}

    def broken(self) -> str | None:
        """The first rule of the allocator's tables that does not hold; None when all do."""
        return self._allocator.broken()

    def _set(self, settings: rules.AllocatorSettings) -> None:
        self._settings = settings

    def _time_goes_on(self) -> None:
        if self._allocator.polled:
            self._allocator.process()

    def _block(self, address: int) -> PinnedBlock:
        try:
            return self._live[address]
        except KeyError:
            raise ForebayError(f"invalid pinned pointer: {address:#x}") from None


class _Allocator(PinnedAllocator):
    polled = False

    def _poll(self) -> bool:
        self.polled = True
        return True


class _Port:
    """The system under it."""

    def __init__(self) -> None:
        self.failures = 0
        self._addresses = Addresses(_HOST, _ROOM)

    def pin(self, nbytes: int) -> int:
        if self.failures or nbytes > _ROOM:
            self.failures = max(self.failures - 1, 0)
            raise DeviceError(f"{format_bytes(nbytes)} of host memory cannot be pinned", call="pin")
        return self._addresses.take(nbytes)

    def unpin(self, address: int) -> None:
        self._addresses.give(address)
