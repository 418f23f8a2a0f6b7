"""Memory of the process that `forebay run` reports beside its devices: small arrays, and the system's own figure."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from forebay._base.byte_sizes import format_bytes
from forebay._base.system_memory import resident_memory

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
        detail = f"{self.other_count:,} allocations" + f", {format_bytes(self.other_bytes)} in total" * (width >= 80)
        lines.add_row(f"arrays below {size}, peak", Text(format_bytes(self.other_peak), "bold"), detail)
        if self.resident_peak:
            now = f"{format_bytes(self.resident)} now"
            lines.add_row("resident memory, peak", Text(format_bytes(self.resident_peak), "bold"), now)
        heading = Text(f"Memory of process {self.pid}", "bold")
        return Group(heading, "", Padding(lines, (0, 1)), "", Text(NOT_COVERED, "dim"))


def measure() -> ProcessUse:
    """Return the memory use of this process."""
    from forebay.interop import numpy

    others = numpy.other_arrays()
    peak, now = resident_memory()
    return ProcessUse(os.getpid(), peak, now, numpy.SMALLEST, others.count, others.nbytes, others.peak)
