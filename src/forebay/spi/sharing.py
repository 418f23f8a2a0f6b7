"""Memory and events shared between processes, an optional ability of ports."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from forebay.spi.required import Queue

__all__ = ["SharedMark", "Shares"]


class SharedMark(Protocol):
    """An event that several processes share.

    Each record of the event is identified by a word, which is valid in all processes; 0 stands for no record. The
    caller keeps the event alive until the work that it queued with it is done. Methods raise DeviceError if the process
    that made the event has dropped it.
    """

    @property
    def handle(self) -> bytes:
        """Handle of 64 bytes with which another process opens the event."""

    def record(self, queue: Queue) -> int:
        """Record the event behind the work of a queue, and return the word of the record.

        Parameters
        ----------
        queue : Queue
            A queue of this process.
        """

    def last(self) -> int:
        """Return the word of the last record, by any process; 0 before."""

    def reached(self, word: int) -> bool:
        """Return True if a record has been reached, without blocking.

        Parameters
        ----------
        word : int
            Word of the record.
        """

    def wait(self, word: int) -> None:
        """Block the calling thread until a record has been reached.

        Parameters
        ----------
        word : int
            Word of the record.

        Raises
        ------
        DeviceError
            If the recording process ended before.
        """

    def wait_for(self, queue: Queue, word: int) -> None:
        """Make all work that is queued later wait until a record has been reached. Does not block the host.

        Parameters
        ----------
        queue : Queue
            The queue that waits. Its work fails if the recording process ends before.
        word : int
            Word of the record.
        """


@runtime_checkable
class Shares(Protocol):
    """A Port whose memory and events other processes of this machine can open.

    Handles have 64 bytes. Opening a stale or forged handle, a handle of the calling process or a handle of a process
    that has ended raises DeviceError.
    """

    def share(self, address: int) -> tuple[bytes, int]:
        """Share the segment that contains an address.

        Parameters
        ----------
        address : int
            Address in memory that `Port.reserve` returned.

        Returns
        -------
        tuple
            Handle of the segment, and offset of the address in the segment in bytes.

        Raises
        ------
        Unsupported
            If memory of this type cannot be shared; for memory of `Growable`, with that ability's name.
        """

    def open_shared(self, handle: bytes) -> tuple[int, int]:
        """Map a segment of another process.

        Parameters
        ----------
        handle : bytes
            Handle of the segment.

        Returns
        -------
        tuple of int
            Address and size in bytes. Valid until `close_shared`.
        """

    def close_shared(self, address: int) -> None:
        """Unmap a segment of another process.

        Parameters
        ----------
        address : int
            Address that `open_shared` returned.
        """

    def make_mark(self) -> SharedMark:
        """Create a shared event."""

    def open_mark(self, handle: bytes) -> SharedMark:
        """Open a shared event of another process.

        Parameters
        ----------
        handle : bytes
            Handle of the event.
        """
