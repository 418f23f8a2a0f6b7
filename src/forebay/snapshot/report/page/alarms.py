"""Warnings at the top of the page: why memory ran out, and what the history does not contain."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from forebay._base.byte_sizes import format_bytes
from forebay._base.html_repr import escape_text
from forebay._base.untrusted import printable, shortened
from forebay.errors import Unsupported
from forebay.records.model import Snapshot
from forebay.snapshot.analysis import summary
from forebay.snapshot.formats.known_notes import truncation_of, verdict_of
from forebay.snapshot.report.page.view import View

if TYPE_CHECKING:
    from forebay.snapshot.report.paragraph import Paragraph

__all__ = ["section"]

_REPLAYED = 100_000  # most entries of a history that the page replays
_REMARKS = "Remarks"  # the paragraph of an explanation that `_remarks` replaces


def section(view: View, others: Sequence[Snapshot] = ()) -> str:
    """Return the verdict, the explanation of the last out-of-memory event, and remarks about the history.

    `others` are the other devices of the program.
    """
    parts = [*_verdict(view)]
    if found := summary.ooms(view.snapshot):
        first, *details = _explanation(view, others, found[-1])
        text = " ".join(first.sentences).replace(view.folder or "\0", "")
        count = f" ({len(found):,} times; this is the last)" if len(found) > 1 else ""
        parts.append(
            f'<section class="alarm" aria-label="Explanation"><h2>{escape_text(first.heading)}{count}</h2>'
            f"<p>{escape_text(text)}</p>{_details(view, details)}</section>"
        )
    parts += [f'<p class="remark">{escape_text(text)}</p>' for text in _remarks(view)]
    return "\n".join(parts)


def _verdict(view: View) -> list[str]:
    found = verdict_of(view.snapshot.notes)
    if found is None:
        return []
    verdict, heading, text = found
    kind = "remark" if verdict.fits else "alarm"
    title = f"<strong>{escape_text(heading)}</strong>" if verdict.fits else f"<h2>{escape_text(heading)}</h2>"
    body = f" {escape_text(text)}" if verdict.fits else f"<p>{escape_text(text)}</p>"
    return [f'<section class="{kind}" aria-label="Verdict">{title}{body}</section>']


def _explanation(view: View, others: Sequence[Snapshot], oom: summary.Oom) -> list[Paragraph]:
    # Few pages have an event, and these modules take longer to import than a small page to write.
    from forebay.snapshot.report.explanation import explanation
    from forebay.snapshot.report.explanation_text import paragraphs
    from forebay.snapshot.report.paragraph import Paragraph

    try:
        found = paragraphs(explanation(view.snapshot, replay=_replays(view), others=others))
    except (Unsupported, ArithmeticError, LookupError, ValueError) as error:  # a file may contradict itself
        request = f"{oom.label} requested {format_bytes(oom.wanted)}."
        found = [Paragraph("Out of memory", (request, f"The history cannot be explained: {error}."))]
    return [paragraph for paragraph in found if paragraph.heading != _REMARKS]


def _replays(view: View) -> bool:
    """Return whether the page shows replays with other settings and changes: those of a long history take seconds."""
    return len(view.snapshot.trace) <= _REPLAYED


def _details(view: View, found: list[Paragraph]) -> str:
    if not found:
        return ""
    parts = []
    for paragraph in found:
        head = "".join(f'<th scope="col">{escape_text(name)}</th>' for name in paragraph.columns)
        rows = "".join(f"<tr>{''.join(f'<td>{escape_text(cell)}</td>' for cell in row)}</tr>" for row in paragraph.rows)
        table = (
            f'<div class="scroll" tabindex="0"><table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>'
        )
        parts.append(f"<h3>{escape_text(paragraph.heading)}</h3><p>{escape_text(' '.join(paragraph.sentences))}</p>")
        parts.append(f"<p><code>{escape_text(paragraph.line)}</code></p>" if paragraph.line else "")
        parts.append(table if rows else "")
    names = ", ".join(paragraph.heading[:1].lower() + paragraph.heading[1:] for paragraph in found)
    hint = "The command <code>forebay explain --what-if CHANGE</code> replays the history with a change of the program."
    if not _replays(view):
        hint = "The command <code>forebay explain</code> also replays the history with other settings and changes."
    return f"<details><summary>Details: {escape_text(names)}</summary>{''.join(parts)}<p>{hint}</p></details>"


def _remarks(view: View) -> list[str]:
    """Return what the history does not contain."""
    numbers, timeline = view.numbers, view.timeline
    truncated = truncation_of(view.snapshot.notes)
    remarks = [f"The snapshot is truncated: {printable(shortened(str(truncated), 300))}."] if truncated else []
    held = timeline.allocations
    older = held.start == 0
    if numbers.lost:
        remarks.append(f"The ring buffer dropped the first {numbers.lost:,} entries of the history.")
    if view.recorded and older.any():
        blocks = "1 block is" if older.sum() == 1 else f"{int(older.sum()):,} blocks are"
        remarks.append(
            f"{blocks} older than the recorded history ({format_bytes(int(held.nbytes[older].sum()))}): the chart "
            "draws such memory from its left edge, and its stack may be unknown."
        )
    if numbers.peak_ever > numbers.peak and view.recorded:
        remarks.append(f"The highest peak, {format_bytes(numbers.peak_ever)}, was before the recorded history.")
    excess = timeline.allocated - timeline.reserved
    if view.recorded and int(excess.max()) > 0:
        worst = int(np.argmax(excess))
        allocated, reserved = (format_bytes(int(curve[worst])) for curve in (timeline.allocated, timeline.reserved))
        remarks.append(
            f"The history contradicts its segments: at entry {worst:,} it has {allocated} allocated in {reserved} "
            "of segments. Frees or segments are missing in the file; the page shows no more than the segments hold."
        )
    return remarks
