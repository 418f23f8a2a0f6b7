"""Who held what at the peak, and what every site did over the whole run, as tables that a click sorts."""

from __future__ import annotations

from forebay.byte_sizes import format_bytes
from forebay.snapshot.model import Frame
from forebay.snapshot.report.page.view import TOP, View, foreign, key_of
from forebay.snapshot.report.text import format_duration
from forebay.snapshot.sites import label_of

__all__ = ["at_peak", "whole_run"]

_PEAK_ROWS, _TOTAL_ROWS = 25, 200


def at_peak(view: View) -> str:
    uses, shown = view.uses, view.uses[:_PEAK_ROWS]
    heading = "Who held what at the peak" if view.recorded else "Who holds what now"
    if not uses:
        return f'<section class="card"><h2>{heading}</h2><p class="empty">Nothing was allocated.</p></section>\n'
    most = max(1, shown[0].live_bytes)
    rows = "".join(
        f"<tr><td>{_site(view, use.frame)}</td>"
        f'<td class="bar"><i class="{key_of(view, use.label)}" style="width:{use.live_bytes / most:.2%}"></i></td>'
        f"{_cell(use.live_bytes, format_bytes(use.live_bytes))}{_cell(use.share, f'{use.share:.1%}')}"
        f"{_cell(use.count, f'{use.count:,}')}{_cell(use.largest, format_bytes(use.largest))}</tr>"
        for use in shown
    )
    strip = "".join(
        f'<i class="{key_of(view, use.label)}" style="width:{use.share:.2%}" title="{foreign(use.label)}"></i>'
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
    shown, more = view.totals[:_TOTAL_ROWS], len(view.totals) - _TOTAL_ROWS
    if not shown:
        return ""
    rows = "".join(
        f"<tr><td>{_site(view, whole.frame)}</td>{_cell(whole.allocations, f'{whole.allocations:,}')}"
        f"{_cell(whole.total_bytes, format_bytes(whole.total_bytes))}"
        f"{_cell(whole.total_bytes / whole.allocations, format_bytes(whole.total_bytes // whole.allocations))}"
        f"{_lifetime(whole.mean_lifetime_ns)}</tr>"
        for whole in shown
    )
    foot = f'<tfoot class="rest"><tr><td colspan="5">{more:,} more sites</td></tr></tfoot>' if more > 0 else ""
    names = ("site", "allocations", "bytes in all↓", "mean size", "mean lifetime")
    return _table(view, "Sites over the whole run", "", names, rows, foot)


def _lifetime(mean_ns: float | None) -> str:
    return _cell(-1, "never freed") if mean_ns is None else _cell(mean_ns, format_duration(mean_ns))


def _table(view: View, heading: str, above: str, names: tuple[str, ...], rows: str, foot: str) -> str:
    head = "".join(_heading(name) if name else '<th class="bar"></th>' for name in names)
    folder = f'<p>Files are in <span class="path">{foreign(view.home)}</span></p>' if view.home else ""
    return (
        f'<section class="card long"><h2>{heading}</h2>{folder}{above}<div class="scroll" tabindex="0"><table>'
        f"<thead><tr>{head}</tr></thead><tbody>{rows}</tbody>{foot}</table></div></section>\n"
    )


def _heading(name: str) -> str:
    """An arrow in the name says that the rows come sorted by it."""
    word = name.removesuffix("↓")
    order = "" if word == name else ' aria-sort="descending"'
    return f'<th scope="col"{order}><button type="button">{word}</button></th>'


def _cell(value: float, words: str) -> str:
    """The number to sort by beside the words to read."""
    number = f"{value:.6g}" if isinstance(value, float) else value
    return f'<td data-v="{number}">{words}</td>'


def _site(view: View, frame: Frame) -> str:
    key = f'<i class="key {key_of(view, label_of(frame))}"></i>'
    if not frame.line:
        return f'<span class="site">{key}<span>{foreign(label_of(frame))}</span></span>'
    folder, cut, file = view.short(frame.file.replace("\\", "/")).rpartition("/")
    place = f"<s>{foreign(folder + cut)}</s>{foreign(file)}:{frame.line}"
    path = f'<span class="path" title="{foreign(frame.file)}">{place}</span>'
    return f'<span class="site">{key}{path}<span class="name">{foreign(frame.name)}</span></span>'
