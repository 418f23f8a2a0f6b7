"""The most memory that a part of a program had: peaks of their own, which nest and which no reset disturbs."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from forebay.byte_sizes import format_bytes
from forebay.errors import Unsupported, WrongState
from forebay.runtime.devices.open_device import OpenDevice

__all__ = ["Peak"]


class Peak:
    """What a device's memory came to inside of `with forebay.memory.peak() as p:`; all threads' allocations count.

    It can be read inside, and after the end, when it changes no more. What it costs an allocation cannot be measured.
    """

    def __init__(self, opened: OpenDevice) -> None:
        if opened.plugged is not None:
            raise Unsupported(f"{opened.plugged} serves {opened.device}, and counts nothing")
        self.device = opened.device
        self._pool = opened.allocator
        self._number = 0
        self._last: list[int] | None = None

    def __enter__(self) -> Self:
        if self._number:
            raise WrongState("a peak is measured once: call peak() for another")
        self._number = self._pool.begin_meter()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._last = self._pool.meter(self._number, end=True)

    def __del__(self) -> None:
        if getattr(self, "_number", 0) and self._last is None:  # entered by hand, and never left
            self._last = self._pool.meter(self._number, end=True)

    @property
    def allocated(self) -> int:
        """The most bytes that were in blocks at once."""
        return self._read()[0]

    @property
    def reserved(self) -> int:
        """The most bytes that were in segments at once."""
        return self._read()[1]

    @property
    def allocated_above(self) -> int:
        """By how much that is more than there was at the beginning."""
        return self.allocated - self._read()[2]

    @property
    def reserved_above(self) -> int:
        """By how much that is more than there was at the beginning."""
        return self.reserved - self._read()[3]

    def _read(self) -> list[int]:
        if not self._number:
            raise WrongState("nothing was measured yet: with forebay.memory.peak() as p")
        return self._pool.meter(self._number) if self._last is None else self._last

    def __repr__(self) -> str:
        if not self._number:
            return f"<Peak of {self.device}, not measured yet>"
        return f"<Peak of {self.device}: {format_bytes(self.allocated)} in {format_bytes(self.reserved)}>"
