"""The paragraphs of an explanation on changes of the program, each of which a replay has proved or refuted."""

from __future__ import annotations

from dataclasses import replace

from forebay._base.byte_sizes import format_bytes
from forebay._base.untrusted import printable, shortened
from forebay.snapshot.replay.changes import BACKWARD, ERROR, Change, Kind
from forebay.snapshot.replay.program_advice import BUDGET, Advice, WhatIf
from forebay.snapshot.report.explanation import Explanation
from forebay.snapshot.report.paragraph import Paragraph, change, count, short_labels

__all__ = ["changes_paragraphs"]

_TEXT = 300  # characters of a change


def changes_paragraphs(found: Explanation) -> list[Paragraph]:
    """Return what replays of the changed program have shown: what was asked for, and what is suggested.

    Parameters
    ----------
    found : Explanation
        The explanation.
    """
    if found.what_if is None:
        return []
    return [part for part in (_asked(found, found.what_if), _suggested(found, found.what_if)) if part.heading]


def _asked(found: Explanation, advice: Advice) -> Paragraph:
    if not advice.asked:
        return Paragraph("")
    failed = found.request is not None
    wanted = found.request.event.wanted if found.request is not None else 0
    rows = []
    for each in advice.asked:
        end = each.outcome
        if failed:
            result = "yes" if each.proved else "unproved" if each.fits else "no"
        else:
            result = change(-each.saved) + ("" if each.proved or not each.saved else ", unproved")
        rows.append((printable(shortened(each.text, _TEXT)), f"{each.blocks:,}", _from_to(each, wanted),
                     format_bytes(end.peak_reserved), result))  # fmt: skip
    last = "the request fits" if failed else "change of the peak"
    columns = ("what if", "blocks", "live at that moment", "reserved at most", last)
    memory = "" if advice.memory is None else f" with {format_bytes(advice.memory)} of memory"
    until = ", up to the failed request" if failed else ""
    most = format_bytes(advice.baseline.peak_reserved)
    sentences = [
        f"Each change was replayed alone{memory}{until}; all other requests are as recorded.",
        f"Without a change, {most} are reserved at most.",
    ]
    remedies = found.remedies
    if remedies is not None and not remedies.proved:
        sentences.append(
            "The replay of the unchanged program does not run out of memory where the program did: nothing is proved."
        )
    elif remedies is not None and remedies.fidelity.error:
        margin = format_bytes(2 * remedies.fidelity.error)
        sentences.append(
            f"Proved is what also holds with {margin} less memory, twice the error of the replay."
            if failed else f"Proved is what changes the peak by more than {margin}, twice the error of the replay."
        )  # fmt: skip
    kept = sum(each.kept for each in advice.asked)
    if kept:
        sentences.append(f"Not made larger: {count(kept, 'block')} older than the history.")
    return Paragraph("What if", tuple(sentences), columns, tuple(rows))


def _suggested(found: Explanation, advice: Advice) -> Paragraph:
    request = found.request
    if request is None or not (advice.suggested or advice.cut):
        return Paragraph("")
    limit = (
        f"The search for changes ended after {count(advice.replays, 'replay')}, at its limit of {BUDGET:,} replayed "
        "entries. Try others with --what-if 'SITE size=0.5', blocks=N or freed-before=WHEN."
    )
    if not advice.suggested:
        return Paragraph("Changes of the program", (limit,))
    wanted = request.event.wanted
    labels, folder = short_labels([each.label for each in advice.suggested])
    rows = [
        (
            _change(each, each.changes[0], label, wanted),
            _from_to(each, wanted),
            format_bytes(each.outcome.peak_reserved),
        )
        for each, label in zip(advice.suggested, labels, strict=True)
    ]
    first = advice.suggested[0].changes[0]
    hint = str(replace(first, site=labels[0]))
    sentences = [
        f"With each of these changes alone, the request of {format_bytes(wanted)} fits.",
        "The history was replayed with it up to the request; all other requests are as recorded.",
        "What the program would have requested afterwards is not known.",
        limit if advice.cut else f"Try others with --what-if, as in --what-if '{hint}'.",
        *folder,
    ]
    columns = ("it fits", "live at the error", "reserved at most")
    return Paragraph("Changes of the program that avoid this error", tuple(sentences), columns, tuple(rows))


def _from_to(found: WhatIf, wanted: int) -> str:
    if not found.blocks and found.request is not None:
        return f"{format_bytes(wanted)} → {format_bytes(found.request)}"
    if found.nbytes == found.bytes_left:
        return format_bytes(found.nbytes)
    return f"{format_bytes(found.nbytes)} → {format_bytes(found.bytes_left)}"


def _change(found: WhatIf, made: Change, label: str, wanted: int) -> str:
    """Return a change as the end of a sentence that begins with "it fits"."""
    if made.kind == Kind.BLOCKS:
        return f"with {found.blocks_left:,} of the {found.blocks:,} blocks of {label}"
    if made.kind == Kind.FREED_BEFORE:
        if made.when == found.label:
            return f"if {label} freed each block before it allocates the next one"
        when = {BACKWARD: "the backward pass", ERROR: "this request"}.get(made.when, made.when)
        return f"if {_these(found.blocks)} of {label} {'was' if found.blocks == 1 else 'were'} freed before {when}"
    if found.request is not None and not found.blocks:
        return f"if {label} requested {format_bytes(found.request)} instead of {format_bytes(wanted)}"
    also = f", the request included ({format_bytes(found.request)})" if found.request is not None else ""
    blocks = _these(found.blocks)
    return f"if {blocks} of {label} had {made.number:.0%} of {'its' if found.blocks == 1 else 'their'} size{also}"


def _these(blocks: int) -> str:
    return "the block" if blocks == 1 else f"the {blocks:,} blocks"
