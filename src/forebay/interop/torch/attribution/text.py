"""The result of a PyTorch program on an emulated device as paragraphs: whether it fits, and what held the peak."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from forebay.byte_sizes import format_bytes
from forebay.interop.torch.attribution.results import Holder, PeakUse
from forebay.snapshot.replay.remedies import Remedies
from forebay.snapshot.report.paragraph import Paragraph, short_labels

__all__ = ["for_pytorch", "paragraphs"]

_ROWS = 8


def for_pytorch(environment: str) -> str:
    """Return the assignment of allocator settings under PyTorch's name of the variable, which forebay reads, too."""
    return environment.replace("FOREBAY_ALLOC_CONF=", "PYTORCH_ALLOC_CONF=")


def paragraphs(use: PeakUse, remedies: Remedies | None = None, *, lines: bool = True) -> list[Paragraph]:
    """Return the result of one device; `remedies` are replays of its history. `lines` adds the lines of the program."""
    parts = [_verdict(use, remedies)]
    if use.categories:
        parts.append(_table(f"Held at the peak, in the {_PHASES[use.phase]}", "category", use.categories))
    if len(use.modules) > 1:
        parts.append(_table("By module", "module", use.modules))
    if lines and use.lines:
        labels, folder = short_labels([each.name for each in use.lines[:_ROWS]])
        shown = [Holder(label, each.nbytes, each.count, each.share) for label, each in zip(labels, use.lines)]  # noqa: B905 -- the first rows
        parts.append(_table("By line", "line", [*shown, *use.lines[_ROWS:]], folder))
    return parts


_PHASES = {"forward": "forward pass", "backward": "backward pass", "optimizer": "step of the optimizer",
           "other": "rest of the program"}  # fmt: skip


def _verdict(use: PeakUse, remedies: Remedies | None) -> Paragraph:
    where = f"cuda:{use.index} ({use.name})"
    peaks = (
        f"The peak is {format_bytes(use.peak_allocated)} allocated and {format_bytes(use.peak_reserved)} reserved of "
        f"{format_bytes(use.capacity)}."
    )
    helpful = () if remedies is None else remedies.helpful
    line = for_pytorch(helpful[0].environment) if helpful else ""
    if use.fits:
        left = f"{format_bytes(use.spare)} ({use.spare / use.capacity:.0%}) were never reserved."
        sentences = [peaks, left]
        if helpful:
            best = helpful[0]
            sentences.append(
                f"With these settings it reserves {format_bytes(best.outcome.peak_reserved)}, as a replay of all "
                f"{remedies.events:,} allocations and frees shows:"  # type: ignore[union-attr]  # has the helpful ones
            )
        return Paragraph(f"PyTorch: the program fits on {where}", tuple(sentences), line=line)
    sentences = [peaks]
    if helpful:
        sentences.append(
            f"With these settings the request succeeds, as a replay of the {remedies.events:,} allocations and frees "  # type: ignore[union-attr]  # as above
            "up to it shows:"
        )
    elif remedies is not None and remedies.proved:
        tried = f"None of the {len(remedies.tried)} settings that were tried by replay"
        sentences.append(f"{tried} makes the request succeed.")
    return Paragraph(f"PyTorch: the program does not fit on {where}", tuple(sentences), line=line)


def _table(heading: str, column: str, holders: Sequence[Holder], sentences: tuple[str, ...] = ()) -> Paragraph:
    rows = [_row(each) for each in holders[:_ROWS]]
    shares = [each.share for each in holders[:_ROWS]]
    if rest := holders[_ROWS:]:
        rows.append(_row(_sum(f"{len(rest):,} others", rest)))
        shares.append(sum(each.share for each in rest))
    columns = (column, "bytes", "share", "allocations")
    return Paragraph(heading, sentences, columns, tuple(rows), shares=tuple(shares))


def _row(holder: Holder) -> tuple[str, ...]:
    return holder.name, format_bytes(holder.nbytes), f"{holder.share:.1%}", f"{holder.count:,}"


def _sum(name: str, holders: Iterable[Holder]) -> Holder:
    found = [*holders]
    return Holder(
        name, sum(each.nbytes for each in found), sum(each.count for each in found), sum(each.share for each in found)
    )
