"""Random numbers of emulated GPUs equal published values (complete: tests/runtime/random/test_published_values.py)."""

from __future__ import annotations

import numpy as np
import pytest

import forebay
from forebay import cuda

ROUNDED = 6e-5  # published with four decimals


def drawn(profile, seed, count, mean=0.0, std=1.0):
    with forebay.emulate("cuda", profile=profile):
        cuda.manual_seed(seed)
        return forebay.empty(count, device="cuda").normal_(mean, std).cpu().numpy()


def test_large_fill_equals_the_profiled_gpu():
    found = drawn("rtx_a6000", 43, 3 * 128 * 128)[[0, 16384, 32768]]  # pytorch#62467
    assert np.abs(found - [1.9983, 0.8704, 2.1127]).max() <= ROUNDED * 3


@pytest.mark.parametrize(
    ("profile", "last"), [("h100", [-0.6970, -0.7780, 0.3267]), ("a100", [0.1549, -0.6797, -0.1656])]
)
def test_many_draws_per_thread_depend_on_the_gpu(profile, last):
    found = drawn(profile, 1, 9483264)  # pytorch#143086
    assert np.abs(found[:3] - [-0.2963, 2.6764, -0.1408]).max() <= ROUNDED * 3
    assert np.abs(found[-3:] - last).max() <= ROUNDED


def test_second_call_continues_the_sequence():
    with forebay.emulate("cuda"):
        cuda.manual_seed(42)
        weight, bias = (forebay.empty(1, device="cuda").uniform_(-1, 1).item() for _ in range(2))
        assert abs(weight - 0.2259) < ROUNDED  # mrdbourke/pytorch-deep-learning#759
        assert abs(bias - 0.9754) < ROUNDED
        assert cuda.get_rng_state().tolist()[8] == 8
