"""The rows of `forebay top`: one for each device of each process, and for each GPU of the machine and its processes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from forebay._base.byte_sizes import format_bytes
from forebay._base.system_memory import available_memory, usable_memory
from forebay._base.untrusted import shortened
from forebay.records.site_labels import fit_labels, strip_common_folder, with_library

if TYPE_CHECKING:
    from forebay.observe.monitor.figures import DeviceFigures, ProcessFigures, Readings, SiteFigures
    from forebay.observe.monitor.machine import MachineFigures
    from forebay.observe.monitor.sensors import MachineGpu

HEADINGS = (  # those that matter most come first, as a narrow terminal shows the first ones
    "pid", "program", "device", "allocated", "reserved", "capacity", "busy", "allocs/s", "peak", "queues", "sensors",
    "name",
)  # fmt: skip
SITE_HEADINGS = ("live", "share", "count", "call site")
NUMBERS = ("pid", "allocated", "peak", "reserved", "capacity", "busy", "queues", "allocs/s")  # aligned right
_PROGRAM, _NAME = 20, 40  # characters
_LEAST = 4  # columns


@dataclass(frozen=True, slots=True)
class Row:
    """One row: the identity of its device, and the texts below `HEADINGS`."""

    key: tuple[int, str]  # process id, 0 for a GPU of the machine; device
    cells: tuple[str, ...]
    device: DeviceFigures | None = None


def rows(now: MachineFigures, before: MachineFigures | None) -> list[Row]:
    """Return the rows. Rates are computed from the figures `before`."""
    earlier = {
        (process.pid, device.device): (process.taken_at, device)
        for process in (before.processes if before else ())
        for device in process.devices
    }
    found = []
    for process in now.processes:
        for device in process.devices:
            key = (process.pid, device.device)
            rate = _rate(process, device, *earlier[key]) if key in earlier else "-"
            found.append(Row(key, _cells(process, device, rate), device))
        if not process.devices:
            found.append(Row((process.pid, ""), (str(process.pid), _program(process), *[""] * (len(HEADINGS) - 2))))
    for gpu in now.gpus:
        used, total = gpu.readings.memory_used, gpu.readings.memory_total
        cells = (
            "", f"{len(gpu.processes)} processes", f"gpu {gpu.index}", _size(used), "", _size(total),
            _percent(gpu.readings.busy), "", "", "", _sensors(gpu.readings), shortened(gpu.uuid, _NAME),
        )  # fmt: skip
        found.append(Row((0, f"gpu:{gpu.index}:{gpu.uuid}"), cells))
        found += _others(gpu, {process.pid for process in now.processes})
    return found


def _others(gpu: MachineGpu, own: set[int]) -> list[Row]:
    """Return the rows of processes of all users on a GPU, largest first, without those that have rows."""
    from forebay.observe.monitor.other_processes import other_process

    found = []
    for pid, nbytes in sorted(gpu.processes.items(), key=lambda each: -(each[1] or 0)):
        if pid not in own:
            process = other_process(pid)
            user = f"of {process.user}" if process.user else "of another container"
            texts = {"pid": str(pid), "program": shortened(process.program or "?", _PROGRAM)}
            texts |= {"device": f"gpu {gpu.index}", "allocated": _size(nbytes), "name": user}
            key = (pid, f"gpu:{gpu.index}:{gpu.uuid}")
            found.append(Row(key, tuple(texts.get(heading, "") for heading in HEADINGS)))
    return found


def title(now: MachineFigures) -> str:
    """Return a line with the number of processes, their memory and the machine's, and those that cannot be read."""
    count, memory = len(now.processes), sum(process.resident for process in now.processes)
    text = f"{count} {'process' if count == 1 else 'processes'}, resident {format_bytes(memory)}"
    if (available := available_memory()) is not None:
        text += f", available {format_bytes(available)} of {format_bytes(usable_memory())}"
    for pid, reason in now.failures.items():
        text += f"; process {pid}: {reason}"
    return text


def site_cells(site: SiteFigures, allocated: int) -> tuple[str, str, str, str]:
    """Return size, share, count and label of an allocation site."""
    share = site.nbytes / allocated if allocated else 0.0
    return format_bytes(site.nbytes), f"{share:.0%}", f"{site.count:,}", with_library(site.label, site.library)


def width_before(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> int:
    """Return the width of the columns before the last one, from the end of their cells, and the padding of all."""
    *numbers, _ = headings
    cells = [numbers, *(("",) * (len(numbers) - len(row)) + tuple(row) for row in rows)]
    return sum(max(*map(len, column), 1) + 2 for column in zip(*cells, strict=True)) + 2


def print_figures(before: MachineFigures, now: MachineFigures) -> None:
    """Print the rows, and the call sites of each device, on standard output."""
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(highlight=False)
    console.print(Text(title(now)))
    found = rows(now, before)
    if not found:
        console.print("No program that was started by forebay run is running.")
        return
    used = _fitting([at for at in range(len(HEADINGS)) if any(row.cells[at] for row in found)], found, console.width)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for at in used:
        right = HEADINGS[at] in NUMBERS
        table.add_column(HEADINGS[at], justify="right" if right else "left", no_wrap=right)
    for row in found:
        table.add_row(*(Text(row.cells[at]) for at in used))
    console.print(table)
    for row in found:
        if row.device is None or not row.device.sites:
            continue
        sites = Table(box=None, pad_edge=False, title=f"Call sites of {row.device.device}, process {row.key[0]}")
        sites.title_justify, sites.title_style = "left", "bold"
        for heading in SITE_HEADINGS[:-1]:
            sites.add_column(heading, justify="right", no_wrap=True)
        sites.add_column(SITE_HEADINGS[-1])
        cells = [site_cells(site, row.device.allocated) for site in row.device.sites[:10]]
        width = console.width - width_before(SITE_HEADINGS, [each[:-1] for each in cells])
        folder, labels = strip_common_folder([each[-1] for each in cells])
        for (*numbers, _), label in zip(cells, fit_labels(labels, width), strict=True):
            sites.add_row(*map(Text, (*numbers, label)))
        if folder:
            sites.caption, sites.caption_justify = Text(f"files are in {folder}", "dim", overflow="fold"), "left"
        console.print(sites)


def _fitting(columns: list[int], found: list[Row], width: int) -> list[int]:
    """Return the first columns, as many as fit, and the first four in any case."""
    used = 0
    for count, at in enumerate(columns):
        used += max(len(HEADINGS[at]), *(len(row.cells[at]) for row in found)) + 3
        if used > width and count >= _LEAST:
            return columns[:count]
    return columns


def _cells(process: ProcessFigures, device: DeviceFigures, rate: str) -> tuple[str, ...]:
    name = device.name if not device.emulated or "emulated" in device.name else f"{device.name} (emulated)"
    capacity = "no limit" if device.capacity is None else format_bytes(device.capacity)
    return (
        str(process.pid), _program(process), device.device,
        format_bytes(device.allocated), format_bytes(device.reserved), capacity, _percent(device.readings.busy), rate,
        format_bytes(device.peak), f"{device.busy_streams}/{device.streams}", _sensors(device.readings),
        shortened(name, _NAME),
    )  # fmt: skip


def _program(process: ProcessFigures) -> str:
    return shortened(process.program, _PROGRAM)


def _rate(process: ProcessFigures, device: DeviceFigures, time: float, earlier: DeviceFigures) -> str:
    seconds = process.taken_at - time
    return f"{max(0, device.allocations - earlier.allocations) / seconds:,.0f}" if seconds > 0 else "-"


def _sensors(readings: Readings) -> str:
    parts = []
    if readings.temperature is not None:
        parts.append(f"{readings.temperature} °C")
    if readings.power is not None:
        parts.append(f"{readings.power / 1000:.0f} W")
    if readings.clock is not None:
        parts.append(f"{readings.clock} MHz")
    return " ".join(parts)


def _size(nbytes: int | None) -> str:
    return "" if nbytes is None else format_bytes(nbytes)


def _percent(share: float | None) -> str:
    return "" if share is None else f"{share:.0%}"
