"""The result of a PyTorch program on an emulated device as paragraphs: its verdict, and what held the peak."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from forebay._base.byte_sizes import format_bytes
from forebay._base.outside_memory import OutsideMemory, workspaces_of_cudnn
from forebay._base.verdicts import Judgement, Verdict
from forebay.interop.torch.attribution.results import Holder, PeakUse
from forebay.interop.torch.processes import ProgramDevice
from forebay.snapshot.replay.remedies import Remedies
from forebay.snapshot.report.paragraph import Paragraph, short_labels

__all__ = [
    "for_pytorch",
    "kept_sentences",
    "memory_paragraph",
    "peak_paragraphs",
    "process_paragraph",
    "verdict_heading",
    "verdict_paragraph",
]

_ROWS = 8


def for_pytorch(environment: str) -> str:
    """Return the assignment of allocator settings under PyTorch's name of the variable, which forebay reads, too."""
    return environment.replace("FOREBAY_ALLOC_CONF=", "PYTORCH_ALLOC_CONF=")


def peak_paragraphs(use: PeakUse, *, lines: bool = True) -> list[Paragraph]:
    """Return what held the peak of one device. `lines` adds the lines of the program."""
    parts = []
    if use.kept:
        parts.append(Paragraph("What is kept", kept_sentences(use)))
    if use.categories:
        parts.append(
            _table(
                f"Held at the peak, in the {_PHASES[use.phase]}", "category", use.categories, most=len(use.categories)
            )
        )
    if len(use.modules) > 1:
        parts.append(_table("By module", "module", use.modules))
    if lines and use.lines:
        labels, folder = short_labels([each.name for each in use.lines[:_ROWS]])
        shown = [Holder(label, each.nbytes, each.count, each.share) for label, each in zip(labels, use.lines)]  # noqa: B905 -- the first rows
        parts.append(_table("By line", "line", [*shown, *use.lines[_ROWS:]], folder))
    return parts


def kept_sentences(use: PeakUse) -> tuple[str, ...]:
    """Return a sentence for each variable that keeps memory of several iterations, and of exceptions and closures."""
    return tuple(
        f"{each.text.removesuffix('.')}: {format_bytes(each.nbytes)}, {each.share:.0%} of the peak."
        for each in use.kept[:_ROWS]
    )


def verdict_heading(judgement: Judgement, where: str = "") -> str:
    """Return the verdict as a heading; `where` names the device."""
    on = f" on {where}" if where else ""
    words = {
        Verdict.FITS: f"the program fits{on}",
        Verdict.TIGHT: f"the program fits tightly{on}",
        Verdict.FITS_AFTER_ERRORS: f"the program {judgement.text}{on}",
        Verdict.FITS_WITH_OTHER_SETTINGS: f"the program fits with other settings{on}",
        Verdict.DOES_NOT_FIT: f"the program does not fit{on}",
        Verdict.DID_NOT_FINISH: f"the program {judgement.text}{on}",
        Verdict.NO_DEVICE_MEMORY: f"no device memory used{on}",
    }
    return f"PyTorch: {words[judgement.verdict]}"


def verdict_paragraph(
    judgement: Judgement, device: ProgramDevice, name: str, remedies: Remedies | None = None
) -> Paragraph:
    """Return the verdict on one device; `remedies` are replays of its history."""
    sentences = [*judgement.reasons, *_peaks(judgement, device)]
    helpful = () if remedies is None else remedies.helpful
    line = for_pytorch(helpful[0].environment) if helpful else ""
    if helpful and judgement.verdict is Verdict.DOES_NOT_FIT:
        sentences.append(
            f"With these settings the request succeeds, as a replay of the {remedies.events:,} allocations and frees "  # type: ignore[union-attr]  # has the helpful ones
            "up to it shows:"
        )
    elif helpful and device.events.ooms:
        sentences.append(
            f"With these settings every request succeeds, as a replay of all {remedies.events:,} allocations and frees "  # type: ignore[union-attr]  # as above
            "shows:"
        )
    elif helpful:
        sentences.append(
            f"With these settings it reserves {format_bytes(helpful[0].outcome.peak_reserved)}, as a replay of all "
            f"{remedies.events:,} allocations and frees shows:"  # type: ignore[union-attr]  # as above
        )
    elif judgement.verdict is Verdict.DOES_NOT_FIT and remedies is not None and remedies.proved:
        tried = f"None of the {len(remedies.tried)} settings that were tried by replay"
        sentences.append(f"{tried} makes the request succeed.")
    return Paragraph(verdict_heading(judgement, f"cuda:{device.events.index} ({name})"), tuple(sentences), line=line)


def memory_paragraph(device: ProgramDevice) -> list[Paragraph]:
    """Return the memory of a card at the peak, if something is outside the allocator."""
    events = device.events
    if not events.outside.high and not events.workspaces:
        return []
    estimated = workspaces_of_cudnn(events.workspaces)
    rows = (
        ("allocated, in blocks", format_bytes(events.allocated), ""),
        ("reserved, in segments", format_bytes(events.reserved), ""),
        *((("cuDNN workspaces (estimated)", *_range(estimated)),) if events.workspaces else ()),
        *((("outside the allocator", *_range(events.outside)),) if events.outside.high else ()),
        ("as nvidia-smi shows", *_range(events.needed)),
        ("the card", format_bytes(events.capacity), ""),
    )
    sentences = []
    if events.outside.high:
        source = events.outside.source
        sentences.append(f"Outside are CUDA's context, libraries and kernels: {source}; --reserve SIZE sets it.")
    if events.workspaces:
        sentences.append(f"cuDNN's workspaces are {estimated.source}. Where memory is short, cuDNN does without.")
    return [Paragraph("Memory at the peak", tuple(sentences), ("memory", "bytes", "range"), rows)]


def _range(found: OutsideMemory) -> tuple[str, str]:
    bounds = "" if found.low == found.high else f"{format_bytes(found.low)} to {format_bytes(found.high)}"
    return format_bytes(found.value), bounds


def process_paragraph(device: ProgramDevice, main: int) -> list[Paragraph]:
    """Return the processes that used a device, unless it is only the program's first one, whose number is `main`."""
    if [each.pid for each in device.processes] == [main]:
        return []
    rows = tuple(
        (str(each.pid), format_bytes(each.allocated), format_bytes(each.reserved)) for each in device.processes[:_ROWS]
    )
    sentences = () if device.is_exact else (
        "The peaks of all together are those at one time; of allocated bytes it is the most that it can be.",
    )  # fmt: skip
    return [
        Paragraph(
            f"Processes that used cuda:{device.events.index}", sentences, ("process", "allocated", "reserved"), rows
        )
    ]


def _peaks(judgement: Judgement, device: ProgramDevice) -> list[str]:
    events = device.events
    allocated, reserved, capacity = map(format_bytes, (events.allocated, events.reserved, events.capacity))
    so_far = " so far" if judgement.verdict is Verdict.DID_NOT_FINISH else ""
    at_most = "" if device.is_exact else "at most "
    sentences = [f"The peak{so_far} is {at_most}{allocated} allocated and {reserved} reserved of {capacity}."]
    if judgement.verdict.fits:
        spare = events.capacity - events.reserved
        sentences.append(f"{format_bytes(spare)} ({spare / max(events.capacity, 1):.0%}) were never reserved.")
    if events.workspaces:
        most = format_bytes(events.workspaces)
        sentences.append(f"cuDNN's workspaces for convolutions add up to {most} to what is reserved, by estimate.")
    if events.outside.high:
        sentences.append(
            f"With {events.outside.text} outside the allocator, nvidia-smi shows {events.needed.text} at the peak."
        )
    return sentences


_PHASES = {"forward": "forward pass", "backward": "backward pass", "optimizer": "step of the optimizer",
           "other": "rest of the program"}  # fmt: skip


def _table(
    heading: str, column: str, holders: Sequence[Holder], sentences: tuple[str, ...] = (), *, most: int = _ROWS
) -> Paragraph:
    rows = [_row(each) for each in holders[:most]]
    shares = [each.share for each in holders[:most]]
    if rest := holders[most:]:
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
