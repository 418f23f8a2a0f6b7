"""Measurement of one device while a piece of the program runs, as `forebay run` measures a whole program.

NumPy's arrays are allocated on the device if it is a CPU device, which then has no limit but the system's unless the
program has set one. The state before is restored afterwards, except what the program changed itself, and the limit if
what remains allocated exceeds it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace

from forebay._base.config import CPU_MEMORY, UNLIMITED
from forebay._base.device_spec import CPU
from forebay.errors import WrongState, without_frames
from forebay.interop import numpy
from forebay.records.model import Snapshot
from forebay.records.site_choice import DEFAULT_CHOICE, SiteChoice
from forebay.runtime.allocator import statistics
from forebay.runtime.allocator.metrics import RESERVED_BYTES
from forebay.runtime.devices.open_device import OpenDevice
from forebay.runtime.history.recording import recording_of
from forebay.runtime.memory.device_snapshot import take_snapshot
from forebay.runtime.memory.peak import Peak
from forebay.snapshot.report.cell import CellMeasurement, CellReport

__all__ = ["CellMemory"]

_ENTRIES = 1_000_000


class CellMemory:
    """The memory use of a device inside `with cell_memory.measuring():`. Raises Unsupported as `Peak` does."""

    def __init__(self, opened: OpenDevice) -> None:
        self._opened = opened
        self._peak = Peak(opened)
        self._snapshot: Snapshot | None = None
        self._failure: Exception | None = None
        self._start_ns = self._end_ns = self._allocations = 0
        self._small = numpy.other_arrays()
        self._numpy_device = ""

    @contextmanager
    def measuring(self) -> Iterator[None]:
        """Record the device inside the context."""
        opened, is_cpu = self._opened, self._opened.device.kind == CPU.kind
        with ExitStack() as stack:
            if is_cpu:
                stack.enter_context(_without_default_limit(opened))
            stack.enter_context(recording_of(opened.allocator, _ENTRIES))
            stack.callback(self._finish)  # while the history is recorded, after NumPy's arrays are its own again
            if is_cpu:
                stack.enter_context(numpy.installed_on(opened.device))
                self._numpy_device = str(numpy.installed())
            self._small = numpy.other_arrays()
            self._allocations = self._count()
            stack.enter_context(self._peak)
            self._start_ns = time.time_ns()
            try:
                yield
            finally:
                self._end_ns = time.time_ns()

    def report(
        self, rows: int, cell_of: Callable[[str], int | None], choice: SiteChoice = DEFAULT_CHOICE
    ) -> CellReport | None:
        """Return the report, with `rows` sites; `cell_of` returns the number of a file's cell. None: not measured.

        Raises the failure of the snapshot, which must not change the outcome of the program.
        """
        if self._failure is not None:
            raise self._failure
        if self._snapshot is None:
            return None
        small = numpy.other_arrays()
        measured = CellMeasurement(
            start_ns=self._start_ns,
            end_ns=self._end_ns,
            peak=self._peak.allocated,
            peak_above=self._peak.allocated_above,
            reserved=self._peak.reserved,
            allocations=max(self._allocations, 0),
            small_count=max(small.count - self._small.count, 0),
            small_bytes=max(small.nbytes - self._small.nbytes, 0),
            numpy_device=self._numpy_device,
        )
        return CellReport(replace(self._snapshot, site_choice=choice), measured, rows, cell_of)

    def _finish(self) -> None:
        try:
            self._allocations = self._count() - self._allocations
            self._snapshot = take_snapshot(self._opened)
        except Exception as error:  # noqa: BLE001 - of a backend; see `report`
            self._failure = without_frames(error)

    def _count(self) -> int:
        return statistics.flat_stats(self._opened.allocator)["allocation.all.allocated"]


@contextmanager
def _without_default_limit(opened: OpenDevice) -> Iterator[None]:
    """Remove the limit of a CPU device if it is the default one: without forebay, the arrays would have none."""
    _, capacity = opened.port.memory_info()
    if os.environ.get(CPU_MEMORY.name, "").strip() or capacity != opened.port.props.total_bytes:
        yield
        return
    opened.set_capacity(UNLIMITED)
    try:
        yield
    finally:
        if opened.port.memory_info()[1] == UNLIMITED:
            if opened.allocator.current(RESERVED_BYTES) > capacity:
                opened.allocator.empty()
            with suppress(WrongState):  # what remains allocated is more than the limit
                opened.set_capacity(capacity)
