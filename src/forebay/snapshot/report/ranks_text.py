"""The text of a comparison of ranks."""

from __future__ import annotations

from forebay._base.byte_sizes import format_bytes
from forebay._base.untrusted import printable, shortened
from forebay.snapshot.analysis.ranks import Ranks
from forebay.snapshot.report.paragraph import Paragraph, brief_label, change, count, short_labels

__all__ = ["ranks_paragraphs"]

_ERRORS, _SKEWED, _REASON = 20, 8, 200


def ranks_paragraphs(found: Ranks, *, rows: int = 1000) -> list[Paragraph]:
    """Return the text of a comparison of ranks.

    Parameters
    ----------
    found : Ranks
        The comparison.
    rows : int, default 1000
        Most ranks in the table.

    Returns
    -------
    list of Paragraph
        The overview, outliers, sites that differ between the ranks, out-of-memory errors, all ranks, and the files that
        could not be read.
    """
    parts = [_overview(found), _outliers(found), _skew(found), _errors(found), _table(found, rows), _unreadable(found)]
    return [part for part in parts if part.sentences or part.rows]


def _overview(found: Ranks) -> Paragraph:
    ranks = found.ranks
    if not ranks:
        return Paragraph("No rank could be read", ("None of the files is a readable snapshot.",))
    low, high = min(ranks, key=lambda rank: rank.peak), max(ranks, key=lambda rank: rank.peak)
    if len(ranks) == 1:
        sentences = [f"Its peak of live memory is {format_bytes(high.peak)}."]
    else:
        highest = f"The highest is {format_bytes(high.peak)} in {printable(high.name)}"
        lowest = f"the lowest {format_bytes(low.peak)} in {printable(low.name)}"
        sentences = [f"The median of the peaks of live memory is {format_bytes(found.median_peak)}."]
        sentences.append(f"{highest}, {lowest}; the highest is {found.skew:.2f} times the mean.")
    failed = sum(rank.ooms > 0 for rank in ranks)
    sentences.append(f"{count(failed, 'rank')} ran out of memory." if failed else "No rank ran out of memory.")
    return Paragraph(count(len(ranks), "rank"), tuple(sentences))


def _outliers(found: Ranks) -> Paragraph:
    if len(found.ranks) < 2:
        return Paragraph("")
    if not found.outliers:
        return Paragraph("Outliers", ("No rank differs much from the median.",))
    labels, folder = short_labels([outlier.label or "(no single site)" for outlier in found.outliers])
    rows = [
        (printable(outlier.rank.name), format_bytes(outlier.rank.peak), change(outlier.difference), label,
         change(outlier.site_bytes - outlier.site_median) if outlier.label else "")
        for outlier, label in zip(found.outliers, labels, strict=True)
    ]  # fmt: skip
    text = (
        f"{count(len(rows), 'rank differs', 'ranks differ')} from the median by more than 5 %, and "
        "clearly more than most others. Beside each is the site that differs most from its median over all ranks."
    )
    columns = ("rank", "peak", "from the median", "site", "its difference")
    most = max(abs(outlier.difference) for outlier in found.outliers)
    shares = tuple(abs(outlier.difference) / most for outlier in found.outliers)
    return Paragraph("Outliers", (text, *folder), columns, tuple(rows), shares=shares, text_columns=(0, 3))


def _skew(found: Ranks) -> Paragraph:
    if len(found.ranks) < 2:
        return Paragraph("")
    if not found.sites:
        return Paragraph("Skew by site", ("No site differs between the ranks by 1 % of the median peak or more.",))
    shown = found.sites[:_SKEWED]
    labels, folder = short_labels([site.label for site in shown])
    rows = [
        (label, format_bytes(site.lowest), format_bytes(site.median), format_bytes(site.highest), printable(site.rank))
        for label, site in zip(labels, shown, strict=True)
    ]
    text = f"{count(len(found.sites), 'site differs', 'sites differ')} between the ranks, at the peak of each."
    if len(found.sites) > len(shown):
        text += f" The first {len(shown):,}:"
    shares = tuple(site.spread / shown[0].spread for site in shown)
    columns = ("site", "lowest", "median", "highest", "in rank")
    return Paragraph("Skew by site", (text, *folder), columns, tuple(rows), shares=shares, text_columns=(0, 4))


def _errors(found: Ranks) -> Paragraph:
    failed = [rank for rank in found.ranks if rank.ooms]
    rows = [
        (printable(rank.name), f"{rank.ooms:,}", format_bytes(rank.oom_wanted) if rank.oom_wanted else "-",
         brief_label(rank.oom_label) or "(not in the history)")
        for rank in failed[:_ERRORS]
    ]  # fmt: skip
    text = f"The first {_ERRORS} of {len(failed):,} ranks that ran out of memory." if len(failed) > _ERRORS else ""
    columns = ("rank", "errors", "last request", "site")
    explain = "The command “forebay explain” tells the cause for one of these files."
    sentences = tuple(filter(None, (text, explain))) if failed else ()
    return Paragraph("Out of memory", sentences, columns if rows else (), tuple(rows), text_columns=(0, 3))


def _table(found: Ranks, rows: int) -> Paragraph:
    shown = found.ranks[:rows]
    highest = max((rank.peak for rank in shown), default=0) or 1
    table = tuple(
        (printable(rank.name), format_bytes(rank.peak), change(rank.peak - found.median_peak), format_bytes(rank.end),
         format_bytes(rank.reserved), f"{rank.ooms:,}",
         f"{rank.entries:,}" + "+" * (rank.lost > 0) + "*" * rank.truncated)
        for rank in shown
    )  # fmt: skip
    sentences = []
    if len(found.ranks) > len(shown):
        sentences.append(f"The first {len(shown):,} of {len(found.ranks):,} ranks.")
    if any(rank.lost for rank in shown):
        sentences.append("Of a history marked “+” the ring buffer dropped the oldest entries.")
    if any(rank.truncated for rank in shown):
        sentences.append("A file marked “*” is truncated: its newest entries are missing.")
    columns = ("rank", "peak", "from the median", "at the end", "reserved", "out of memory", "history")
    shares = tuple(rank.peak / highest for rank in shown)
    return Paragraph("All ranks", tuple(sentences), columns if table else (), table, shares=shares)


def _unreadable(found: Ranks) -> Paragraph:
    rows = tuple((printable(file.name), printable(shortened(file.reason, _REASON))) for file in found.unreadable)
    text = (f"{count(len(rows), 'file')} could not be read, and {'is' if len(rows) == 1 else 'are'} not counted.",)
    return Paragraph("Unreadable files", text if rows else (), ("file", "reason") if rows else (), rows,
                     text_columns=(0, 1))  # fmt: skip
