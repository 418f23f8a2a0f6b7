"""The terminal report of a run: the summary, the sites at the peak, and the out-of-memory panel."""

from __future__ import annotations

import math

from rich import box
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.measure import Measurement
from rich.padding import Padding
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from forebay._base.byte_sizes import format_bytes
from forebay._base.untrusted import printable
from forebay.records.model import Snapshot
from forebay.records.site_labels import fit_labels, strip_common_folder, with_library
from forebay.snapshot.analysis.largest_sites import split_largest
from forebay.snapshot.analysis.sampling import peak_error
from forebay.snapshot.analysis.summary import Summary, ooms, sites, summary
from forebay.snapshot.analysis.timeline import Timeline, reconstruct
from forebay.snapshot.formats.known_notes import exact_peak_of, sampling_mean
from forebay.snapshot.formats.resident_note import resident_growth_of

__all__ = [
    "NO_ALLOCATIONS",
    "NO_LARGE_ARRAYS",
    "error_text",
    "format_duration",
    "format_rate",
    "no_allocations",
    "oom_panel",
    "report",
    "sampled_text",
    "summary_table",
    "top_sites",
]

NO_ALLOCATIONS = "Nothing was allocated on the device."
NO_LARGE_ARRAYS = "No array was large enough for the device; resident memory has grown nevertheless."
_BAR = 8  # cells
_WIDE = 100  # cells; narrower terminals omit the bar and the largest block
_EXACT = 0.0005  # relative error below which a size is exact
_NARROW = 70  # cells; narrower terminals show the summary in one column


def report(snapshot: Snapshot, *, rows: int = 10, width: int = _WIDE) -> RenderableType:
    """Return the whole report for `Console.print`, to a terminal of `width` cells."""
    timeline = reconstruct(snapshot)
    snapshot = split_largest(snapshot, timeline)
    if sampling_mean(snapshot.notes):
        parts: list[RenderableType] = [_sampled_summary(snapshot, timeline)]
    else:
        parts = [summary_table(summary(snapshot, timeline=timeline), snapshot.device, width=width)]
    if not len(snapshot.trace) and not snapshot.stats.get("allocation.all.allocated", 1):
        parts += ["", Text(no_allocations(snapshot), "dim")]
    elif len(timeline.allocations.start):
        parts += ["", top_sites(snapshot, rows=rows, width=width, timeline=timeline)]
    if panel := oom_panel(snapshot):
        parts += ["", panel]
    return Group(*parts)


def no_allocations(snapshot: Snapshot) -> str:
    """Return a sentence for a device without allocations, which says less if the process has grown nevertheless."""
    growth = resident_growth_of(snapshot.notes)
    return NO_ALLOCATIONS if growth is None or not growth.grown else NO_LARGE_ARRAYS


def error_text(error: float) -> str:
    """Return the standard error of an estimate as text: `±12%`; "" for an exact size."""
    return "" if error < _EXACT else f"±{error:.1%}" if error < 0.0995 else f"±{error:.0%}"


def sampled_text(snapshot: Snapshot, timeline: Timeline) -> str:
    """Return what the sizes of a sample mean, in a sentence."""
    samples = len(timeline.allocations.start)
    mean = format_bytes(sampling_mean(snapshot.notes)).replace(".00", "")
    error = error_text(peak_error(snapshot, timeline)).removeprefix("±") or "0%"
    exact = exact_peak_of(snapshot.notes)
    return (
        f"Sizes are estimates from {samples:,} sampled array{'s' * (samples != 1)}, on average one for each {mean}; "
        f"standard error of the peak: {error}."
        + (f" The exact peak is {format_bytes(exact)}; the maximum of estimates is often above." if exact else "")
    )


def _sampled_summary(snapshot: Snapshot, timeline: Timeline) -> RenderableType:
    """Return the figures of a sample: no device reserves memory for it."""
    peak, now = int(timeline.allocated[timeline.peak]), int(timeline.allocated[-1])
    line = Text.assemble(
        ("peak about ", ""), (format_bytes(peak), "bold"), f" {error_text(peak_error(snapshot, timeline))}".rstrip(),
        f", now about {format_bytes(now)}",
    )  # fmt: skip
    heading = Text(f"Memory of {printable(snapshot.device)}", "bold")
    return Group(heading, "", Padding(line, (0, 1)), Padding(Text(sampled_text(snapshot, timeline), "dim"), (0, 1)))


def summary_table(numbers: Summary, device: str, *, width: int = _WIDE) -> Table:
    """Return the summary as two columns of names and values, one below the other in narrow terminals."""
    fragmentation = f"{numbers.fragmentation:.0%}" if numbers.current else "-"  # nothing hinders the free blocks
    allocated: list[tuple[str, Text | str]] = [
        ("peak", Text(format_bytes(numbers.peak_allocated), "bold")),
        ("now", format_bytes(numbers.allocated)),
        ("allocations", f"{numbers.allocations:,}"),
        ("frees", f"{numbers.frees:,}"),
        ("allocations/s", format_rate(numbers.per_second) if numbers.allocations > 1 else "-"),
    ]
    reserved: list[tuple[str, Text | str]] = [
        ("peak", format_bytes(numbers.peak_reserved)),
        ("now", format_bytes(numbers.reserved)),
        ("largest free block", format_bytes(numbers.largest_free)),
        ("fragmentation", fragmentation),
        ("out of memory", Text(f"{numbers.ooms:,}", "bold red" if numbers.ooms else "")),
    ]
    table = _table(f"Memory of {printable(device)}")
    if width < _NARROW:
        table.add_column("allocated", no_wrap=True)
        table.add_column(justify="right", no_wrap=True)
        for row in allocated:
            table.add_row(*row)
        table.add_section()
        table.add_row("reserved", "")
        table.add_section()
        for row in reserved:
            table.add_row(*row)
    else:
        table.add_column("allocated", no_wrap=True)
        table.add_column(justify="right", no_wrap=True)
        table.add_column("  reserved", no_wrap=True)
        table.add_column(justify="right", no_wrap=True)
        for (left, value), (right, other) in zip(allocated, reserved, strict=True):
            table.add_row(left, value, f"  {right}", other)
    notes = []
    if numbers.lost:
        notes.append(f"The ring buffer dropped the first {numbers.lost:,} entries of the history.")
    if numbers.peak_ever > numbers.peak:
        notes.append(f"The highest peak, {format_bytes(numbers.peak_ever)}, was before the recorded history.")
    if notes:
        table.caption = "\n".join(notes)
    return table


def top_sites(snapshot: Snapshot, *, rows: int = 10, width: int = _WIDE, timeline: Timeline | None = None) -> Table:
    """Return the live memory at the peak by site. Long sites lose the function name, then the beginning of the path."""
    uses = sites(snapshot, timeline=timeline)
    shown, rest = uses[:rows], uses[rows:]
    folder, labels = strip_common_folder([use.label for use in shown])
    sampled = sampling_mean(snapshot.notes) > 0
    title = "Top allocation sites at the peak" if len(snapshot.trace) else "Live at the end, by site"
    table = _table(f"{title}, sampled" if sampled else title)
    table.add_column("size", justify="right", no_wrap=True)
    if sampled:
        table.add_column("error", justify="right", no_wrap=True)
    table.add_column("share", justify="right", no_wrap=True)
    if width >= _WIDE:
        table.add_column("", width=_BAR, no_wrap=True)
    table.add_column("samples" if sampled else "count", justify="right", no_wrap=True)
    if width >= _WIDE and not sampled:
        table.add_column("largest", justify="right", no_wrap=True)
    table.add_column("site")  # not no_wrap: the only column that shrinks in a narrow terminal

    def row(nbytes: int, share: float, count: int, largest: int, bar: Text, site: RenderableType, error: float) -> None:
        middle = [bar] * (width >= _WIDE) + [f"{count:,}"] + [format_bytes(largest)] * (width >= _WIDE and not sampled)
        table.add_row(format_bytes(nbytes), *[error_text(error)] * sampled, f"{share:.1%}", *middle, site)

    most = uses[0].live_bytes if uses else 0
    labels = [with_library(label, use.library) for use, label in zip(shown, labels, strict=True)]
    for at, use in enumerate(shown):
        bar = Text("━" * max(1, round(_BAR * use.live_bytes / most)) if most else "", "cyan")
        row(use.live_bytes, use.share, use.count, use.largest, bar, _Site(labels, at), use.error)
    if rest:
        others = Text(f"{len(rest):,} other site{'s' * (len(rest) > 1)}", "dim")
        total, share = sum(use.live_bytes for use in rest), sum(use.share for use in rest)
        error = math.hypot(*(use.error * use.live_bytes for use in rest)) / max(total, 1)
        row(total, share, sum(use.count for use in rest), max(use.largest for use in rest), Text(), others, error)
    if folder:
        table.caption = Text(f"files are in {folder}", "dim", overflow="fold")
    return table


def oom_panel(snapshot: Snapshot) -> Panel | None:
    """Return a panel for the last out-of-memory event, or None if there was none."""
    if not (found := ooms(snapshot)):
        return None
    last = found[-1]
    capacity = format_bytes(snapshot.capacity) if snapshot.capacity else ""
    free = f"{format_bytes(last.device_free)} of {capacity}" if capacity else "unlimited, but the system refused"
    lines = Text.assemble(
        ("requested    ", "dim"), (format_bytes(last.wanted), "bold"), f"  at {last.label}\n",
        ("device free  ", "dim"), free,
    )  # fmt: skip
    if capacity and last.device_free >= last.wanted:
        lines.append("\nenough for the block, but not for a new segment", "dim")
    if len(found) > 1:
        lines.append(f"\nthe last of {len(found):,} events", "dim")
    return Panel(
        lines, title=Text(f"{printable(snapshot.device)} ran out of memory"), title_align="left", border_style="red"
    )


def format_rate(per_second: float) -> str:
    """Format with three significant digits: `1,234`, `12.3`, `0.123`."""
    return f"{per_second:,.0f}" if per_second >= 100 else f"{per_second:.3g}"


def format_duration(ns: float) -> str:
    """Format nanoseconds in the largest suitable unit with three digits: `12.3 ms`, `4.00 s`, `3 min 20 s`."""
    for unit, size in (("ns", 1), ("µs", 1e3), ("ms", 1e6), ("s", 1e9)):
        value = ns / size
        if value < 999.5 if unit != "s" else value < 119.5:
            digits = 0 if value >= 99.95 or unit == "ns" else 1 if value >= 9.995 else 2
            return f"{value:.{digits}f} {unit}"
    minutes, seconds = divmod(round(ns / 1e9), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {seconds} s"


def _table(title: str) -> Table:
    heading = Text(title, "bold")
    return Table(box=box.SIMPLE_HEAD, title=heading, title_justify="left", caption_justify="left", pad_edge=False)


class _Site:
    """A site among those of the table, fitted to the width of its column."""

    def __init__(self, labels: list[str], at: int) -> None:
        self.labels, self.at = labels, at

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        width = cell_len(self.labels[self.at])
        return Measurement(min(width, 16), width)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield Text(fit_labels(self.labels, options.max_width)[self.at], no_wrap=True, overflow="ellipsis")
