"""Address space of the host device, whose pages come from the system and go back to it as they are asked for.

Memory is counted before it comes and until it has gone. So a call that a signal's handler interrupted leaves too much
counted rather than too little; done once more, it puts that right.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from mmap import PAGESIZE
from typing import TYPE_CHECKING

from forebay.backends.common.mmap import close_pages, map_space, open_pages, unmap_memory
from forebay.backends.common.page_ledger import Space, Spaces, space_of
from forebay.byte_sizes import format_bytes

if TYPE_CHECKING:
    from forebay.backends.host.port import MachinePort

__all__ = ["HostSpaces"]


class HostSpaces:
    """What a MachinePort has of them."""

    def __init__(self, port: MachinePort) -> None:
        self._port = port
        self._spaces = Spaces(port.name)
        # Held during calls to the system: address space that was closed meanwhile may be somebody else's already.
        self._calling = threading.RLock()

    def reserve(self, nbytes: int, page: int) -> int:
        nbytes, page = space_of(nbytes, page, PAGESIZE)
        with self._turn():
            try:
                address = map_space(nbytes)
            except OSError as error:
                raise self._port.out_of_memory(nbytes, error, "address space") from None
            try:
                self._spaces.add(Space(address, nbytes, page))
            except BaseException:
                unmap_memory(address, nbytes)
                raise
        return address

    def release(self, address: int) -> None:
        with self._turn():
            space = self._spaces.take_out(address)
            try:
                self._port.going(space.address, space.nbytes)
                unmap_memory(space.address, space.nbytes)
            except OSError as error:
                self._spaces.add(space)
                raise self._port.refusal(error, "the address space cannot be returned") from None

    def commit(self, address: int, nbytes: int) -> None:
        with self._turn():
            space, address, nbytes = self._spaces.part("commit", address, nbytes)
            bare = space.bare(address, nbytes)
            with self._port.locked():
                self._spaces.write(space, address, nbytes, held=True)  # first, as a destructor may come in between
                if self._port.over():
                    self._forget(space, bare)
                    raise self._port.out_of_memory(nbytes)
            try:
                open_pages(address, nbytes)
                self._port.came(address, nbytes, space.address)
            except (OSError, MemoryError) as error:
                for piece in bare:
                    with suppress(OSError):  # then it is open, and nobody knows
                        close_pages(*piece)
                with self._port.locked():
                    self._forget(space, bare)
                    if isinstance(error, MemoryError):
                        raise
                    raise self._port.out_of_memory(nbytes, error) from None

    def decommit(self, address: int, nbytes: int) -> None:
        with self._turn():
            space, address, nbytes = self._spaces.part("decommit", address, nbytes)
            try:
                self._port.going(address, nbytes, part=True)
                close_pages(address, nbytes)
            except OSError as error:  # the process has too many mappings already
                self._port.came(address, nbytes, space.address)
                message = f"{format_bytes(nbytes)} of memory cannot be returned"
                raise self._port.refusal(error, message) from None
            with self._port.locked():
                self._spaces.write(space, address, nbytes, held=False)

    def holds(self, address: int) -> bool:
        return self._spaces.at(address, 1) is not None

    def close(self) -> None:
        """Returns all of it."""
        with self._calling:
            for space in self._spaces.clear():
                self._port.going(space.address, space.nbytes)
                unmap_memory(space.address, space.nbytes)

    def mappings(self) -> list[tuple[int, int]]:
        """The address space, addresses and sizes."""
        return self._spaces.mappings()

    def memory(self) -> list[tuple[int, int]]:
        """What of it has memory, addresses and sizes."""
        return self._spaces.memory()

    @property
    def held(self) -> int:
        """How many bytes have memory."""
        return self._spaces.held

    def _forget(self, space: Space, pieces: list[tuple[int, int]]) -> None:
        for piece in pieces:
            self._spaces.write(space, *piece, held=False)

    @contextmanager
    def _turn(self) -> Iterator[None]:
        """One call after another; Forked or WrongState where the port cannot be used."""
        with self._port.locked():  # first, as a thread of the parent may have held the other lock at the fork
            pass
        with self._calling:
            with self._port.locked():  # it may have been closed meanwhile
                pass
            yield
