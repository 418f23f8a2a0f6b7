"""Text about the named ranges of a history: where a moment lies, the ranges with their memory, and a chosen part."""

from __future__ import annotations

from forebay._base.byte_sizes import format_bytes
from forebay._base.untrusted import printable, shortened
from forebay.snapshot.analysis.spans import Kind
from forebay.snapshot.report.explanation import Explanation
from forebay.snapshot.report.paragraph import Paragraph, change, count, short_labels

__all__ = ["chosen_paragraph", "place_sentence", "ranges_paragraph"]

_ROWS, _CHANGES = 8, 6
_MAX_NAME = 60
_KINDS = {Kind.RANGE: "", Kind.METADATA: " (user_metadata)", Kind.COMPILE: ""}


def place_sentence(found: Explanation) -> list[str]:
    """Return the sentence that tells in which ranges the explained moment lies; nothing if it is in none."""
    names = [f"“{_shown(name)}”" for name in dict.fromkeys(found.inside)]
    if len(names) > _CHANGES:
        names[_CHANGES // 2 : -_CHANGES // 2] = ["…"]
    return [f"The program was in {' > '.join(names)}."] if names else []


def chosen_paragraph(found: Explanation) -> Paragraph:
    """Return what changed in the part of the history that was chosen."""
    chosen = found.chosen
    if chosen is None or chosen.selection.begin == chosen.selection.end:
        return Paragraph("")
    text = (
        f"From the beginning to the end of {chosen.selection.name}, live memory went from "
        f"{format_bytes(chosen.first_bytes)} to {format_bytes(chosen.last_bytes)}."
    )
    shown = chosen.changes[:_CHANGES]
    labels, folder = short_labels([label for label, _ in shown])
    rows = [(label, change(nbytes)) for label, (_, nbytes) in zip(labels, shown, strict=True)]
    if rest := len(chosen.changes) - len(shown):
        rows.append((count(rest, "other site"), change(sum(nbytes for _, nbytes in chosen.changes[_CHANGES:]))))
    return Paragraph("Change in that time", (text, *(folder if rows else ())), ("site", "change"), tuple(rows))


def ranges_paragraph(found: Explanation) -> Paragraph:
    """Return the memory in the ranges that the program named."""
    uses = found.ranges
    if not uses:
        return Paragraph("")
    shown = sorted(sorted(uses, key=lambda use: -use.peak)[:_ROWS], key=uses.index)
    rows = [
        (
            _shown(use.name) + _KINDS[use.kind], f"{use.count:,}", format_bytes(use.peak),
            _shown(use.peak_in) if use.peak_in != use.name else "-", format_bytes(use.allocated),
            change(round(use.change)),
        )
        for use in shown
    ]  # fmt: skip
    more = (f"The {_ROWS} of {len(uses):,} with the highest peaks:",) if len(uses) > _ROWS else ()
    columns = ("range", "times", "peak inside", "highest in", "allocated in all", "change in each")
    return Paragraph("Ranges that the program named", more, columns, tuple(rows), text_columns=(0, 3))


def _shown(name: str) -> str:
    return printable(shortened(name, _MAX_NAME))
