"""Sortable tables: live memory by site at the peak, and the totals of each site over the whole run."""

from __future__ import annotations

from forebay.byte_sizes import format_bytes
from forebay.html_repr import escape_text
from forebay.snapshot.model import Frame
from forebay.snapshot.report.page.view import TOP, View, color_class
from forebay.snapshot.report.text import format_duration
from forebay.snapshot.sites import label_of

__all__ = ["at_peak", "whole_run"]

_PEAK_ROWS, _TOTAL_ROWS = 25, 200


def at_peak(view: View) -> str:
    """Return the section with the live memory by site."""
    uses, shown = view.uses, view.uses[:_PEAK_ROWS]
    heading = "Live memory by site at the peak" if view.recorded else "Live memory by site at the end"
    if not uses:
        return f'<section class="card"><h2>{heading}</h2><p class="empty">Nothing was allocated.</p></section>\n'
    most = max(1, shown[0].live_bytes)
    rows = "".join(
        f"<tr><td>{_site(view, use.frame)}</td>"
        f'<td class="bar"><i class="{color_class(view, use.label)}" style="width:{use.live_bytes / most:.2%}"></i></td>'
        f"{_cell(use.live_bytes, format_bytes(use.live_bytes))}{_cell(use.share, f'{use.share:.1%}')}"
        f"{_cell(use.count, f'{use.count:,}')}{_cell(use.largest, format_bytes(use.largest))}</tr>"
        for use in shown
    )
    strip = "".join(
        f'<i class="{color_class(view, use.label)}" style="width:{use.share:.2%}" title="{escape_text(use.label)}"></i>'
        for use in shown
    )
    rest = uses[_PEAK_ROWS:]
    foot = ""
    if rest:
        total, count, share = sum(u.live_bytes for u in rest), sum(u.count for u in rest), sum(u.share for u in rest)
        strip += f'<i class="k{TOP}" style="width:{share:.2%}" title="{len(rest):,} more sites"></i>'
        foot = (
            f'<tfoot class="rest"><tr><td>{len(rest):,} more sites</td><td class="bar"></td>'
            f"<td>{format_bytes(total)}</td><td>{share:.1%}</td><td>{count:,}</td>"
            f"<td>{format_bytes(max(u.largest for u in rest))}</td></tr></tfoot>"
        )
    names = ("site", "", "bytes↓", "share", "count", "largest")
    return _table(view, heading, f'<div class="strip">{strip}</div>', names, rows, foot)


def whole_run(view: View) -> str:
    """Return the section with the totals by site; "" without a history."""
    shown, more = view.totals[:_TOTAL_ROWS], len(view.totals) - _TOTAL_ROWS
    if not shown:
        return ""
    rows = "".join(
        f"<tr><td>{_site(view, site.frame)}</td>{_cell(site.allocations, f'{site.allocations:,}')}"
        f"{_cell(site.total_bytes, format_bytes(site.total_bytes))}"
        f"{_cell(site.total_bytes / site.allocations, format_bytes(site.total_bytes // site.allocations))}"
        f"{_lifetime(site.mean_lifetime_ns)}</tr>"
        for site in shown
    )
    foot = f'<tfoot class="rest"><tr><td colspan="5">{more:,} more sites</td></tr></tfoot>' if more > 0 else ""
    names = ("site", "allocations", "total bytes↓", "mean size", "mean lifetime")
    return _table(view, "Sites over the whole run", "", names, rows, foot)


def _lifetime(mean_ns: float | None) -> str:
    return _cell(-1, "never freed") if mean_ns is None else _cell(mean_ns, format_duration(mean_ns))


def _table(view: View, heading: str, above: str, names: tuple[str, ...], rows: str, foot: str) -> str:
    head = "".join(_heading(name) if name else '<th class="bar"></th>' for name in names)
    folder = f'<p>Files are in <span class="path">{escape_text(view.folder)}</span></p>' if view.folder else ""
    return (
        f'<section class="card long"><h2>{heading}</h2>{folder}{above}<div class="scroll" tabindex="0"><table>'
        f"<thead><tr>{head}</tr></thead><tbody>{rows}</tbody>{foot}</table></div></section>\n"
    )


def _heading(name: str) -> str:
    """Return a column heading; a name that ends in ↓ marks the column that the rows are sorted by."""
    text = name.removesuffix("↓")
    order = "" if text == name else ' aria-sort="descending"'
    return f'<th scope="col"{order}><button type="button">{text}</button></th>'


def _cell(value: float, text: str) -> str:
    """Return a cell that shows `text` and is sorted by `value`."""
    number = f"{value:.6g}" if isinstance(value, float) else value
    return f'<td data-v="{number}">{text}</td>'


def _site(view: View, frame: Frame) -> str:
    key = f'<i class="key {color_class(view, label_of(frame))}"></i>'
    if not frame.line:
        return f'<span class="site">{key}<span>{escape_text(label_of(frame))}</span></span>'
    folder, separator, file = view.short(frame.file.replace("\\", "/")).rpartition("/")
    location = f"<s>{escape_text(folder + separator)}</s>{escape_text(file)}:{frame.line}"
    path = f'<span class="path" title="{escape_text(frame.file)}">{location}</span>'
    return f'<span class="site">{key}{path}<span class="name">{escape_text(frame.name)}</span></span>'
