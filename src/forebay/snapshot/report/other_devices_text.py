"""The paragraph of an explanation on the other devices of a program, whose memory was not used."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from forebay._base.byte_sizes import format_bytes
from forebay._base.untrusted import printable
from forebay.snapshot.analysis.other_devices import OtherDevice
from forebay.snapshot.report.explanation import Explanation
from forebay.snapshot.report.paragraph import Paragraph, short_labels

__all__ = ["other_devices_paragraph"]

_SITES = 3  # that could move and are named


def other_devices_paragraph(found: Explanation) -> Paragraph:
    """Return what other devices used when this one ran out of memory, and which sites could be moved there."""
    if not found.others:
        return Paragraph("")
    labels, _ = short_labels([other.label or "-" for other in found.others])
    rows = [
        (printable(other.device), format_bytes(other.live), format_bytes(other.reserved),
         "-" if other.unused is None else format_bytes(other.unused), "yes" if other.ran_out else "no", label)
        for other, label in zip(found.others, labels, strict=True)
    ]  # fmt: skip
    columns = ("device", "live", "reserved", "unused", "ran out of memory", "largest site")
    return Paragraph(
        "Other devices of the program", tuple(_sentences(found)), columns, tuple(rows), text_columns=(0, 5)
    )


def _sentences(found: Explanation) -> Iterator[str]:
    device = printable(found.device)
    unused = [other for other in found.others if other.unused]
    when = "" if all(other.at_error for other in found.others) else " at their peaks, as the file has no times"
    if not unused:
        known = all(other.unused is not None for other in found.others)
        what = "" if known else "; how much memory they have is not in the file"
        yield f"When {device} ran out of memory, the other devices used this{when}{what}."
        return
    total = format_bytes(sum(other.unused or 0 for other in unused))
    yield f"{device} ran out of memory while {total} lay unused on {_names(unused)}{when}."
    if any(other.assumed for other in unused):
        memory = format_bytes(max(other.capacity for other in unused if other.assumed))
        yield f"The file does not contain their memory: assumed is what {device} could reserve, {memory} for each."
    movable = found.what_if.movable if found.what_if is not None else ()
    if movable:
        room = max(unused, key=lambda other: other.unused or 0)
        labels, _ = short_labels([each.label for each in movable[:_SITES]])
        sites = [f"{label} ({format_bytes(each.nbytes)})" for label, each in zip(labels, movable, strict=False)]
        yield (
            f"If the blocks of {_joined(sites, 'or')} were on {printable(room.device)}, the request would fit: the "
            "history was replayed without them."
        )


def _names(devices: Sequence[OtherDevice]) -> str:
    return _joined([printable(other.device) for other in devices], "and")


def _joined(words: Sequence[str], last: str) -> str:
    *others, final = words
    return f"{', '.join(others)} {last} {final}" if others else final
