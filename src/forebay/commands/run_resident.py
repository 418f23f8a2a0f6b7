"""Growth of a program's resident memory under `forebay run`: what has a site, and what the rest is."""

from __future__ import annotations

import ctypes
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from forebay._base.system_memory import resident_memory
from forebay.commands.run_devices import is_sample
from forebay.snapshot.formats.resident_note import Part, ResidentGrowth

if TYPE_CHECKING:
    from collections.abc import Sequence

    from forebay.interop.numpy import OtherArrays
    from forebay.records.model import Snapshot

__all__ = ["Figures", "begin", "growth", "measure"]


@dataclass(frozen=True, slots=True)
class Figures:
    """Memory of the process at one moment, in bytes; None where the system does not tell."""

    resident: int
    peak: int
    heap: int | None  # in use by the C library's allocator
    cached: int | None  # free there
    files: int | None  # resident pages of files
    arrow: int | None
    arrow_peak: int | None
    arrow_in_heap: bool
    objects: int  # in arenas of Python's object allocator, since `begin`
    objects_peak: int


class _Beginning:
    """The figures when the program began."""

    figures: Figures | None = None


_beginning = _Beginning()


def begin() -> None:
    """Note the memory of the process before the program begins, and count Python's arenas from now on."""
    from forebay._core import meter_arenas

    meter_arenas()
    _beginning.figures = measure()


def measure() -> Figures:
    """Return the memory of the process now."""
    from forebay._core import arena_bytes

    peak, resident = resident_memory()
    heap, cached = _c_heap()
    arrow, arrow_peak, in_heap = _arrow()
    return Figures(resident, peak, heap, cached, _file_pages(), arrow, arrow_peak, in_heap, *arena_bytes())


def growth(after: Figures, snapshots: Sequence[Snapshot], small: OtherArrays) -> ResidentGrowth | None:
    """Return the growth since `begin`; None without it, or if the system reports no resident memory.

    `snapshots` are those of the devices in the process's memory, and the sample of small arrays; `small` are the exact
    figures of those.
    """
    before = _beginning.figures
    if before is None or not (before.resident and after.resident):
        return None
    devices = [each for each in snapshots if not is_sample(each)]
    reserved = sum(int(each.segments["nbytes"].sum()) for each in devices)
    held, highest = (
        sum(int(each.stats.get(f"requested_bytes.all.{field}", 0)) for each in devices) for field in ("current", "peak")
    )
    arrow = _difference(after.arrow, before.arrow)
    heap = _difference(after.heap, before.heap)
    in_heap = small.current + (arrow or 0) * after.arrow_in_heap
    has_sites = any(len(each.trace) for each in devices)
    parts = [
        Part("arrays on the CPU device", highest, held, has_sites),
        Part("small arrays", small.peak, small.current, len(devices) < len(snapshots)),
        Part("cached by the CPU device", None, max(reserved - held, 0), freed=True),
        Part("Python objects", after.objects_peak, max(after.objects, 0)),
        Part("Arrow", after.arrow_peak, arrow),
        Part("other objects in the C heap", None, None if heap is None else max(heap - in_heap, 0)),
        Part("free in the C heap", None, _difference(after.cached, before.cached), freed=True),
        Part("code and mapped files", None, _difference(after.files, before.files)),
    ]
    known = tuple(each for each in parts if each.peak or each.now)
    peak = after.peak if after.peak > before.peak else max(after.resident, before.resident)
    return ResidentGrowth(before.resident, peak, after.resident, _peak_with_site(snapshots, small.peak), known)


def _peak_with_site(snapshots: Sequence[Snapshot], small_peak: int) -> int:
    """Return the maximum over time of the bytes that the histories hold together.

    The estimates of the sample are scaled to the exact peak of small arrays.
    """
    import numpy as np

    from forebay.snapshot.analysis.timeline import reconstruct

    times, changes = [], []
    for each in snapshots:
        if len(each.trace):
            line = reconstruct(each)
            held = line.allocated * (small_peak / max(int(line.allocated.max()), 1) if is_sample(each) else 1)
            times.append(line.time_ns)
            changes.append(np.diff(held, prepend=0))
    if not times:
        return 0
    order = np.argsort(np.concatenate(times), kind="stable")
    return round(float(np.cumsum(np.concatenate(changes)[order]).max()))


def _difference(after: int | None, before: int | None) -> int | None:
    return None if after is None else max(after - (before or 0), 0)


def _file_pages() -> int | None:
    try:
        found = re.search(r"^RssFile:\s+(\d+) kB", Path("/proc/self/status").read_text(), re.MULTILINE)
    except OSError:
        return None
    return int(found[1]) << 10 if found else None


class _MallocInfo(ctypes.Structure):
    """The structure `mallinfo2` of glibc."""

    _names = "arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"
    _fields_ = tuple(zip(_names, [ctypes.c_size_t] * len(_names), strict=True))


def _c_heap() -> tuple[int | None, int | None]:
    """Return the bytes that the C library's allocator has given out, and those that are free in it."""
    try:
        function = ctypes.CDLL(None).mallinfo2  # glibc 2.33
    except (AttributeError, OSError):
        return None, None
    function.restype = _MallocInfo
    info = function()
    return info.uordblks + info.hblkhd, info.fordblks


def _arrow() -> tuple[int | None, int | None, bool]:
    """Return what Arrow's default pool holds, its peak, and whether from the C heap; if the program has imported it."""
    if "pyarrow" not in sys.modules:
        return None, None, False
    try:
        pool = sys.modules["pyarrow"].default_memory_pool()
        peak = pool.max_memory()
        return int(pool.bytes_allocated()), None if peak is None else int(peak), pool.backend_name == "system"
    except Exception:  # noqa: BLE001 - another version, or a module of the program with this name
        return None, None, False
