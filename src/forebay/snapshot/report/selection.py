"""A part of a history that a user chooses: a step, a moment, or what is between two moments."""

from __future__ import annotations

import re
from typing import NamedTuple

import numpy as np

from forebay._base.untrusted import printable, shortened
from forebay.errors import ForebayError
from forebay.records.model import Snapshot
from forebay.snapshot.analysis.periods import find_steps
from forebay.snapshot.analysis.spans import Span, named_steps, spans, step_stem
from forebay.snapshot.analysis.timeline import Timeline

__all__ = ["BadSelection", "Selection", "moment_of", "select_between", "select_moment", "select_step"]

_UNITS = {"ns": 1, "us": 1000, "µs": 1000, "ms": 10**6, "s": 10**9, "min": 60 * 10**9, "h": 3600 * 10**9}
_TIME = re.compile(r"(?:entry\s*)?(\d{1,15})|(\d{1,12}(?:\.\d{0,9})?)\s*(ns|us|µs|ms|s|min|h)")
_MAX_NAME = 60


class BadSelection(ForebayError, ValueError):
    """A step, a moment or a range that a history does not have."""


class Selection(NamedTuple):
    """A part of a history, from one moment to another, which may be the same."""

    name: str  #: how to refer to it in a sentence
    begin: int  #: its first moment
    end: int  #: its last moment


def select_step(snapshot: Snapshot, timeline: Timeline, number: int) -> Selection:
    """Return the step with a number: as in the name that the program gave it, or else counted from 0.

    Raises BadSelection if the history has no such step.
    """
    marked = named_steps(spans(snapshot), timeline.moments)
    if marked:
        by_number = _by_number(marked)
        if (span := by_number.get(number)) is None:
            have = f"{min(by_number)} to {max(by_number)}, marked as “{_shown(step_stem(marked[0].name))}”"
            raise BadSelection(f"{printable(snapshot.device)} has no step {number}: its history has the steps {have}")
        return Selection(f"the step “{_shown(span.name)}”", span.begin, span.end)
    steps = find_steps(snapshot, timeline)
    if steps is None:
        raise BadSelection(
            f"the history of {printable(snapshot.device)} has no steps: the program marked none "
            "(torch.profiler.record_function while the history is recorded), and it does not repeat"
        )
    if not 0 <= number < steps.count:
        raise BadSelection(f"{printable(snapshot.device)} has no step {number}: its history has 0 to {steps.count - 1}")
    begin, end = steps.moments[number : number + 2].tolist()
    return Selection(f"repetition {number} of 0 to {steps.count - 1}", begin, end)


def select_moment(timeline: Timeline, text: str) -> Selection:
    """Return one moment, see `moment_of`."""
    at = moment_of(timeline, text)
    return Selection(f"the moment after entry {at:,}", at, at)


def select_between(timeline: Timeline, first: str, last: str) -> Selection:
    """Return what is between two moments. Raises BadSelection if the second is before the first."""
    begin, end = moment_of(timeline, first), moment_of(timeline, last)
    if end < begin:
        raise BadSelection(f"{printable(last)!r} is before {printable(first)!r}: entries {end:,} and {begin:,}")
    return Selection(f"the entries {begin:,} to {end:,}", begin, end)


def moment_of(timeline: Timeline, text: str) -> int:
    """Return the moment that a text names: a time since the first entry such as "1.5s", or the number of an entry.

    Raises BadSelection for another text, or a moment outside of the history.
    """
    match = _TIME.fullmatch(text.strip())
    last = timeline.moments - 1
    if match is None:
        raise BadSelection(
            f"{printable(shortened(text, _MAX_NAME))!r} is no moment: write a time since the first entry, such as "
            f"1.5s or 300ms, or the number of an entry from 0 to {last:,}"
        )
    entry, amount, unit = match.groups()
    if entry is not None:
        if int(entry) > last:
            raise BadSelection(f"there is no entry {int(entry):,}: the history has {last:,}")
        return int(entry)
    clock = np.maximum.accumulate(timeline.time_ns)
    after = round(float(amount) * _UNITS[unit])
    if after > int(clock[-1] - clock[0]):
        span = f"{(clock[-1] - clock[0]) / 1e9:.6g} s"
        raise BadSelection(f"{text.strip()} is after the end: the history spans {span} in {last:,} entries")
    return int(np.searchsorted(clock, clock[0] + after, "right")) - 1


def _by_number(marked: list[Span]) -> dict[int, Span]:
    numbers = [span.number for span in marked]
    if None in numbers or len({*numbers}) < len(numbers):
        return dict(enumerate(marked))
    return {span.number: span for span in marked if span.number is not None}


def _shown(name: str) -> str:
    return printable(shortened(name, _MAX_NAME))
