"""Optional abilities of ports: pinned and managed memory, growth, capacity, other libraries, fork, idle queues."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol, runtime_checkable

from forebay.spi.required import Queue

__all__ = [
    "ExternalQueues",
    "Growable",
    "IdentifiesMemory",
    "Managed",
    "PinnedHost",
    "PinsInPlace",
    "ProcessUsage",
    "ReportsIdle",
    "Resizable",
    "SurvivesFork",
]


@runtime_checkable
class PinnedHost(Protocol):
    """A Port that allocates pinned (page-locked) host memory, which queues copy without blocking the host."""

    def pin(self, nbytes: int) -> int:
        """Allocate pinned host memory and return its address.

        Parameters
        ----------
        nbytes : int
            Size in bytes.
        """

    def unpin(self, address: int) -> None:
        """Free pinned host memory.

        Parameters
        ----------
        address : int
            Address that `pin` returned.
        """


@runtime_checkable
class Managed(Protocol):
    """A Port that allocates managed memory, which both its queues and the host can access."""

    def reserve_managed(self, nbytes: int) -> int:
        """Allocate managed memory. It does not count as memory of the device.

        Parameters
        ----------
        nbytes : int
            Size in bytes.

        Returns
        -------
        int
            Address, aligned as by `Port.reserve`.

        Raises
        ------
        OutOfMemory
            If there is no memory.
        """

    def release_managed(self, address: int) -> None:
        """Free managed memory.

        Parameters
        ----------
        address : int
            Address that `reserve_managed` returned.
        """


@runtime_checkable
class PinsInPlace(Protocol):
    """A Port that pins existing host memory in place, as `cudaHostRegister` does."""

    def pin_in_place(self, address: int, nbytes: int) -> None:
        """Pin a range of host memory.

        Parameters
        ----------
        address : int
            Address of memory that its owner keeps.
        nbytes : int
            Size in bytes.
        """

    def unpin_in_place(self, address: int) -> None:
        """Unpin a range of host memory.

        Parameters
        ----------
        address : int
            Address that was passed to `pin_in_place`.
        """


@runtime_checkable
class Growable(Protocol):
    """A Port that reserves address space and commits memory to its pages later.

    Addresses and sizes are multiples of the page size. A call may be interrupted at any point and is then repeated or
    undone. So `commit` must accept pages that are committed, which keep their contents, and `decommit` must accept
    pages that are not.
    """

    def reserve_space(self, nbytes: int, page: int) -> int:
        """Reserve address space without memory.

        Parameters
        ----------
        nbytes : int
            Size in bytes, a multiple of `page`.
        page : int
            Page size in bytes.

        Returns
        -------
        int
            Address, aligned as by `Port.reserve`.

        Raises
        ------
        OutOfMemory
            If there is no address space.
        """

    def release_space(self, address: int) -> None:
        """Release address space.

        Parameters
        ----------
        address : int
            Address that `reserve_space` returned.

        Raises
        ------
        WrongState
            If any of its pages is committed.
        """

    def commit(self, address: int, nbytes: int) -> None:
        """Commit memory to a range of pages: to all of them or, if it raises, to none.

        Parameters
        ----------
        address : int
            Address of the first page.
        nbytes : int
            Size in bytes.

        Raises
        ------
        OutOfMemory
            If the device is full.
        """

    def decommit(self, address: int, nbytes: int) -> None:
        """Return the memory of a range of pages to the device and keep the address space.

        The caller has waited for the queues. A port that cannot report an access to these pages as an error waits for
        the work that was queued since, and raises WrongState on a queue's own thread, which cannot wait.

        Parameters
        ----------
        address : int
            Address of the first page.
        nbytes : int
            Size in bytes. The range need not be one that was committed in one call.
        """


@runtime_checkable
class ProcessUsage(Protocol):
    """A Port that reports which processes use its device."""

    def process_memory(self) -> Mapping[int, int]:
        """Return the bytes that each process uses, by process id.

        Raises
        ------
        DeviceError
            If the system does not report it.
        """


@runtime_checkable
class Resizable(Protocol):
    """A Port whose memory capacity can be changed."""

    def set_capacity(self, nbytes: int) -> None:
        """Set the capacity.

        Parameters
        ----------
        nbytes : int
            Capacity in bytes.

        Raises
        ------
        WrongState
            If more than that is reserved.
        """


@runtime_checkable
class ExternalQueues(Protocol):
    """A Port whose device other libraries of the process use, too, on queues that they create.

    The creator of such a queue may destroy it when it has no more use for it. So only methods that use the queue
    explicitly may access it: `reached`, `wait` and `close` must not, and `close` completes no work but that before the
    last tick.
    """

    def external_queue(self, handle: int) -> Queue:
        """Return a queue that another library created.

        Parameters
        ----------
        handle : int
            The driver's handle of the queue, which its creator keeps alive.

        Returns
        -------
        Queue
            The same object for the same handle until it is closed. Closing it does not destroy the creator's queue.

        Raises
        ------
        DeviceError
            If the handle is invalid, or belongs to another device or context.
        """

    def synchronize(self) -> None:
        """Block until all work of the process on the device has completed, that of other libraries included.

        Raises
        ------
        DeviceError
            If the device has failed.
        """


@runtime_checkable
class IdentifiesMemory(Protocol):
    """A Port that identifies memory by its address, also memory that other libraries allocated."""

    def memory_device(self, address: int) -> int | None:
        """Return the device on which memory is.

        Parameters
        ----------
        address : int
            An address.

        Returns
        -------
        int or None
            The index of the device; this port's index for memory of the host that the device can access; None for
            other memory of the host.
        """


@runtime_checkable
class ReportsIdle(Protocol):
    """A Port that tests all its queues in one call."""

    def settled(self) -> bool:
        """Return True if a wait for any queue would return at once and not raise.

        Returns
        -------
        bool
            False while work is pending on a queue, or until `Queue.wait` has raised the failure of a queue's work.
        """


@runtime_checkable
class SurvivesFork(Protocol):
    """A Port that a forked child process continues to use, with its own copy of the memory and idle queues."""

    def before_fork(self, seconds: float) -> None:
        """Wait until the queued work has completed, at most for some time. Called in the parent.

        Parameters
        ----------
        seconds : float
            Time limit. Work that is still pending is the parent's alone.
        """

    def after_fork_in_child(self) -> None:
        """Continue in the child: the queues accept work, and all their ticks are reached.

        No thread of the parent exists, and locks may be held by those that do not. If work of a queue was pending at
        the fork, the next wait for that queue raises DeviceError.
        """
