"""Repetition in a history: the steps of a training loop, found in the sequence of allocations.

Two allocations are alike if they have the same stack, or the same size where no stacks were recorded. A history repeats
with a lag if most allocations are like the one that many allocations before. Where steps differ in length, a site that
allocates at regular intervals marks them instead. Steps that the program marked (`record_function`, the profiler) are
used as they are.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from forebay.records.model import Action, Snapshot
from forebay.snapshot.analysis.spans import named_steps, spans, step_stem
from forebay.snapshot.analysis.timeline import Timeline

__all__ = ["MIN_STEPS", "Steps", "find_steps"]

MIN_STEPS = 3
_ALIKE = 0.6  # of the allocations of a step, those that are like the ones of the step before
_COVERED = 0.5  # of the history
_AS_GOOD = 0.95  # of the best lag: a smaller lag is preferred
_CANDIDATES = 100  # lags that are compared exactly
_SEEDS = 2
_REGULAR = 0.35  # standard deviation of the intervals between a site's allocations, in relation to their mean


@dataclass(frozen=True, slots=True, eq=False)
class Steps:
    """Repeated steps of a history."""

    moments: NDArray[np.int64]  #: the moments at which steps begin, and at last the one at which the last step ends
    allocations: int  #: allocations of a step (median)
    #: True if all steps have the same number of allocations; False if they were found by a site that recurs.
    exact: bool
    name: str = ""  #: the name of the ranges by which the program marked the steps; "" if they were found

    @property
    def count(self) -> int:
        """The number of steps."""
        return len(self.moments) - 1


def find_steps(snapshot: Snapshot, timeline: Timeline) -> Steps | None:
    """Find the steps that a history repeats.

    Parameters
    ----------
    snapshot : Snapshot
        The snapshot.
    timeline : Timeline
        The result of `reconstruct(snapshot)`.

    Returns
    -------
    Steps or None
        The steps; None if the history does not repeat at least `MIN_STEPS` times. Steps that the program did not mark
        begin where the least memory is allocated.
    """
    if (marked := _marked(snapshot)) is not None:
        return marked
    rows = np.flatnonzero(snapshot.trace["action"] == Action.ALLOC)
    if len(rows) < 2 * MIN_STEPS:
        return None
    codes = _codes(snapshot.trace[rows])
    found = _best_lag(codes)
    if found is None:
        return _recurring(codes, rows, timeline)
    lag, start, stop = found
    levels = timeline.allocated[rows]  # before each allocation
    count = (stop - start) // lag
    table = levels[start : start + count * lag].reshape(count, lag)
    shift = int(np.argmin(table.mean(axis=0)))
    moments = rows[start + shift : min(stop + 1, len(rows)) : lag].astype(np.int64)
    return Steps(moments, lag, exact=True) if len(moments) > MIN_STEPS else None


def _marked(snapshot: Snapshot) -> Steps | None:
    """Return the steps that the program marked."""
    everything = spans(snapshot)
    found = named_steps(everything, len(snapshot.trace) + 1)
    earlier = {step_stem(span.name) for span in everything if not span.end}  # whose entries the ring buffer dropped
    if found and not found[0].begin and step_stem(found[0].name) in earlier:
        found = found[1:]
    found = [span for span in found if span.whole]
    if len(found) < MIN_STEPS:
        return None
    moments = np.array([span.begin for span in found], np.int64)
    if all(one.end >= other.begin for one, other in pairwise(found)):
        # Nothing happens between the steps. Otherwise the last end is no boundary like the others: what a loop frees
        # between its steps would look like growth.
        moments = np.append(moments, found[-1].end)
    moments = np.unique(moments)
    allocations = np.searchsorted(np.flatnonzero(snapshot.trace["action"] == Action.ALLOC), moments)
    return Steps(moments, int(np.median(np.diff(allocations))), exact=True, name=step_stem(found[0].name))


def _codes(allocations: NDArray[np.void]) -> NDArray[np.int64]:
    """Return equal numbers for allocations that are alike."""
    by_stack = np.unique(allocations["stack"], return_inverse=True)
    values, codes = by_stack if len(by_stack[0]) > 1 else np.unique(allocations["nbytes"], return_inverse=True)
    return np.asarray(codes, np.int64).reshape(-1) if len(values) > 1 else np.zeros(len(allocations), np.int64)


def _best_lag(codes: NDArray[np.int64]) -> tuple[int, int, int] | None:
    """Return the smallest lag of a history that repeats, with the range of allocations that repeat."""
    if not codes.any():  # all alike: every lag would do
        return None
    found = []
    for lag in _likely_lags(codes):
        start, stop, alike = _repeating_range(codes, lag)
        if stop - start >= max(MIN_STEPS * lag, _COVERED * len(codes)):
            found.append((alike * (stop - start), lag, start, stop))
    most = max((score for score, *_ in found), default=0.0)
    return next(((lag, start, stop) for score, lag, start, stop in found if score >= _AS_GOOD * most), None)


def _likely_lags(codes: NDArray[np.int64]) -> list[int]:
    """Return the lags with the most equal pairs, ascending: an autocorrelation of random signs, one for each code."""
    most = len(codes) // MIN_STEPS
    if most <= _CANDIDATES:
        return list(range(1, most + 1))
    length = 1 << (2 * len(codes) - 1).bit_length()
    scores = np.zeros(most + 1)
    for seed in range(_SEEDS):
        signs = np.random.default_rng(seed).choice(np.array([-1.0, 1.0], np.float32), int(codes.max()) + 1)[codes]
        spectrum = np.fft.rfft(signs - signs.mean(), length)
        scores += np.fft.irfft(spectrum * spectrum.conj(), length)[: most + 1]
    scores /= np.arange(len(codes), len(codes) - most - 1, -1)
    inner = scores[1:]
    peaks = 1 + np.flatnonzero((inner >= np.append(inner[1:], -np.inf)) & (inner >= np.append(-np.inf, inner[:-1])))
    ranked = peaks[np.argsort(-scores[peaks], kind="stable")]
    close = np.sort(peaks[scores[peaks] >= 0.5 * scores[ranked[:1]].sum()])  # multiples of a lag are as good as the lag
    return sorted({*ranked[:_CANDIDATES].tolist(), *close[:_CANDIDATES].tolist()})


def _repeating_range(codes: NDArray[np.int64], lag: int) -> tuple[int, int, float]:
    """Return the longest range in which each window of `lag` allocations is like the one before, and how much so."""
    alike = np.concatenate([[0], np.cumsum(codes[lag:] == codes[:-lag])])
    if len(alike) <= lag:
        return 0, 0, 0.0
    good = (alike[lag:] - alike[:-lag]) >= _ALIKE * lag
    edges = np.flatnonzero(np.diff(np.concatenate([[False], good, [False]]).astype(np.int8)))
    if not len(edges):
        return 0, 0, 0.0
    begins, ends = edges[::2], edges[1::2]
    longest = int(np.argmax(ends - begins))
    start, stop = int(begins[longest]), int(ends[longest] - 1 + 2 * lag)
    return start, stop, float(alike[stop - lag] - alike[start]) / (stop - lag - start)


def _recurring(codes: NDArray[np.int64], rows: NDArray[np.intp], timeline: Timeline) -> Steps | None:
    """Return the steps that the most regular of the codes with a common number of occurrences marks."""
    order = np.argsort(codes, kind="stable")
    counts = np.bincount(codes)
    firsts = np.concatenate([[0], np.cumsum(counts)[:-1]])
    regular: dict[int, list[tuple[float, float, int]]] = {}  # by number of occurrences
    for code in np.flatnonzero((counts > MIN_STEPS) & (counts < len(codes) // 2)).tolist():
        at = order[firsts[code] : firsts[code] + counts[code]]
        gaps = np.diff(at)
        spread = float(gaps.std() / gaps.mean())
        if spread <= _REGULAR and at[-1] - at[0] >= _COVERED * len(codes) and gaps.mean() >= 2:
            level = float(timeline.allocated[rows[at]].mean())
            regular.setdefault(int(counts[code]), []).append((level, spread, code))
    if not regular:
        return None
    number = max(regular, key=lambda count: (len(regular[count]), -count))
    _, _, code = min(regular[number])
    at = np.sort(order[firsts[code] : firsts[code] + counts[code]])
    return Steps(rows[at].astype(np.int64), int(np.median(np.diff(at))), exact=False)
