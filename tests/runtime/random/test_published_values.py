"""Published values from real GPUs, printed with four decimals, and Philox's known answers. None was computed here.

A geometry is (multiprocessors, threads per multiprocessor).
"""

from __future__ import annotations

import numpy as np
import pytest
from support.model import random as model_random

import forebay

HOST = "cpu"
ROUNDED = 6e-5


def fill(seed, count, geometry, fill_with):
    generator = forebay.Generator("cpu", geometry=geometry).manual_seed(seed)
    made = forebay.empty(count, device=HOST)
    fill_with(made, generator)
    return made.numpy()


def rand(seed, count, geometry=None):
    return fill(seed, count, geometry, lambda made, generator: made.uniform_(generator=generator))


def randn(seed, count, geometry=None, mean=0.0, std=1.0):
    return fill(seed, count, geometry, lambda made, generator: made.normal_(mean, std, generator=generator))


def agree(found, published):
    published = np.array(published)
    return bool((np.abs(found - published) <= ROUNDED * np.maximum(1, np.abs(published))).all())


@pytest.mark.parametrize(
    ("seed", "published"),
    [
        (0, [0.3990, 0.5167, 0.0249, 0.9401, 0.9459, 0.7967, 0.4150, 0.8203]),  # pytorch#47347 and others
        (42, [0.6130, 0.0101, 0.3984, 0.0403, 0.1563]),
        (1, [0.8903, 0.0275, 0.9031, 0.5386, 0.7312]),
        (1234, [0.1272, 0.8167, 0.5440, 0.6601, 0.2721]),
    ],
)
def test_small_rand_is_the_same_on_every_gpu(seed, published):
    for geometry in (None, "t4", "v100", "a100", "h200", (28, 1536)):
        assert agree(rand(seed, len(published), geometry), published)


@pytest.mark.parametrize(
    ("seed", "published"),
    [
        (0, [-0.9247, -0.4253, -2.6438, 0.1452, -0.1209, -0.5797, -0.6229, -0.3284]),
        (10, [-0.1029, 1.6810, -0.2708]),  # pytorch#79496
        (42, [0.1940, 2.1614, -0.1721, 0.8491, -1.9244]),
    ],
)
def test_small_randn_is_the_same_on_every_gpu(seed, published):
    for geometry in (None, "t4", "v100", "a100", "h200", (28, 1536)):
        assert agree(randn(seed, len(published), geometry), published)


def test_second_draw_continues_the_sequence():
    generator = forebay.Generator("cpu").manual_seed(0)
    forebay.rand(8, device=HOST, generator=generator)
    second = forebay.rand(5, device=HOST, generator=generator).numpy()
    assert agree(second, [0.9722, 0.7910, 0.4690, 0.3300, 0.3345])


def test_randint_matches_published_values():
    generator = forebay.Generator("cpu").manual_seed(0)
    found = forebay.randint(0, 10, (10,), device=HOST, generator=generator)
    assert found.tolist() == [1, 7, 1, 2, 3, 4, 3, 3, 2, 3]


def test_linear_layer_parameters_match_published_values():  # mrdbourke/pytorch-deep-learning#759
    generator = forebay.Generator("cpu").manual_seed(42)
    weight, bias = (forebay.empty(1, device=HOST).uniform_(-1, 1, generator=generator).item() for _ in range(2))
    assert agree(np.array([weight, bias]), [0.2259, 0.9754])


def test_randn_on_rtx_a6000():  # pytorch#62467: normal_ of 1 x 3 x 128 x 128
    assert agree(randn(43, 3 * 128 * 128, "rtx_a6000")[::16384], [1.9983, 0.8704, 2.1127])


@pytest.mark.parametrize(
    ("row", "published"),
    [
        (0, [2.8731, 5.2727, 2.9889, 1.6853, 9.6331, 6.6319]),
        (1, [3.9968, 3.8097, 5.7328, 4.4029, 3.9804, 7.4698]),
        (997, [8.6297, 2.3137, 6.2596, 7.9358, 4.4697, 2.7475]),  # from here on, second numbers of their threads
        (999, [2.7337, 2.2106, 7.7815, 8.2207, 6.5395, 4.2604]),
    ],
)
def test_normal_on_rtx_a4000(row, published):  # pytorch#97097: normal(5, √5) of 1000 x 100
    found = randn(14, 100_000, (48, 1536), 5.0, 5**0.5).reshape(1000, 100)
    assert agree(found[row][[0, 1, 2, -3, -2, -1]], published)


@pytest.mark.parametrize(
    ("row", "published"),
    [
        (0, [0.1940, 2.1614, -0.1721, 1.4540, -2.7733, -0.8932]),
        (1, [-0.4574, 0.8063, 0.1580, 0.1124, 0.2769, -1.2535]),
        (2, [1.1346, -0.6329, -0.9147, -1.0001, -1.1552, -0.6955]),
        (61, [-0.4861, 0.3358, 1.0578, -0.7282, 0.5087, 0.1318]),
        (62, [0.7881, 0.8339, -1.1424, -0.6297, -1.1112, -0.4091]),
        (63, [-1.2356, -0.4083, -0.4695, -0.4841, 1.2850, -0.0282]),
    ],
)
def test_randn_on_28_multiprocessors(row, published):  # pytorch#158398: randn of 1 x 64 x 2048
    found = randn(42, 64 * 2048, (28, 1536)).reshape(64, 2048)
    assert agree(found[row][[0, 1, 2, -3, -2, -1]], published)


NINE_MILLION = 49 * 12 * 112 * 144  # pytorch#143086: each thread makes many calls


@pytest.mark.parametrize(
    ("geometry", "last"),
    [
        ("h100", [-0.6970, -0.7780, 0.3267]),
        ("a100", [0.1549, -0.6797, -0.1656]),
        (None, [-0.6970, -0.7780, 0.3267]),  # a device that is not a GPU draws like an H100
    ],
)
def test_nine_million_randn_depend_on_the_gpu(geometry, last):
    found = randn(1, NINE_MILLION, geometry)
    assert agree(found[:3], [-0.2963, 2.6764, -0.1408])
    assert agree(found[-3:], last)


def test_pcie_h100_draws_other_numbers():  # 114 x 2048
    assert not agree(randn(1, NINE_MILLION, (114, 2048))[-3:], [-0.6970, -0.7780, 0.3267])


@pytest.mark.parametrize(
    ("geometry", "total"),
    [((56, 2048), 999_826), ((13, 2048), 999_100)],  # pytorch#25690, a P100 and a K80: the sum of dropout(ones, 0.5)
)
def test_sum_of_million_bernoulli_matches_published_value(geometry, total):
    found = fill(0, 1_000_000, geometry, lambda made, generator: made.bernoulli_(0.5, generator=generator))
    assert 2 * int(found.sum()) == total


@pytest.mark.parametrize(  # Random123's known answers
    ("seed", "subsequence", "draw", "words"),
    [
        (0, 0, 0, "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
        ((1 << 64) - 1, (1 << 64) - 1, (1 << 64) - 1, "408f276d 41c83b0e a20bc7c6 6d5451fd"),
        (0x299F31D0A4093822, 0x0370734413198A2E, 0x85A308D3243F6A88, "d16cfe09 94fdcceb 5001e420 24126ea1"),
    ],
)
def test_philox_matches_known_answers(seed, subsequence, draw, words):
    assert model_random.philox(seed, subsequence, draw) == tuple(int(word, 16) for word in words.split())
