"""Errors of estimates from a sample."""

from __future__ import annotations

import numpy as np
import pytest

from forebay.snapshot.analysis.sampling import relative_errors

MEAN = 1000


def estimate(size: int) -> int:
    return round(size / -np.expm1(-size / MEAN))


@pytest.mark.parametrize("size", [1, 100, 1000, 5000])
def test_error_is_that_of_repeated_samples(size):
    """The error that one sample states, on average, is the deviation of the estimates of many."""
    chance = np.random.default_rng(1)
    share = -np.expm1(-size / MEAN)
    arrays = max(int(200 / share), 2000)
    chosen = chance.binomial(arrays, share, 400)
    deviation = np.std(chosen * estimate(size)) / (arrays * size)
    sample = np.full(int(arrays * share), estimate(size))
    (error,) = relative_errors(sample, np.zeros(len(sample), np.int64), 1, MEAN)
    assert error == pytest.approx(deviation, rel=0.2)


def test_errors_are_by_group_and_zero_for_certain_sizes():
    nbytes = np.array([estimate(10), estimate(10), 10**9])
    errors = relative_errors(nbytes, np.array([0, 0, 2]), 4, MEAN)
    assert errors[0] == pytest.approx(1 / np.sqrt(2), rel=0.05)
    assert errors[1:].tolist() == pytest.approx([0, 0, 0], abs=1e-9)


def test_no_samples_have_no_error():
    assert relative_errors(np.array([], np.int64), np.array([], np.int64), 2, MEAN).tolist() == [0, 0]
