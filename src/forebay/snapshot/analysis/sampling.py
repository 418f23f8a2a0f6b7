"""The error of sizes that were estimated from a sample."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from forebay.records.model import Snapshot
from forebay.snapshot.analysis.timeline import Timeline
from forebay.snapshot.formats.known_notes import sampling_mean

__all__ = ["peak_error", "relative_errors"]

_STEPS = 64


def peak_error(snapshot: Snapshot, timeline: Timeline) -> float:
    """Return the standard error of all memory at the peak relative to it; 0 if the sizes are exact."""
    mean = sampling_mean(snapshot.notes)
    nbytes = timeline.allocations.nbytes[timeline.allocations.live_at(timeline.peak)]
    return float(relative_errors(nbytes, np.zeros(len(nbytes), np.int64), 1, mean)[0]) if mean else 0.0


def relative_errors(
    nbytes: NDArray[np.integer], group: NDArray[np.int64], groups: int, mean: int
) -> NDArray[np.float64]:
    """Return the standard error of the sum of each group of sampled allocations, relative to the sum.

    Parameters
    ----------
    nbytes : numpy.ndarray
        The bytes for which each allocation stands: its size divided by the probability that it was chosen.
    group : numpy.ndarray
        The group of each allocation.
    groups : int
        Number of groups.
    mean : int
        Mean number of bytes between two chosen ones.

    Returns
    -------
    numpy.ndarray
        One number for each group; 0 for empty ones. 0.1 means that two of three estimates are within 10 % of the truth.
    """
    weights, where = np.unique(nbytes.astype(np.float64), return_inverse=True)
    missed = 1 - _probabilities(weights / mean)
    variance = np.bincount(group, weights=(weights**2 * missed)[where], minlength=groups)
    total = np.bincount(group, weights=weights[where], minlength=groups)
    return np.sqrt(variance) / np.maximum(total, 1)


def _probabilities(stands_for: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return with which probability each allocation was chosen, from the bytes that it stands for in units of `mean`.

    An allocation of s bytes was chosen with p = 1 - exp(-s / mean) and stands for s / p bytes, so p is the fixed point
    of p = 1 - exp(-p * stands_for). It is near 0 for small allocations, which stand for `mean` bytes.
    """
    found = np.ones(len(stands_for))
    for _ in range(_STEPS):
        found = -np.expm1(-found * stands_for)
    return found
