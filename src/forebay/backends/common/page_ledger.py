"""Bookkeeping of committed pages for backends with the ability `Growable`; makes no system call.

A page is counted from `PageLedger.begin_commit` on, before the system call, and until a system call has decommitted it.
Graphs can use it from `admit` on, after the system call, and until `withdraw`.
"""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

from forebay._base.byte_sizes import format_bytes
from forebay.backends.common.arguments import integer_of, size_of
from forebay.errors import DeviceError, WrongState

if TYPE_CHECKING:
    from forebay.backends.common._releases import ReleaseLog

__all__ = ["AddressSpace", "PageLedger", "check_space_arguments"]

_NONE, _COMMITTED, _WITHDRAWN = b"\0", b"\1", b"\2"  # marks of a page


def check_space_arguments(nbytes: object, page: object, smallest: int = 1) -> tuple[int, int]:
    """Return the validated size and page size of `reserve_space`.

    Parameters
    ----------
    nbytes : object
        Size of the address space in bytes.
    page : object
        Page size in bytes.
    smallest : int, default 1
        The system's page size in bytes.

    Raises
    ------
    ValueError
        If `nbytes` is not a multiple of `page`, or `page` not one of `smallest`.
    """
    size, step = size_of(nbytes), size_of(page, "page")
    if step % smallest:
        raise ValueError(f"page must be a multiple of the system's {smallest} bytes, not {step}")
    if size % step:
        raise ValueError(f"nbytes must be a multiple of page, but {size} is not a multiple of {step}")
    return size, step


class AddressSpace:
    """A range of reserved address space, with one byte per page: 0 if the page has no memory.

    The other values are 1 for a committed page, and 2 for one that is counted, but withdrawn from graphs: the system
    commits or decommits it now.

    Parameters
    ----------
    address : int
        Address of the range.
    nbytes : int
        Size in bytes.
    page : int
        Page size in bytes.
    """

    def __init__(self, address: int, nbytes: int, page: int) -> None:
        self.address = address
        self.nbytes = nbytes
        self.page = page
        self.marks: bytearray = bytearray(nbytes // page)

    @property
    def held(self) -> int:
        """Committed bytes."""
        return (len(self.marks) - self.marks.count(0)) * self.page

    def uncommitted(self, address: int, nbytes: int) -> list[tuple[int, int]]:
        """Return address and size in bytes of each uncommitted part of a range of pages.

        Parameters
        ----------
        address : int
            Address of the first page.
        nbytes : int
            Size in bytes.
        """
        return self._runs(address, nbytes, committed=0)

    def memory(self) -> list[tuple[int, int]]:
        """Return address and size in bytes of each committed part, without those that are withdrawn."""
        return self._runs(self.address, self.nbytes, committed=1)

    def committed_in(self, address: int, nbytes: int) -> int:
        """Return the number of committed bytes in a range of pages.

        Parameters
        ----------
        address : int
            Address of the first page.
        nbytes : int
            Size in bytes.
        """
        first, last = self.pages(address, nbytes)
        return (last - first - self.marks.count(0, first, last)) * self.page

    def has_uncommitted(self, address: int, nbytes: int) -> bool:
        """Return True if any byte of a range is uncommitted.

        Parameters
        ----------
        address : int
            Any address in this space.
        nbytes : int
            Size in bytes; the range need not consist of whole pages.
        """
        first, last = address - self.address, address + nbytes - 1 - self.address
        return self.marks.find(0, first // self.page, last // self.page + 1) >= 0

    def pages(self, address: int, nbytes: int) -> tuple[int, int]:
        """Return the numbers of the first page of a range and of the page after its last one.

        Parameters
        ----------
        address : int
            Address of the first page.
        nbytes : int
            Size in bytes.
        """
        return (address - self.address) // self.page, (address + nbytes - self.address) // self.page

    def _runs(self, address: int, nbytes: int, *, committed: int) -> list[tuple[int, int]]:
        runs = []
        start, end = self.pages(address, nbytes)
        marks = self.marks[start:end].replace(_WITHDRAWN, bytes([not committed]))
        at = 0
        while (first := marks.find(committed, at)) >= 0:
            at = marks.find(not committed, first)
            if at < 0:
                at = len(marks)
            runs.append((self.address + (start + first) * self.page, (at - first) * self.page))
        return runs


class PageLedger:
    """The address space of a port. Callers serialise the calls.

    Parameters
    ----------
    name : str
        Name of the device, for errors.
    """

    def __init__(self, name: str) -> None:
        self.held: int = 0  # committed bytes
        self._name = name
        self._spaces: dict[int, AddressSpace] = {}

    def add(self, space: AddressSpace) -> None:
        """Record a reservation.

        Parameters
        ----------
        space : AddressSpace
            The reserved space.
        """
        self._spaces[space.address] = space

    def find_empty(self, address: object) -> AddressSpace:
        """Return a reservation that can be released: none of its pages is committed.

        Parameters
        ----------
        address : object
            Address that `reserve_space` returned.

        Raises
        ------
        DeviceError
            If no space begins at the address.
        WrongState
            If any page is committed.
        """
        start = integer_of(address, "address")
        space = self._spaces.get(start)
        if space is None:
            raise self._unknown("release_space", start)
        if space.held:
            held = format_bytes(space.held)
            raise WrongState(f"{self._name}: {held} of the address space at {start:#x} are committed: decommit first")
        return space

    def remove(self, space: AddressSpace) -> None:
        """Remove a reservation.

        Parameters
        ----------
        space : AddressSpace
            The space.
        """
        self._spaces.pop(space.address, None)

    def find_range(self, call: str, address: object, nbytes: object) -> tuple[AddressSpace, int, int]:
        """Return the space of a range, and its validated address and size, for `commit` or `decommit`.

        Parameters
        ----------
        call : str
            Name of the method, for errors.
        address : object
            Address of the first page.
        nbytes : object
            Size in bytes.

        Raises
        ------
        DeviceError
            If no space contains the range.
        ValueError
            If the range does not consist of whole pages.
        """
        start, size = integer_of(address, "address"), size_of(nbytes)
        space = self.at(start, size)
        if space is None:
            raise self._unknown(call, start)
        if (start - space.address) % space.page or size % space.page:
            raise ValueError(f"{call} requires whole pages of {space.page} bytes, not {size} bytes at {start:#x}")
        return space, start, size

    def write(self, space: AddressSpace, address: int, nbytes: int, *, held: bool) -> None:
        """Record that a range of pages is committed or not.

        Parameters
        ----------
        space : AddressSpace
            The space that contains the range.
        address : int
            Address of the first page.
        nbytes : int
            Size in bytes.
        held : bool
            Whether the pages are committed from now on.
        """
        first, last = space.pages(address, nbytes)
        marks = bytes([held]) * (last - first)
        change = nbytes * held - space.committed_in(address, nbytes)
        # No call from here on, so that no signal handler runs between the two assignments.
        space.marks[first:last] = marks
        self.held += change

    def begin_commit(self, space: AddressSpace, address: int, nbytes: int) -> None:
        """Count a range of pages that the system commits now: `memory` has them only from `admit` on.

        Parameters
        ----------
        space : AddressSpace
            The space that contains the range.
        address : int
            Address of the first page.
        nbytes : int
            Size in bytes. Pages that are committed already stay so.
        """
        first, last = space.pages(address, nbytes)
        marks = space.marks[first:last].replace(_NONE, _WITHDRAWN)
        change = nbytes - space.committed_in(address, nbytes)
        # No call from here on, so that no signal handler runs between the two assignments.
        space.marks[first:last] = marks
        self.held += change

    def withdraw(self, space: AddressSpace, address: int, nbytes: int, releases: ReleaseLog) -> None:
        """Record that a range of pages is decommitted next: `memory` lacks them from now on.

        Parameters
        ----------
        space : AddressSpace
            The space that contains the range.
        address : int
            Address of the first page.
        nbytes : int
            Size in bytes.
        releases : ReleaseLog
            The releases of the port's memory.
        """
        releases.note(address, nbytes)  # a capture that ends between the next two lines knows the release
        self._exchange(space, address, nbytes, _COMMITTED, _WITHDRAWN)
        releases.note(address, nbytes)

    def admit(self, space: AddressSpace, address: int, nbytes: int) -> None:
        """Record that graphs can use a range of pages: it was committed, or is not decommitted after all.

        Parameters
        ----------
        space : AddressSpace
            The space that contains the range.
        address : int
            Address of the first page.
        nbytes : int
            Size in bytes.
        """
        self._exchange(space, address, nbytes, _WITHDRAWN, _COMMITTED)

    def _exchange(self, space: AddressSpace, address: int, nbytes: int, old: bytes, new: bytes) -> None:
        first, last = space.pages(address, nbytes)
        space.marks[first:last] = space.marks[first:last].replace(old, new)

    def at(self, address: int, nbytes: int) -> AddressSpace | None:
        """Return the space that contains a range; None if there is none.

        Parameters
        ----------
        address : int
            Address of the range.
        nbytes : int
            Size in bytes.
        """
        for space in tuple(self._spaces.values()):  # a copy: a destructor may add a space during the loop
            if space.address <= address and address + nbytes <= space.address + space.nbytes:
                return space
        return None

    def mappings(self) -> list[tuple[int, int]]:
        """Return address and size in bytes of each reservation."""
        return [(space.address, space.nbytes) for space in tuple(self._spaces.values())]

    def memory(self) -> list[tuple[int, int]]:
        """Return address and size in bytes of each committed range, without those that are withdrawn."""
        return [span for space in tuple(self._spaces.values()) for span in space.memory()]

    def clear(self) -> list[AddressSpace]:
        """Remove and return all reservations."""
        spaces = [*self._spaces.values()]
        self._spaces.clear()
        self.held = 0
        return spaces

    def _unknown(self, call: str, address: int) -> DeviceError:
        message = f"{self._name}: {address:#x} is not in address space that `reserve_space` returned"
        return DeviceError(message, code=errno.EINVAL, call=call, device=self._name)
