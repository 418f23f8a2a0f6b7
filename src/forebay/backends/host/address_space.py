"""Expandable address space of the CPU device: pages are committed and decommitted by the operating system.

# Note [Pages are counted first]
Memory is counted before it is committed and until it is decommitted. After a call that a signal handler has
interrupted, too much is counted rather than too little, so that the capacity is never exceeded; the caller cannot know
which pages were committed, so repeating the call is permitted and corrects the count. A lock is held during the
system's calls, as address space could otherwise be released, and mapped anew by others, before the call. Rejected:
refusing to commit a page twice, and counting after the system's call, which an interrupt in between would skip.
Test: tests/backends/host/test_address_space.py::test_repeating_an_interrupted_call_corrects_its_effect
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from mmap import PAGESIZE
from typing import TYPE_CHECKING

from forebay._base.byte_sizes import format_bytes
from forebay.backends.common.mmap import commit_pages, decommit_pages, reserve_pages, unmap_memory
from forebay.backends.common.page_ledger import AddressSpace, PageLedger, check_space_arguments

if TYPE_CHECKING:
    from forebay.backends.host.memory_owner import MemoryOwner

__all__ = ["HostAddressSpaces"]


class HostAddressSpaces:
    """The address space of a port; implements `spi.Growable`."""

    def __init__(self, port: MemoryOwner) -> None:
        self._port = port
        self._spaces = PageLedger(port.name)
        # Held during system calls: Note [Pages are counted first].
        self._calling = threading.RLock()

    def reserve(self, nbytes: int, page: int) -> int:
        nbytes, page = check_space_arguments(nbytes, page, PAGESIZE)
        with self._serialised():
            try:
                address = reserve_pages(nbytes, charged=self._port.charged)
            except OSError as error:
                raise self._port.out_of_memory(nbytes, error, "address space") from None
            try:
                self._spaces.add(AddressSpace(address, nbytes, page))
            except BaseException:
                unmap_memory(address, nbytes)
                raise
        return address

    def release(self, address: int) -> None:
        with self._serialised():
            space = self._spaces.find_empty(address)
            self._spaces.remove(space)
            try:
                self._port.on_unmapping(space.address, space.nbytes)
                unmap_memory(space.address, space.nbytes)
            except OSError as error:
                self._spaces.add(space)
                raise self._port.device_error(error, "the address space cannot be released") from None

    def commit(self, address: int, nbytes: int) -> None:
        with self._serialised():
            space, address, nbytes = self._spaces.find_range("commit", address, nbytes)
            uncommitted = space.uncommitted(address, nbytes)
            with self._port.locked():
                self._spaces.begin_commit(space, address, nbytes)  # before the check: a destructor may run between
                if self._port.over_capacity():
                    self._uncount(space, uncommitted)
                    raise self._port.out_of_memory(nbytes)
            try:
                commit_pages(address, nbytes)
                self._port.on_mapped(address, nbytes, space.address)
            except (OSError, MemoryError) as error:
                for span in uncommitted:
                    with suppress(OSError):  # then the pages stay committed, uncounted
                        decommit_pages(*span, charged=self._port.charged)
                with self._port.locked():
                    self._uncount(space, uncommitted)
                    if isinstance(error, MemoryError):
                        raise
                    raise self._port.out_of_memory(nbytes, error) from None
            self._spaces.admit(space, address, nbytes)  # now, as a graph may be launched as soon as `memory` has it

    def decommit(self, address: int, nbytes: int) -> None:
        """Decommit pages; Note [Decommit protocol] (runtime/allocator/expandable_segments.py)."""
        with self._port.locked():
            space, address, nbytes = self._spaces.find_range("decommit", address, nbytes)
            self._spaces.withdraw(space, address, nbytes, self._port.releases)
        try:
            self._port.drain()  # without a lock, which work may need
            with self._serialised():
                self._decommit(space, address, nbytes)
        except BaseException:
            self._spaces.admit(space, address, nbytes)
            raise

    def _decommit(self, space: AddressSpace, address: int, nbytes: int) -> None:
        try:
            self._port.on_unmapping(address, nbytes, part=True)
            decommit_pages(address, nbytes, charged=self._port.charged)
        except OSError as error:  # the process is at its limit of mappings
            self._port.on_mapped(address, nbytes, space.address)
            message = f"{format_bytes(nbytes)} of memory cannot be decommitted"
            raise self._port.device_error(error, message) from None
        with self._port.locked():
            self._spaces.write(space, address, nbytes, held=False)

    def after_fork_in_child(self) -> None:
        """Replace the lock in a forked child, as a thread of the parent may have held it."""
        self._calling = threading.RLock()

    def contains(self, address: int) -> bool:
        return self._spaces.at(address, 1) is not None

    def close(self) -> None:
        """Release all address space."""
        with self._calling:
            for space in self._spaces.clear():
                self._port.on_unmapping(space.address, space.nbytes)
                unmap_memory(space.address, space.nbytes)

    def mappings(self) -> list[tuple[int, int]]:
        """Return address and size of each reservation."""
        return self._spaces.mappings()

    def memory(self) -> list[tuple[int, int]]:
        """Return address and size of each committed range, without those that are about to be decommitted."""
        return self._spaces.memory()

    @property
    def held(self) -> int:
        """Committed bytes."""
        return self._spaces.held

    def _uncount(self, space: AddressSpace, spans: list[tuple[int, int]]) -> None:
        for span in spans:
            self._spaces.write(space, *span, held=False)

    @contextmanager
    def _serialised(self) -> Iterator[None]:
        """Serialise calls. Raises Forked or WrongState if the port is not usable."""
        with self._port.locked():  # first: a thread of the parent may have held the other lock at the fork
            pass
        with self._calling:
            with self._port.locked():  # again: the port may have been closed since
                pass
            yield
