"""Simulated pinned host memory."""

from __future__ import annotations

from typing import Any

from forebay._base.address_allocator import AddressAllocator
from forebay._base.byte_sizes import format_bytes
from forebay.backends.common.arguments import index_of
from forebay.errors import DeviceError, ForebayError
from forebay.runtime.history import recording
from forebay.runtime.pinned.pinned_allocator import PinnedAllocator, PinnedBlock
from forebay.runtime.settings import configuration
from forebay.runtime.settings.allocator_settings import AllocatorSettings
from forebay.simulate.clock import Streams, World

__all__ = ["Pinned"]

_BASE, _SIZE = 0x300000000000, 0x100000000000


class Pinned(Streams):
    """Simulated pinned host memory with PyTorch's caching host allocator.

    With pinned_use_background_threads, pending frees are processed after every call instead of by a thread.

    Parameters
    ----------
    settings : str, default ""
        Allocator settings, as PYTORCH_CUDA_ALLOC_CONF. Only keys that begin with ``pinned_`` have an effect.
    world : World, optional
        The clock, shared with devices; a new one by default.

    Raises
    ------
    ValueError
        With PyTorch's text, if a setting is invalid.

    Examples
    --------
    >>> from forebay.simulate import Pinned
    >>> pinned = Pinned()
    >>> address = pinned.allocate(5000)
    >>> pinned.free(address)
    >>> pinned.stats()["allocated_bytes.current"]
    8192
    """

    def __init__(self, settings: str = "", *, world: World | None = None) -> None:
        super().__init__(world or World())
        self._settings = configuration.parse_initial(settings)
        self._port = _Port()
        self._allocator = _Allocator("pinned memory", self._port, lambda: self._settings, lambda: 0)
        self._live: dict[int, PinnedBlock] = {}

    def allocate(self, nbytes: int) -> int:
        """Allocate a block and return its address; 0 for 0 bytes.

        Parameters
        ----------
        nbytes : int
            Bytes.

        Raises
        ------
        DeviceError
            If the system cannot pin the memory.
        ValueError
            If `nbytes` is negative.
        """
        if nbytes == 0:
            return 0
        block = self._allocator.allocate(nbytes)
        self._live[block.address] = block
        return block.address

    def free(self, address: int) -> None:
        """Free a block.

        Parameters
        ----------
        address : int
            The block's address; 0 is ignored.

        Raises
        ------
        ForebayError
            If no live block begins there.
        """
        if address:
            self._block(address).free()
            del self._live[address]
            self._on_progress()

    def record_stream(self, address: int, stream: int) -> None:
        """Record that a stream copies from or to a block, so that its free waits for work queued there.

        Parameters
        ----------
        address : int
            The block's address; 0 is ignored.
        stream : int
            The stream.

        Raises
        ------
        ForebayError
            If no live block begins there.
        """
        if address:
            self._block(address).record_stream(self._queue(stream))

    def empty_cache(self) -> None:
        """Release all cached memory to the system."""
        self._allocator.empty()

    def apply_settings(self, settings: str) -> None:
        """Change the allocator settings.

        As in PyTorch, the size of the reserved segment is fixed by the first allocation.

        Parameters
        ----------
        settings : str
            The settings, as in the constructor.

        Raises
        ------
        ValueError
            With PyTorch's text, if a setting is invalid.
        """
        configuration.change(settings, self._settings, self._set)

    def reset_peak_stats(self) -> None:
        """Reset the peaks to the current values."""
        self._allocator.reset_peaks()

    def reset_accumulated_stats(self) -> None:
        """Reset the totals of allocations and frees to 0."""
        self._allocator.reset_accumulated()

    def fail_next(self, n: int) -> None:
        """Make the next requests to the system fail.

        Parameters
        ----------
        n : int
            The number of requests.
        """
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
        """Start, change or stop the recording of the memory history.

        As `torch.cuda.memory._record_memory_history` with `record_pinned_host_memory=True`.

        Parameters
        ----------
        enabled : {"all", "state"} or None, default "all"
            Record all entries, only live blocks, or stop.
        context : {"all", "alloc", "state"} or None, default "all"
            The stacks to capture: also of frees, also of entries, only of live blocks, or none.
        stacks : {"all", "python"}, default "all"
            Whether stacks include the innermost frames of forebay's own functions; they are Python stacks.
        max_entries : int, optional
            Number of entries; the newest are kept. Unlimited by default.
        clear_history : bool, default False
            Discard earlier entries.
        """
        recording.check(enabled, context, stacks, max_entries)
        self._allocator.history.start(enabled, context, max_entries, clear_history=clear_history, stacks=stacks)

    def stats(self) -> dict[str, int]:
        """Return the allocator statistics, with the keys of `torch.cuda.host_memory_stats`. Durations are 0."""
        return self._allocator.stats()

    def snapshot(self) -> dict[str, Any]:
        """Return the pinned memory's part of a snapshot.

        Returns
        -------
        dict
            "host_segments" and "host_traces" of `torch.cuda.memory._snapshot`; empty unless history is recorded.
        """
        return {"host_segments": self._allocator.segments(), "host_traces": self._allocator.history.traces()}

    def broken(self) -> str | None:
        """Return the first violated invariant of the allocator; None if all hold."""
        return self._allocator.check_invariants()

    def _set(self, settings: AllocatorSettings) -> None:
        self._settings = settings

    def _on_progress(self) -> None:
        if self._allocator.polled:
            self._allocator.process_pending_frees()

    def _block(self, address: int) -> PinnedBlock:
        try:
            return self._live[address]
        except KeyError:
            raise ForebayError(f"invalid pinned pointer: {address:#x}") from None


class _Allocator(PinnedAllocator):
    """A pinned allocator that requests polling from `Pinned` instead of starting a thread."""

    polled = False

    def _start_poller(self) -> bool:
        self.polled = True
        return True


class _Port:
    """The system's pinned memory."""

    def __init__(self) -> None:
        self.failures = 0
        self._addresses = AddressAllocator(_BASE, _SIZE)

    def pin(self, nbytes: int) -> int:
        if self.failures or nbytes > _SIZE:
            self.failures = max(self.failures - 1, 0)
            raise DeviceError(f"{format_bytes(nbytes)} of host memory cannot be pinned", call="pin")
        return self._addresses.allocate(nbytes)

    def unpin(self, address: int) -> None:
        self._addresses.free(address)
