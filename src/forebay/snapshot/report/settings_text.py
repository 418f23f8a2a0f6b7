"""The paragraph of an explanation on allocator settings: how exact the replay is, and which settings help."""

from __future__ import annotations

from collections.abc import Iterator

from forebay._base.byte_sizes import format_bytes
from forebay._base.untrusted import printable
from forebay.snapshot.report.explanation import Explanation
from forebay.snapshot.report.paragraph import Paragraph, count

__all__ = ["settings_paragraph"]

_TRIED = 5  # rows of the table
_RECORD = (
    "To record one that does, call torch.cuda.memory._record_memory_history(max_entries=100000) before the program "
    "allocates."
)


def settings_paragraph(found: Explanation) -> Paragraph:
    """Return what replays with other allocator settings have shown; an empty paragraph if there were none."""
    remedies = found.remedies
    if remedies is None:
        return Paragraph("")
    out_of_memory = bool(found.errors)
    if not remedies.allocations:
        text = (
            f"The history of {count(found.entries, 'entry', 'entries')} has no allocation, so no settings can be tried."
        )
        return Paragraph("Allocator settings", (text, _RECORD))
    sentences = list(_fidelity(found))
    error = remedies.fidelity.error
    least = f"more than {format_bytes(2 * error)}" if error else "1 % or more"
    aim = "avoid this error" if out_of_memory else f"lower the peak of reserved memory by {least}"
    helpful = remedies.helpful
    tried = count(len(remedies.tried), "setting")
    if not remedies.proved:
        sentences.append("So no setting is claimed to help; the table shows the replays for information.")
    elif not helpful:
        sentences.append(f"None of the {tried} that were replayed would {aim}.")
    else:
        after, before = helpful[0].outcome.peak_reserved, remedies.baseline.peak_reserved
        peak = "" if out_of_memory else f", with {format_bytes(after)} instead of {format_bytes(before)}"
        sentences.append(
            f"Of the {tried} that were replayed, {len(helpful):,} would {aim}. The first of them reserves the "
            f"least{peak}."
        )
        if out_of_memory and found.growth is not None and found.growth.steady:
            sentences.append("As memory grows in each repetition, this may only postpone the error.")
        sentences.append("To use it, set:")
    rows = []
    for name, outcome in [("as recorded", remedies.baseline)] + [
        (printable(remedy.outcome.settings).replace(",", ", "), remedy.outcome) for remedy in remedies.tried[:_TRIED]
    ]:
        failed = "no" if not outcome.refused else "at the start" if outcome.refused[0] < 0 else (
            f"at entry {outcome.refused[0] + 1:,}" if outcome.stopped else count(len(outcome.refused), "time")
        )  # fmt: skip
        calls = f"{outcome.device_allocs + outcome.device_frees:,}"
        rows.append((name, format_bytes(outcome.peak_reserved), calls, failed))
    columns = ("settings", "peak reserved", "device calls", "out of memory")
    line = printable(helpful[0].environment) if helpful else ""
    return Paragraph("Allocator settings", tuple(sentences), columns, tuple(rows), line)


def _fidelity(found: Explanation) -> Iterator[str]:
    remedies = found.remedies
    if remedies is None:
        return
    same = remedies.fidelity
    memory = "" if remedies.memory is None else f" and {format_bytes(remedies.memory)} of memory"
    events = count(remedies.events, "allocation or free", "allocations and frees")
    start = f"{events}, replayed with the recorded settings{memory},"
    if same.exact:
        errors = " and run out of memory at the same requests" if found.errors else ""
        yield f"{start} reserve and release the same segments as recorded ({count(same.equal, 'event')}){errors}."
        return
    if same.recorded == same.replayed == same.equal:
        yield f"{start} reserve and release the same segments as recorded ({count(same.equal, 'event')})."
    else:
        yield (
            f"{start} do not reproduce the recording exactly: {same.replayed:,} segment events instead of "
            f"{same.recorded:,}{f', of which the first {same.equal:,} are equal' if same.equal else ''}."
        )
        if not remedies.baseline.from_recorded_state:
            yield (
                "The replay begins with the blocks that were live before the history, but without the cached memory "
                "and the gaps of the program at that time."
            )
        else:
            yield "The program's allocator had other settings or other rules, or the file is incomplete."
        yield (
            f"The peak of reserved memory is {format_bytes(same.replayed_peak)} in the replay and "
            f"{format_bytes(same.recorded_peak)} in the recording"
            + (f": settings that save less than {format_bytes(2 * same.error)} are not advised." if same.error else ".")
        )
    if not same.same_errors:
        yield "It does not run out of memory at the same requests as the program did."
