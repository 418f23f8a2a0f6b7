"""The page of the report of `forebay run`, and what is added to it after a check of assumed values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from io import TextIOWrapper
from pathlib import Path
from typing import TYPE_CHECKING, Any

from forebay._base.atomic_write import atomic_write
from forebay.commands import run_children
from forebay.commands.run_output import REPORT
from forebay.records.site_choice import DEFAULT_CHOICE, SiteChoice

if TYPE_CHECKING:
    from forebay.records.model import Snapshot

__all__ = ["add_check", "write_page_of"]


def add_check(
    output: Path, children: list[dict[str, Any]], sentences: Sequence[str], choice: SiteChoice = DEFAULT_CHOICE
) -> None:
    """Add what runs with opposite values say to the snapshots with assumed values and to the page of a report."""
    from forebay import snapshot as snapshots
    from forebay.snapshot.formats import native
    from forebay.snapshot.formats.known_notes import ASSUMPTION_CHECK, ASSUMPTIONS

    found = []
    for path in sorted(output.glob("snapshot*.forebay")):
        (loaded,) = snapshots.load(path)
        has_assumed = ASSUMPTIONS in loaded.notes
        noted = {**loaded.notes, ASSUMPTION_CHECK: [*sentences]} if has_assumed else loaded.notes
        found.append(replace(loaded, notes=noted, site_choice=choice))
        if has_assumed:
            native.write(found[-1], path)
    if found:
        write_page_of([*found, *run_children.snapshots(output, children, found)], output / REPORT)


def write_page_of(pages: list[Snapshot], path: Path) -> None:
    """Write the page of snapshots."""
    from forebay.snapshot.report import html

    with atomic_write(path) as file:
        text = TextIOWrapper(file, encoding="utf-8")
        html.write_several(pages, text)
        text.detach()  # otherwise it would close the file
