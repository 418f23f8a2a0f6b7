"""Memory of the process that `forebay run` reports beside its devices: small arrays, and the system's own figure."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from forebay._base.byte_sizes import format_bytes
from forebay._base.system_memory import resident_memory
from forebay.snapshot.formats.resident_note import RESIDENT, ResidentGrowth

if TYPE_CHECKING:
    from rich.console import RenderableType

NOT_COVERED = (
    "Resident memory includes what forebay does not see: Python objects, code, and buffers of other allocators, such "
    "as those of PyArrow, polars and C++ libraries."
)


@dataclass(frozen=True, slots=True)
class ProcessUse:
    """Memory of one process."""

    pid: int
    resident_peak: int  # bytes; 0 if the system does not report it
    resident: int
    smallest: int  # arrays below this size are not allocated on the device
    other_count: int  # arrays that NumPy allocated itself
    other_bytes: int
    other_peak: int
    other_current: int = 0
    growth: ResidentGrowth | None = None  # of resident memory, since the program began

    def as_json(self) -> dict[str, Any]:
        return {
            "pid": self.pid,
            "resident_peak_bytes": self.resident_peak,
            "resident_bytes": self.resident,
            "other_arrays": {
                "smaller_than_bytes": self.smallest,
                "allocations": self.other_count,
                "total_bytes": self.other_bytes,
                "peak_bytes": self.other_peak,
            },
            **({} if self.growth is None else {RESIDENT: self.growth.as_json()}),
        }

    def table(self, width: int) -> RenderableType:
        """Return two lines: the arrays that NumPy allocated itself, and the process; and what they do not cover."""
        from rich.console import Group
        from rich.padding import Padding
        from rich.table import Table
        from rich.text import Text

        lines = Table.grid(padding=(0, 2))
        lines.add_column(no_wrap=True)
        lines.add_column(justify="right", no_wrap=True)
        lines.add_column()
        size = format_bytes(self.smallest).replace(".00", "")
        detail = (
            f"{self.other_count:,} allocation{'s' * (self.other_count != 1)}"
            + f", {format_bytes(self.other_bytes)} in total" * (width >= 80)
        )
        lines.add_row(f"arrays below {size}, peak", Text(format_bytes(self.other_peak), "bold"), detail)
        if self.resident_peak:
            now = f"{format_bytes(self.resident)} now"
            lines.add_row("resident memory, peak", Text(format_bytes(self.resident_peak), "bold"), now)
        heading = Text(f"Memory of process {self.pid}", "bold")
        if self.growth is not None:
            return Group(heading, "", Padding(lines, (0, 1)), *self._parts(self.growth))
        return Group(heading, "", Padding(lines, (0, 1)), "", Text(NOT_COVERED, "dim"))

    def head(self) -> RenderableType | None:
        """Return the share of the growth of resident memory that has a site, and what the rest is; None if unknown."""
        from rich.text import Text

        if self.growth is None:
            return None
        return Text(f"{self.growth.sentence()} {self.growth.rest()}".rstrip())

    def _parts(self, growth: ResidentGrowth) -> list[RenderableType]:
        """Return what resident memory has grown by: peaks, which may be at different times, and the end."""
        from rich import box
        from rich.table import Table
        from rich.text import Text

        table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
        table.add_column("resident memory since the program began", overflow="fold")
        table.add_column("own peak", justify="right", no_wrap=True)
        table.add_column("at the end", justify="right", no_wrap=True)
        for part in growth.parts:
            sizes = ("-" if each is None else format_bytes(each) for each in (part.peak, part.now))
            table.add_row(Text(part.name, "" if part.has_site else "dim"), *sizes)
        table.add_section()
        table.add_row("all", format_bytes(growth.grown), format_bytes(max(growth.now - growth.start, 0)))
        return [table]


def measure() -> ProcessUse:
    """Return the memory use of this process."""
    from forebay.interop import numpy

    others = numpy.other_arrays()
    peak, now = resident_memory()
    return ProcessUse(os.getpid(), peak, now, numpy.SMALLEST, others.count, others.nbytes, others.peak, others.current)
