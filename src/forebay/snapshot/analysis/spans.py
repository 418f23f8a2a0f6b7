"""Spans of a history that the program named: ranges of `record_function` and the profiler, metadata, compilations."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from enum import StrEnum
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from forebay.records.model import Action, Snapshot
from forebay.snapshot.formats.external_annotations import Mark, marks_of

__all__ = ["NUMBER", "Kind", "Span", "lanes", "named_steps", "range_paths", "spans", "step_stem"]

NUMBER = re.compile(r"[#\s_:.-]*(\d{1,12})$")
_STEP_WORDS = re.compile(r"\b(profilerstep|train_?step|step|iteration|iter|batch)\b", re.IGNORECASE)
_MIN_STEPS = 2
_COVERED = 0.5  # of the entries of the history, those inside the steps where only repetition tells them
_MAX_SPANS = 200_000


class Kind(StrEnum):
    """Origins of a span."""

    RANGE = "range"  # external annotations: record_function, the profiler's steps
    METADATA = "metadata"  # consecutive entries with the same user_metadata
    COMPILE = "compile"  # consecutive entries with the same compile_context


class Span(NamedTuple):
    """A named part of a history. Moment m is after the first m entries."""

    name: str
    kind: Kind
    begin: int  #: the moment at which it begins
    end: int  #: the moment at which it ends
    begin_ns: int  #: Unix time
    end_ns: int
    whole: bool = True  #: its start and its end were recorded

    @property
    def number(self) -> int | None:
        """The number at the end of the name, as in "ProfilerStep#7"; None without one."""
        found = NUMBER.search(self.name)
        return int(found[1]) if found else None


def spans(snapshot: Snapshot) -> list[Span]:
    """Return the named spans of a device's history, in the order of their beginnings; the outer ones first.

    Ranges are those that were marked while the device was current, or those of all devices if there are none. A range
    whose start or end is missing extends to the beginning or the end of the history. Nothing without recorded times.
    """
    times = np.maximum.accumulate(snapshot.trace["time_ns"].astype(np.int64))
    if not len(times) or not times[-1]:
        return []
    found = _ranges(_own_marks(snapshot), times)
    for kind, side in ((Kind.COMPILE, 0), (Kind.METADATA, 1)):
        texts = ["", *(label[side] for label in snapshot.labels)]
        found += _runs(snapshot, times, [_named(text, kind) for text in texts], kind)
    return sorted(found[:_MAX_SPANS], key=lambda span: (span.begin_ns, -span.end_ns, span.begin, -span.end))


def _named(text: str, kind: Kind) -> str:
    """Return the name of a span with this text; "" if the text says that there is none."""
    if kind == Kind.COMPILE:
        return f"compile {text}" if text not in ("", "N/A") else ""
    return text


def _own_marks(snapshot: Snapshot) -> list[Mark]:
    """Return the marks of the device, or else of all devices: the thread may have had another one as current."""
    marks = [*marks_of(snapshot.notes)]
    index = snapshot.device.rpartition(":")[2]
    own = [mark for mark in marks if str(mark[3]) == index]
    return own or marks


def _ranges(marks: Sequence[Mark], times: NDArray[np.int64]) -> list[Span]:
    """Return the ranges between starts and ends. An end closes the latest open range of its name."""
    opened = defaultdict[str, list[int]](list)
    bounds: list[tuple[str, int, int, bool]] = []
    first, last = int(times[0]), int(times[-1])
    for at, stage, name, _ in sorted(marks, key=lambda mark: mark[0]):
        if stage == "START":
            opened[name].append(at)
        elif stage == "END":
            start = opened[name].pop() if opened[name] else None
            bounds.append((name, min(first, at) if start is None else start, at, start is not None))
    bounds += [(name, at, max(last, at), False) for name, starts in opened.items() for at in starts]
    begins = np.searchsorted(times, [begin for _, begin, *_ in bounds], "left")
    ends = np.searchsorted(times, [end for *_, end, _ in bounds], "right")
    return [
        Span(name, Kind.RANGE, begin, max(begin, end), begin_ns, end_ns, whole)
        for (name, begin_ns, end_ns, whole), begin, end in zip(bounds, begins.tolist(), ends.tolist(), strict=True)
    ]


def _runs(snapshot: Snapshot, times: NDArray[np.int64], texts: list[str], kind: Kind) -> list[Span]:
    """Return the runs of entries with the same text. Frees do not end a run: they may carry the text of another."""
    if not any(texts):
        return []
    distinct = {text: number for number, text in enumerate(dict.fromkeys(["", *texts]))}
    code = np.array([distinct[text] for text in texts])[snapshot.trace["note"]]
    counts = np.flatnonzero(snapshot.trace["action"] == Action.ALLOC)
    if not len(counts):
        return []
    edges = np.flatnonzero(np.diff(code[counts], prepend=-1))
    stops = np.append(edges[1:], len(counts))
    words = [*distinct]
    return [
        Span(
            words[code[counts[start]]], kind, int(counts[start]), int(counts[stop - 1]) + 1,
            int(times[counts[start]]), int(times[counts[stop - 1]]),
        )
        for start, stop in zip(edges.tolist(), stops.tolist(), strict=True)
        if code[counts[start]]
    ]  # fmt: skip


def step_stem(name: str) -> str:
    """Return the name of a step without its number.

    >>> step_stem("ProfilerStep#12"), step_stem("epoch_3"), step_stem("forward")
    ('ProfilerStep', 'epoch', 'forward')
    """
    return NUMBER.sub("", name) or name


def named_steps(found: Sequence[Span], moments: int) -> list[Span]:
    """Return the ranges that mark the steps of the program, in their order; an empty list if none do.

    They repeat under one name, apart from a number, and do not overlap. The profiler's own steps come first, then names
    such as "step" or "iteration", then the outermost ranges that cover most of the history. The first one and the last
    one may be there in part only. `moments` is the length of the history plus one.
    """
    groups = defaultdict[str, list[Span]](list)
    for span in found:
        if span.kind == Kind.RANGE and span.end > span.begin:
            groups[step_stem(span.name)].append(span)
    ranked = []
    for stem, members in groups.items():
        if any(other.begin_ns < one.end_ns for one, other in pairwise(members)):
            continue
        is_step, numbered = bool(_STEP_WORDS.search(stem)), all(span.number is not None for span in members)
        if len(members) < _MIN_STEPS and not (is_step and numbered):
            continue
        covered = sum(span.end - span.begin for span in members) / max(moments - 1, 1)
        if is_step or covered >= _COVERED:
            ranked.append(((stem == "ProfilerStep", is_step, numbered, covered, -len(members)), members))
    return max(ranked, key=lambda each: each[0])[1] if ranked else []


def range_paths(found: Sequence[Span], entries: int) -> tuple[NDArray[np.int64], list[str]]:
    """Return for each entry a number, and for each number the names of the ranges around it, joined by ";"."""
    ranges = [span for span in found if span.kind == Kind.RANGE and span.end > span.begin]
    edges = [(span.begin, 1, row) for row, span in enumerate(ranges)]
    edges += [(span.end, 0, row) for row, span in enumerate(ranges)]
    numbers = {"": 0}
    codes = np.zeros(entries, np.int64)
    inside: dict[int, str] = {}
    edges.sort()
    for (at, opens, row), (following, *_) in pairwise([*edges, (entries, 0, 0)]):
        if opens:
            inside[row] = ranges[row].name
        else:
            inside.pop(row)
        if following > at and inside:
            path = ";".join(name.replace(";", ":") for name in inside.values())
            codes[at:following] = numbers.setdefault(path, len(numbers))
    return codes, [*numbers]


def lanes(found: Sequence[Span], most: int) -> list[list[Span]]:
    """Return spans by lane: a span is below those that it overlaps. Those that need more than `most` are left out."""
    rows: list[list[Span]] = []
    for span in found:
        free = next((row for row in rows if row[-1].end_ns <= span.begin_ns), None)
        if free is not None:
            free.append(span)
        elif len(rows) < most:
            rows.append([span])
    return rows
