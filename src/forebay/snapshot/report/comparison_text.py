"""The text of a comparison of two snapshots."""

from __future__ import annotations

from collections.abc import Iterator

from forebay._base.byte_sizes import format_bytes
from forebay._base.untrusted import printable
from forebay.snapshot.analysis.alignment import Axis
from forebay.snapshot.analysis.comparison import Comparison, Held, SiteChange
from forebay.snapshot.report.paragraph import Chart, Paragraph, change, count, short_labels
from forebay.snapshot.report.text import format_duration

__all__ = ["comparison_paragraphs"]


def comparison_paragraphs(found: Comparison, *, rows: int = 15) -> list[Paragraph]:
    """Return a comparison as text: the totals, and the sites whose memory changed at the peak and at the end.

    Parameters
    ----------
    found : Comparison
        The comparison.
    rows : int, default 15
        Most sites in a table.
    """
    return [_totals(found), *_timelines(found), *_changes(found, rows), *_stacks(found, rows)]


def _timelines(found: Comparison) -> Iterator[Paragraph]:
    """Yield the memory over time of both snapshots on one axis."""
    lines = found.timelines
    if lines is None:
        return
    if lines.axis == Axis.STEPS:
        first, second = lines.steps
        text = f"On one axis, aligned at the steps that both histories repeat ({first:,} and {second:,})."
        start = "before the steps" if lines.start < 0 else "step 1"
        end = "after the last step" if lines.end > max(lines.steps) else f"end of step {lines.end:,.0f}"
    elif lines.axis == Axis.TIME:
        text = "On one axis, from the beginning of each history: no common steps were found."
        start, end = "0 s", format_duration(round(lines.end * 1e9))
    else:
        text = "On one axis of entries, from the beginning of each history: one has no times."
        start, end = "entry 0", f"entry {lines.end:,.0f}"
    chart = Chart((("before", lines.before), ("after", lines.after)), start, end)
    sentence = f"{text} The top is {format_bytes(chart.top)} of live memory."
    yield Paragraph("Live memory over time", (sentence,), chart=chart)


def _stacks(found: Comparison, rows: int) -> Iterator[Paragraph]:
    """Yield the call stacks whose memory changed most."""
    for moment in ("peak", "end"):
        pairs = [(each.frames, *(each.peak if moment == "peak" else each.end)) for each in found.stacks]
        changed = [pair for pair in pairs if pair[1] != pair[2]]
        changed.sort(key=lambda pair: -abs(pair[2].nbytes - pair[1].nbytes))
        if not changed:
            continue
        shown = changed[:rows]
        labels, folder = short_labels([label for frames, *_ in shown for label in frames])
        remaining = iter(labels)
        table = [
            (" ← ".join(next(remaining) for _ in frames), format_bytes(old.nbytes), format_bytes(new.nbytes),
             change(new.nbytes - old.nbytes), f"{old.blocks:,} → {new.blocks:,}")
            for frames, old, new in shown
        ]  # fmt: skip
        text = f"{count(len(changed), 'call stack')} changed; the innermost frame is first."
        if len(changed) > rows:
            text += f" The first {rows:,}:"
        columns = ("call stack", "before", "after", "change", "blocks")
        yield Paragraph(f"Call stacks that changed at the {moment}", (text, *folder), columns, tuple(table))


def _totals(found: Comparison) -> Paragraph:
    before, after = found.totals

    def row(name: str, old: int, new: int) -> tuple[str, ...]:
        part = f"{(new - old) / old:+.1%}" if old else "-"
        return name, format_bytes(old), format_bytes(new), change(new - old), part

    rows = [
        row("live at the peak", before.peak, after.peak),
        row("live at the end", before.end, after.end),
        row("reserved at most", before.reserved_peak, after.reserved_peak),
        row("reserved at the end", before.reserved_end, after.reserved_end),
    ]
    for name, old, new in (
        ("allocations", before.allocations, after.allocations),
        ("out-of-memory events", before.ooms, after.ooms),
    ):
        part = f"{(new - old) / old:+.1%}" if old else "-"
        rows.append((name, f"{old:,}", f"{new:,}", f"{new - old:+,}" if new != old else "0", part))
    grown = after.peak - before.peak
    words = "grew" if grown > 0 else "fell" if grown else "is the same"
    amount = f" by {format_bytes(abs(grown))}" if grown else ""
    sentences = [
        f"The peak of live memory {words}{amount}, from {format_bytes(before.peak)} to {format_bytes(after.peak)}."
    ]
    if before.device != after.device:
        sentences.append(f"The devices are {printable(before.device)} and {printable(after.device)}.")
    for name, totals in (("first", before), ("second", after)):
        if not totals.entries:
            sentences.append(f"The {name} snapshot has no history: its peak is its final state.")
    return Paragraph(f"Memory of {printable(after.device)}", tuple(sentences),
                     ("", "before", "after", "change", "in percent"), tuple(rows))  # fmt: skip


def _changes(found: Comparison, rows: int) -> Iterator[Paragraph]:
    for moment, heading in (("peak", "Sites that changed at the peak"), ("end", "Sites that changed at the end")):
        changed = [site for site in found.sites if _pair(site, moment)[0] != _pair(site, moment)[1]]
        changed.sort(key=lambda site: (-abs(_grown(site, moment)), site.label))
        shown, rest = changed[:rows], changed[rows:]
        sentences = [_counts(changed, moment)] if changed else ["No site changed."]
        if moment == "peak" and found.moved_stacks:
            sentences.append(
                f"{count(found.moved_stacks, 'stack')} matched only without line numbers and folders; their sites are "
                "marked “moved”."
            )
        labels, folder = short_labels([site.label for site in shown])
        table = [_row(label, site, moment) for label, site in zip(labels, shown, strict=True)]
        most = max((abs(_grown(site, moment)) for site in shown), default=0) or 1
        shares = [abs(_grown(site, moment)) / most for site in shown]
        if rest:
            total = sum(_grown(site, moment) for site in rest)
            old, new = (sum(_pair(site, moment)[side].nbytes for site in rest) for side in (0, 1))
            table.append(
                (f"{count(len(rest), 'other site')}", format_bytes(old), format_bytes(new), change(total), "", "")
            )
            shares.append(0.0)
        columns = ("site", "before", "after", "change", "blocks", "")
        yield Paragraph(heading, (*sentences, *folder), columns if table else (), tuple(table), shares=tuple(shares))


def _counts(changed: list[SiteChange], moment: str) -> str:
    grown = [site for site in changed if _grown(site, moment) > 0]
    shrunk = [site for site in changed if _grown(site, moment) < 0]
    more, less = sum(_grown(site, moment) for site in grown), -sum(_grown(site, moment) for site in shrunk)
    parts = []
    if grown:
        parts.append(f"{count(len(grown), 'site')} grew by {format_bytes(more)}")
    if shrunk:
        parts.append(f"{count(len(shrunk), 'site')} shrank by {format_bytes(less)}")
    new, vanished = (sum(site.status == word for site in changed) for word in ("new", "vanished"))
    text = ", ".join(parts) or "Only numbers of blocks changed"
    words = [f"{number:,} {word}" for number, word in ((new, "new"), (vanished, "vanished")) if number]
    return f"{text} ({', '.join(words)})." if words else f"{text}."


def _row(label: str, site: SiteChange, moment: str) -> tuple[str, ...]:
    old, new = _pair(site, moment)
    blocks = f"{old.blocks:,} → {new.blocks:,}" if old.blocks != new.blocks else f"{new.blocks:,}"
    return (
        label,
        format_bytes(old.nbytes),
        format_bytes(new.nbytes),
        change(new.nbytes - old.nbytes),
        blocks,
        site.status,
    )


def _pair(site: SiteChange, moment: str) -> tuple[Held, Held]:
    return site.peak if moment == "peak" else site.end


def _grown(site: SiteChange, moment: str) -> int:
    old, new = _pair(site, moment)
    return new.nbytes - old.nbytes
