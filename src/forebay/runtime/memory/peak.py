"""Peak memory of a part of a program, measured independently of the device's peak statistics."""

from __future__ import annotations

from contextlib import suppress
from types import TracebackType
from typing import Self

from forebay._base.byte_sizes import format_bytes
from forebay._base.device_spec import Device
from forebay.backends.common._disposal import Disposable
from forebay.errors import Unsupported, WrongState
from forebay.runtime.devices.open_device import OpenDevice

__all__ = ["Peak"]


class Peak(Disposable):
    """Peak memory of a device inside a `with` block, from the allocations of all threads.

    Created by `forebay.memory.peak`. The values can be read inside the block, and after it, when they are final.
    The overhead per allocation is below what can be measured.

    Parameters
    ----------
    opened : OpenDevice
        The device.

    Raises
    ------
    Unsupported
        If the device uses a pluggable allocator.
    """

    def __init__(self, opened: OpenDevice) -> None:
        if opened.pluggable is not None:
            raise Unsupported(f"{opened.device} uses {opened.pluggable}, which keeps no statistics")
        self.device: Device = opened.device
        self._allocator = opened.allocator
        self._meter = 0  # number of the allocator's meter; 0 before the block is entered
        self._final: list[int] | None = None

    def __enter__(self) -> Self:
        if self._meter:
            raise WrongState("this peak was measured already: call peak() for a new one")
        self._meter = self._allocator.begin_meter()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._final = self._allocator.meter(self._meter, end=True)

    def _dispose(self) -> None:
        if getattr(self, "_meter", 0) and self._final is None:  # __enter__ was called without __exit__
            with suppress(IndexError):  # an interrupted __exit__ has ended the meter
                self._final = self._allocator.meter(self._meter, end=True)

    @property
    def allocated(self) -> int:
        """The peak number of bytes in live blocks."""
        return self._read()[0]

    @property
    def reserved(self) -> int:
        """The peak number of bytes in segments."""
        return self._read()[1]

    @property
    def allocated_above(self) -> int:
        """The bytes by which `allocated` exceeds the allocated bytes at the start of the block."""
        return self.allocated - self._read()[2]

    @property
    def reserved_above(self) -> int:
        """The bytes by which `reserved` exceeds the reserved bytes at the start of the block."""
        return self.reserved - self._read()[3]

    def _read(self) -> list[int]:
        if not self._meter:
            raise WrongState("not measured yet: use `with forebay.memory.peak() as p:`")
        return self._allocator.meter(self._meter) if self._final is None else self._final

    def __repr__(self) -> str:
        if not self._meter:
            return f"<Peak of {self.device}, not measured yet>"
        return f"<Peak of {self.device}: {format_bytes(self.allocated)} in {format_bytes(self.reserved)}>"

    def _repr_html_(self) -> str:
        from forebay._base.html_repr import box, note, table

        if not self._meter:
            return box(f"Peak memory of {self.device}", note("Not measured yet."))
        rows = [
            ("allocated", format_bytes(self.allocated), format_bytes(self.allocated_above)),
            ("reserved", format_bytes(self.reserved), format_bytes(self.reserved_above)),
        ]
        return box(f"Peak memory of {self.device}", table(("", "peak", "above the start"), rows))
