"""The text of an explanation: paragraphs of sentences and tables, for the terminal, a page or a notebook."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from forebay._base.byte_sizes import format_bytes
from forebay._base.untrusted import printable, shortened
from forebay.records.site_labels import with_library
from forebay.snapshot.report.changes_text import changes_paragraphs
from forebay.snapshot.report.explanation import Cause, Explanation, OomRequest, of_host
from forebay.snapshot.report.other_devices_text import other_devices_paragraph
from forebay.snapshot.report.paragraph import Paragraph, count, short_labels
from forebay.snapshot.report.ranges_text import chosen_paragraph, place_sentence, ranges_paragraph
from forebay.snapshot.report.settings_text import settings_paragraph

__all__ = ["paragraphs"]

_SITES, _PINS, _GROWING, _ERRORS = 6, 4, 5, 5  # rows of the tables
_TEXT = 300  # characters of a text from the file


def paragraphs(found: Explanation) -> list[Paragraph]:
    """Return the text of an explanation.

    Parameters
    ----------
    found : Explanation
        The explanation.

    Returns
    -------
    list of Paragraph
        The cause, the memory at that moment, its holders, pinned segments, growth, changes of the program,
        settings, and remarks.
    """
    parts = [
        _placed(_cause(found), found),
        chosen_paragraph(found),
        _memory(found),
        other_devices_paragraph(found),
        _holders(found),
        _pools(found),
        _pinned(found),
        ranges_paragraph(found),
        _growth(found),
    ]
    parts += [*changes_paragraphs(found), settings_paragraph(found), _other_errors(found), _remarks(found)]
    return [part for part in parts if part.sentences or part.rows]


def _placed(paragraph: Paragraph, found: Explanation) -> Paragraph:
    return replace(paragraph, sentences=(*paragraph.sentences, *place_sentence(found)))


def _cause(found: Explanation) -> Paragraph:
    device, use = printable(found.device), found.use
    if found.request is not None:
        return Paragraph(f"{device} ran out of memory", tuple(_reasons(found, found.request)))
    overhead = use.reserved - use.live
    reserved = f"{format_bytes(use.reserved)} were reserved to hold {'it' if use.live else 'blocks'}"
    share = f", {overhead / use.reserved:.0%} of them without live data" if use.reserved else ""
    if found.cause == Cause.FINAL:
        text = (
            f"The file has no history, so only its last moment can be explained: {format_bytes(use.live)} were live, "
            f"and {reserved}{share}."
        )
        return Paragraph(f"{device} at the end", (text,))
    if found.chosen is not None:
        part = found.chosen.selection
        most = f"In {part.name}, the most memory was live after entry {found.moment:,}"
        when = f"{most} of {found.entries:,}" if part.begin < part.end else f"After entry {part.begin:,}"
        live = format_bytes(use.live + use.outside)
        text = f"{when}: {live}." if part.begin < part.end else f"{when}, {live} were live."
        return Paragraph(f"{device} in a part of its history", (text, f"{reserved}{share}."))
    most = f"The most memory was live after entry {found.moment:,}: {format_bytes(use.live + use.outside)}."
    sentences = [
        f"Memory did not run out in this history of {count(found.entries, 'entry', 'entries')}.",
        f"{most} {reserved}{share}.",
    ]
    return Paragraph(f"Peak of {device}", tuple(sentences))


def _reasons(found: Explanation, request: OomRequest) -> Iterator[str]:
    use, event = found.use, request.event
    wanted, free = format_bytes(event.wanted), format_bytes(event.device_free)
    is_host = of_host(found.device)
    place = "" if is_host else f" for stream {request.queue}"
    place += f" in private pool {request.pool}" if request.pool else ""
    label = short_labels([event.label, *(use.label for use in found.sites[:_SITES])])[0][0]
    yield f"Entry {request.entry + 1:,} of {found.entries:,}: {label} requested {wanted}{place}."
    total = f" of {format_bytes(found.capacity)}" if found.capacity else ""
    segment = format_bytes(request.segment)
    held, all_free = use.reserved - use.cached - use.fragmented, use.cached + use.fragmented
    if found.cause == Cause.LIMIT:
        yield (
            f"The device had {free}{total} free, enough for a new segment of {segment}, so a limit of the process was "
            f"reached, with {format_bytes(use.reserved)} reserved. Raise the limit "
            f"({'forebay run --memory' if is_host else 'set_per_process_memory_fraction'}), or free memory earlier."
        )
        return
    missing = (
        "enough pages could not be mapped"
        if _expandable(found)
        else f"a new segment of {segment} could not be reserved"
    )
    yield f"No free block{place} was large enough, and {missing}: the device had {free}{total} free."
    if found.cause == Cause.TOO_LARGE:
        yield (
            f"The program needs more memory than it has: blocks in use take {format_bytes(held)}, with the request "
            f"{format_bytes(held + event.wanted)}; it could reserve {format_bytes(use.reserved + event.device_free)}."
        )
        yield (
            "This is not fragmentation: with all free memory in one piece, "
            f"{format_bytes(event.wanted - event.device_free - all_free)} would still be missing. Free memory earlier, "
            f"or make the largest of the {_smaller(is_host)}."
        )
    elif found.cause == Cause.SEGMENT:
        yield (
            f"The device had enough for the block, but not for a whole segment: the allocator reserves {segment} for a "
            f"request of {wanted}. Free memory earlier, or reserve less before."
        )
    elif found.cause == Cause.OTHER_CLASS:
        yield (
            "Larger blocks are free, but in segments for another size class: blocks of at most 1 MiB and larger blocks "
            "never share a segment. Free memory earlier, so that a whole segment can return to the device."
        )
    elif found.cause == Cause.OTHER_QUEUE:
        other = "is for arrays or for tensors only" if is_host else "belongs to another stream"
        yield (
            f"A free block of {format_bytes(use.largest_free)} is large enough, but it {other}, and "
            f"the allocator does not move memory between {'them' if is_host else 'streams'}: the largest free "
            f"block{place} has {format_bytes(request.largest_free)}. "
            f"{'Free' if is_host else 'Allocate on the same stream, or free'} everything in the segments of the other "
            "one."
        )
    elif found.cause == Cause.OTHER_POOL and use.largest_free >= event.wanted:
        yield (
            f"A free block of {format_bytes(use.largest_free)} is large enough, but it belongs to another pool (of a "
            f"graph or a MemPool), whose memory only that pool uses: the largest free block{place} has "
            f"{format_bytes(request.largest_free)}. Delete the graph or the pool, or allocate in it."
        )
    elif found.cause == Cause.OTHER_POOL:
        private = sum(pool.free_bytes for pool in found.pools if pool.pool != request.pool)
        yield (
            f"{format_bytes(private)} of the reserved memory are free, but in private pools (of graphs or MemPools), "
            f"whose memory only they use. Without them {format_bytes(event.device_free + all_free - private)} are "
            "free, less than the request. Delete the graphs or pools below, or allocate in them."
        )
    else:
        yield (
            f"The memory is fragmented: {format_bytes(all_free)} of the reserved memory and {free} of the device are "
            f"free, together more than the request. But they are in pieces: the largest free block{place} has "
            f"{format_bytes(request.largest_free)}, and live blocks keep the segments from returning to the device."
        )


def _smaller(is_host: bool) -> str:
    """Return what can be made smaller, and how."""
    if is_host:
        return "arrays below smaller (dtype, parts of the data), or give the program more memory (forebay run --memory)"
    return "allocations below smaller (batch size, sequence length, precision)"


def _memory(found: Explanation) -> Paragraph:
    use = found.use

    def row(name: str, nbytes: int) -> tuple[str, ...]:
        return name, format_bytes(nbytes), f"{nbytes / use.reserved:.1%}" if use.reserved else "-"

    rows = [row("live, as requested by the program", use.live), row("rounding of live blocks", use.rounding)]
    if use.pending:
        rows.append(row("freed, but in use by other streams", use.pending))
    rows += [
        *([("live, but in no segment of the file", format_bytes(use.outside), "")] if use.outside else []),
        row("cached: free, in segments without blocks", use.cached),
        row("fragmented: free, beside live blocks", use.fragmented),
        row(f"reserved, in {count(use.segments, 'segment')}", use.reserved),
    ]
    if found.request is not None:
        free = found.request.event.device_free
        rows.append(("free on the device", format_bytes(free), ""))
        others = found.capacity - use.reserved - free
        if found.capacity and others > 0:
            rows.append(("other processes, libraries and the driver", format_bytes(others), ""))
    rows.append(("largest free block", format_bytes(use.largest_free), ""))
    return Paragraph("Memory at that moment", (), ("part", "bytes", "of reserved"), tuple(rows))


def _holders(found: Explanation) -> Paragraph:
    shown, rest = found.sites[:_SITES], found.sites[_SITES:]
    labels, sentences = short_labels([use.label for use in shown])
    rows = [
        (with_library(label, use.library), format_bytes(use.live_bytes), f"{use.share:.1%}", f"{use.count:,}")
        for label, use in zip(labels, shown, strict=True)
    ]
    if rest:
        nbytes, share = sum(use.live_bytes for use in rest), sum(use.share for use in rest)
        blocks = sum(use.count for use in rest)
        rows.append((count(len(rest), "other site"), format_bytes(nbytes), f"{share:.1%}", f"{blocks:,}"))
    return Paragraph("Who holds the live memory", sentences, ("site", "bytes", "of live", "blocks"), tuple(rows))


def _pools(found: Explanation) -> Paragraph:
    """Return the private pools that have a noticeable part of the reserved memory free."""
    shown = [pool for pool in found.pools if pool.free_bytes >= 0.005 * found.use.reserved][:_PINS]
    if not shown:
        return Paragraph("")
    labels, folder = short_labels([pool.label or "(unknown)" for pool in shown])
    rows = [
        (label, printable(pool.name), format_bytes(pool.free_bytes), format_bytes(pool.live_bytes))
        for label, pool in zip(labels, shown, strict=True)
    ]
    text = (
        "Only the pool itself can use this memory. Segments without blocks return to the device when its graph or "
        "MemPool is deleted."
    )
    return Paragraph(
        "Free memory of private pools", (text, *folder), ("reserved by", "pool", "free", "live"), tuple(rows)
    )


def _pinned(found: Explanation) -> Paragraph:
    """Return the blocks that pin segments, if they pin a noticeable part of the free memory."""
    shown = [pins for pins in found.pins if pins.free_bytes >= 0.005 * found.use.reserved][:_PINS]
    if not shown:
        return Paragraph("")
    labels, folder = short_labels([pins.label for pins in shown])
    noun = "page" if _expandable(found) else "segment"
    free, held = sum(pins.free_bytes for pins in found.pins), sum(pins.held_bytes for pins in found.pins)
    text = (
        f"{count(sum(pins.units for pins in found.pins), noun)} with "
        f"{format_bytes(free)} free cannot return to the device, because blocks of only {format_bytes(held)} are in "
        "them. Allocate such long-lived blocks before the large temporary ones"
    )
    is_host = of_host(found.device)
    text += "." if is_host else ", or in a memory pool of their own."
    rows = [
        (label, *(() if is_host else (str(pins.queue), str(pins.pool or "-"))), f"{pins.units:,}",
         format_bytes(pins.free_bytes), format_bytes(pins.held_bytes))
        for label, pins in zip(labels, shown, strict=True)
    ]  # fmt: skip
    columns = ("held mainly by", *(() if is_host else ("stream", "pool")), f"{noun}s", "free in them", "held")
    return Paragraph(f"Mostly free {noun}s that are pinned", (text, *folder), columns, tuple(rows))


def _growth(found: Explanation) -> Paragraph:
    grown = found.growth
    if grown is None:
        none = "The history does not repeat, so growth from step to step cannot be measured."
        return Paragraph("Growth", (none,) if found.entries else ())
    steps = grown.steps
    word = "step" if steps.name else "repetition"
    how = "a pattern of" if steps.exact and not steps.name else "about"
    how += f" {count(steps.allocations, 'allocation')}"
    sentences = [f"The history repeats {how} {steps.count:,} times."]
    if steps.name:
        name = printable(shortened(steps.name, _TEXT))
        sentences = [f"{steps.count:,} steps that the program marked (“{name}”), of {how}, are compared."]
    if not grown.steady:
        change = "falls" if grown.per_step < 0 else "does not grow steadily"
        sentences.append(f"Live memory {change} from one {word} to the next.")
        return Paragraph("Growth", tuple(sentences))
    average = "" if grown.grown == grown.compared else " on average"
    sentences.append(
        f"Live memory grows by {format_bytes(round(grown.per_step))} in each{average}, from "
        f"{format_bytes(grown.first_bytes)} before the first to {format_bytes(grown.last_bytes)} after the last."
    )
    if found.request is not None:
        event, total = found.request.event, grown.last_bytes - grown.first_bytes
        missing = event.wanted - event.device_free
        if 0 < missing <= total:
            sentences.append(f"This growth is more than the {format_bytes(missing)} that the request was short of.")
    if grown.leaks:
        names = "line" if len(grown.leaks) == 1 else "lines"
        sentences.append(
            f"Leak candidates: nothing that the {names} marked “never” allocated in these {word}s was freed. If a "
            f"{word} is a training step, find the reference that keeps it (a list of losses, a cache). If it is a "
            "layer of a forward pass, the memory is kept for the backward pass."
        )
    shown = grown.sites[:_GROWING]
    labels, folder = short_labels([site.label for site in shown])
    rows = [
        (label, format_bytes(round(site.per_step)), format_bytes(site.last_bytes), f"{site.allocations:,}",
         f"{site.freed:,}" if site.freed else "never")
        for label, site in zip(labels, shown, strict=True)
    ]  # fmt: skip
    columns = (f"site that grows in each {word}", "growth", "live after", "allocations", "freed")
    return Paragraph("Growth", (*sentences, *(folder if rows else ())), columns if rows else (), tuple(rows))


def _expandable(found: Explanation) -> bool:
    return found.settings is not None and "expandable_segments:True" in found.settings.replace(" ", "")


def _other_errors(found: Explanation) -> Paragraph:
    request = found.request
    others = [error for error in found.errors if request is None or error.at != request.event.at]
    if not others:
        return Paragraph("")
    labels, folder = short_labels([error.label for error in others[-_ERRORS:]])
    rows = [
        (label, f"{error.at:,}", format_bytes(error.wanted), format_bytes(error.device_free))
        for label, error in zip(labels, others[-_ERRORS:], strict=True)
    ]
    text = f"The history has {len(found.errors):,} out-of-memory events, of which one is explained above."
    if len(others) > _ERRORS:
        text += f" The last {_ERRORS} of the others:"
    return Paragraph("Other out-of-memory events", (text, *folder), ("site", "entry", "requested", "free"), tuple(rows))


def _remarks(found: Explanation) -> Paragraph:
    sentences = []
    if found.truncated:
        sentences.append(f"The snapshot is truncated: {printable(shortened(found.truncated, _TEXT))}.")
    if found.use.outside:
        sentences.append(
            f"{format_bytes(found.use.outside)} of live blocks are in no segment of the file, which is incomplete or "
            "was changed: what is said about reserved and free memory does not include them."
        )
    if found.lost:
        sentences.append(f"The ring buffer dropped the first {found.lost:,} entries, so the history begins later.")
    if found.counted_errors > len(found.errors):
        earlier = found.counted_errors - len(found.errors)
        sentences.append(f"{count(earlier, 'earlier out-of-memory error')} happened outside the recorded history.")
    if found.peak_ever > max((use.live_bytes for use in found.sites), default=0) and found.peak_ever > found.use.live:
        sentences.append(f"The highest peak of live memory was {format_bytes(found.peak_ever)}, at another moment.")
    if found.settings is None:
        sentences.append("The file does not contain the settings of the recording; the defaults are assumed.")
    elif found.settings:
        sentences.append(f"Recorded with {printable(found.settings)}.")
    if any(use.label == "(before recording)" for use in found.sites[:_SITES]):
        sentences.append("“(before recording)” are blocks that were allocated before the history began.")
    if any(use.label == "(no stack)" for use in found.sites[:_SITES]):
        sentences.append(
            "“(no stack)” are blocks without a stack: in PyTorch, those of the backward pass if only stacks of Python "
            'were recorded (stacks="python").'
        )
    return Paragraph("Remarks", tuple(sentences))
