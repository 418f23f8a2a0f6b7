"""Which pages of a port's address space have memory: the books of an ability `Growable`, without a system behind them.

A port that has it writes down what is to come before it asks its system, and what went after that.
"""

from __future__ import annotations

import errno

from forebay.backends.common.arguments import integer_of, size_of
from forebay.byte_sizes import format_bytes
from forebay.errors import DeviceError, WrongState

__all__ = ["Space", "Spaces", "space_of"]


def space_of(nbytes: object, page: object, smallest: int = 1) -> tuple[int, int]:
    """The arguments of `reserve_space`; ValueError where they do not fit together, or the system has no such pages."""
    size, step = size_of(nbytes), size_of(page, "page")
    if step % smallest:
        raise ValueError(f"page must be a multiple of the system's {smallest} bytes, not {step}")
    if size % step:
        raise ValueError(f"nbytes must be a multiple of page, which {size} is not of {step}")
    return size, step


class Space:
    """One reservation of `nbytes` at `address`, a page of it a byte: 1 where there is memory."""

    def __init__(self, address: int, nbytes: int, page: int) -> None:
        self.address = address
        self.nbytes = nbytes
        self.page = page
        self.marks = bytearray(nbytes // page)

    @property
    def held(self) -> int:
        """How many bytes have memory."""
        return self.marks.count(1) * self.page

    def bare(self, address: int, nbytes: int) -> list[tuple[int, int]]:
        """The pieces of this part, addresses and sizes, that have no memory."""
        return self._runs(address, nbytes, held=0)

    def memory(self) -> list[tuple[int, int]]:
        """The pieces that have memory."""
        return self._runs(self.address, self.nbytes, held=1)

    def held_in(self, address: int, nbytes: int) -> int:
        """How many bytes of this part have memory."""
        return self.marks.count(1, *self.pages(address, nbytes)) * self.page

    def lacks(self, address: int, nbytes: int) -> bool:
        """Whether any of these bytes has no memory; they need not be whole pages."""
        first, last = address - self.address, address + nbytes - 1 - self.address
        return self.marks.find(0, first // self.page, last // self.page + 1) >= 0

    def pages(self, address: int, nbytes: int) -> tuple[int, int]:
        return (address - self.address) // self.page, (address + nbytes - self.address) // self.page

    def _runs(self, address: int, nbytes: int, *, held: int) -> list[tuple[int, int]]:
        runs = []
        at, last = self.pages(address, nbytes)
        while (first := self.marks.find(held, at, last)) >= 0:
            at = self.marks.find(not held, first, last)
            if at < 0:
                at = last
            runs.append((self.address + first * self.page, (at - first) * self.page))
        return runs


class Spaces:
    """The reservations of the port called `name`; `held` bytes of them have memory. Who calls locks."""

    def __init__(self, name: str) -> None:
        self.held = 0
        self._name = name
        self._spaces: dict[int, Space] = {}

    def add(self, space: Space) -> None:
        self._spaces[space.address] = space

    def take_out(self, address: object) -> Space:
        """For `release_space`: DeviceError for what `reserve_space` did not give, WrongState while it has memory."""
        start = integer_of(address, "address")
        space = self._spaces.get(start)
        if space is None:
            raise self._foreign("release_space", start)
        if space.held:
            held = format_bytes(space.held)
            raise WrongState(f"{self._name}: {held} of the space at {start:#x} have memory: take it away first")
        return self._spaces.pop(start)

    def part(self, call: str, address: object, nbytes: object) -> tuple[Space, int, int]:
        """For `commit` and `decommit`: the space, and the part of it that is meant.

        DeviceError where there is none, ValueError where it is not of whole pages.
        """
        start, size = integer_of(address, "address"), size_of(nbytes)
        space = self.at(start, size)
        if space is None:
            raise self._foreign(call, start)
        if (start - space.address) % space.page or size % space.page:
            raise ValueError(f"{call} wants whole pages of {space.page} bytes, not {size} bytes at {start:#x}")
        return space, start, size

    def write(self, space: Space, address: int, nbytes: int, *, held: bool) -> None:
        """From now on this part has memory, or has none."""
        first, last = space.pages(address, nbytes)
        marks = bytes([held]) * (last - first)
        change = nbytes * held - space.held_in(address, nbytes)
        # Nothing is called from here on, so no signal's handler comes in between.
        space.marks[first:last] = marks
        self.held += change

    def at(self, address: int, nbytes: int) -> Space | None:
        """The space in which all of this lies."""
        for space in tuple(self._spaces.values()):  # a destructor may add one meanwhile
            if space.address <= address and address + nbytes <= space.address + space.nbytes:
                return space
        return None

    def mappings(self) -> list[tuple[int, int]]:
        """All of them, addresses and sizes."""
        return [(space.address, space.nbytes) for space in tuple(self._spaces.values())]

    def memory(self) -> list[tuple[int, int]]:
        """What of them has memory, addresses and sizes."""
        return [piece for space in tuple(self._spaces.values()) for piece in space.memory()]

    def clear(self) -> list[Space]:
        """All of them, which are gone from here."""
        spaces = [*self._spaces.values()]
        self._spaces.clear()
        self.held = 0
        return spaces

    def _foreign(self, call: str, address: int) -> DeviceError:
        message = f"{self._name}: {address:#x} is not in address space that `reserve_space` gave"
        return DeviceError(message, code=errno.EINVAL, call=call, device=self._name)
