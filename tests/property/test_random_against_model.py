"""Comparison of random fills with the reference model: distributions, dtypes, layouts, geometries, offsets."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support.model import random as model_random

import forebay
from forebay.runtime.tensors.random_permutation import key_bits, permutation

REALS = [np.dtype(name) for name in ("float16", "float32", "float64")] + [np.dtype(ml_dtypes.bfloat16)]
INTEGERS = [np.dtype(name) for name in ("bool", "u1", "i1", "u2", "i2", "u4", "i4", "u8", "i8")]
FULL_DTYPES = [dtype for dtype in REALS + INTEGERS if dtype.name not in {"uint16", "uint32", "uint64"}]

seeds = st.integers(0, (1 << 64) - 1)
offsets = st.integers(0, 10) | st.integers((1 << 34) - 3, 1 << 34) | st.integers(0, (1 << 62) - 100)  # calls
geometries = st.sampled_from([(1, 256), (1, 1024), (2, 1536), (132, 2048)])
counts = st.integers(1, 5000)


@st.composite
def programs(draw):
    dtypes = {
        "uniform": REALS,
        "normal": REALS,
        "log_normal": REALS,
        "exponential": REALS,
        "cauchy": REALS,
        "geometric": [dtype for dtype in FULL_DTYPES if dtype.kind != "b"],
        "bernoulli": FULL_DTYPES,
        "integers": REALS + INTEGERS,
        "all integers": FULL_DTYPES,
    }
    distribution = draw(st.sampled_from([*dtypes]))
    dtype = draw(st.sampled_from(dtypes[distribution]))
    if distribution == "uniform":
        numbers = tuple(sorted(draw(st.tuples(*[st.floats(-1000, 1000)] * 2))))
    elif distribution == "integers":
        digits = {"float16": 11, "bfloat16": 8, "float32": 24, "float64": 53}.get(dtype.name)
        if digits:
            least, most = -(1 << digits), 1 << digits
        elif dtype.kind == "b":
            least, most = 0, 1
        else:
            least, most = int(np.iinfo(dtype).min), min(int(np.iinfo(dtype).max), (1 << 63) - 2)
        low = draw(st.integers(least, most - 1)) if least < most - 1 else least
        numbers = (low, draw(st.integers(low + 1, most)) - low)
    elif distribution == "all integers":
        digits = {"float16": 11, "bfloat16": 8, "float32": 24, "float64": 53}.get(dtype.name)
        last = 1 << digits if digits else 1 if dtype.kind == "b" else int(np.iinfo(dtype).max)
        numbers = (0, last + 1, dtype.name in {"int64", "float64"})
    else:
        numbers = {
            "normal": (draw(st.floats(-100, 100)), draw(st.floats(0, 100))),
            "exponential": (draw(st.floats(0.1, 100)),),
            "bernoulli": (draw(st.floats(0, 1)),),
            "log_normal": (draw(st.floats(-5, 5)), draw(st.floats(0.01, 2))),
            "cauchy": (draw(st.floats(-100, 100)), draw(st.floats(0.01, 100))),
            "geometric": (draw(st.floats(0.2, 0.95)),),
        }[distribution]
    return distribution, dtype, numbers


def fill(tensor, distribution, numbers, generator):
    match distribution:
        case "uniform":
            tensor.uniform_(*numbers, generator=generator)
        case "normal":
            tensor.normal_(*numbers, generator=generator)
        case "exponential":
            tensor.exponential_(*numbers, generator=generator)
        case "cauchy":
            tensor.cauchy_(*numbers, generator=generator)
        case "log_normal":
            tensor.log_normal_(*numbers, generator=generator)
        case "geometric":
            tensor.geometric_(*numbers, generator=generator)
        case "bernoulli":
            tensor.bernoulli_(*numbers, generator=generator)
        case "integers":
            tensor.random_(numbers[0], numbers[0] + numbers[1], generator=generator)
        case _:
            tensor.random_(generator=generator)


@settings(deadline=None, max_examples=150)
@given(programs(), counts, geometries, seeds, offsets)
@example(("uniform", np.dtype("float32"), (-1.1754943508222875e-38, 3.0)), 1, (1, 256), 0, 0)  # rounded once only
def test_every_distribution_matches_the_model(program, count, geometry, seed, offset):
    distribution, dtype, numbers = program
    generator = forebay.Generator("cpu", geometry=geometry).manual_seed(seed).set_offset(4 * offset)
    tensor = forebay.zeros(count, dtype=dtype, device="cpu")
    fill(tensor, distribution, numbers, generator)
    elements = range(0, count, max(count // 50, 1))
    model_distribution = "integers" if "integers" in distribution else distribution
    expected = model_random.drawn(
        model_distribution, dtype, count, geometry, (seed, 4 * offset), *numbers, elements=elements
    )
    found = tensor.numpy()[:: max(count // 50, 1)]
    if distribution in {"normal", "exponential", "log_normal", "cauchy"}:
        scale = np.abs(expected.astype(float)) + (max(map(abs, numbers)) if distribution in {"normal", "cauchy"} else 0)
        if distribution == "log_normal":
            scale *= 1 + sum(map(abs, numbers))  # of an error of the logarithm
        epsilon = {"float16": 2**-10, "bfloat16": 2**-7, "float32": 1e-6, "float64": 1e-14}[dtype.name]
        np.testing.assert_array_less(np.abs(found.astype(float) - expected.astype(float)), scale * epsilon * 8 + 1e-300)
    else:
        np.testing.assert_array_equal(found, expected)
    is_64bit = dtype == np.float64
    if model_distribution == "integers":
        is_64bit = numbers[2] if len(numbers) > 2 else numbers[1] >= 1 << 28
    per_call = 2 if is_64bit else 4
    assert generator.get_offset() == 4 * offset + model_random.skipped(count, per_call, geometry)


@settings(deadline=None, max_examples=60)
@given(st.data(), st.lists(st.integers(1, 6), min_size=1, max_size=4))
def test_strided_fill_follows_memory_order(data, shape):
    """Memory between the elements is unchanged."""
    whole = forebay.zeros([2 * length for length in shape], device="cpu")
    order = data.draw(st.permutations(range(len(shape))))
    steps = data.draw(st.lists(st.sampled_from([1, 2]), min_size=len(shape), max_size=len(shape)))
    part = whole[tuple(slice(0, length * step, step) for length, step in zip(shape, steps, strict=True))].permute(order)
    generator = forebay.Generator("cpu", geometry=(1, 256)).manual_seed(5)
    part.uniform_(1, 2, generator=generator)
    flat = forebay.empty(part.numel(), device="cpu").uniform_(1, 2, generator=generator.manual_seed(5))
    np.testing.assert_array_equal(part.permute(*np.argsort(order).tolist()).numpy().ravel(), flat.numpy())
    assert np.count_nonzero(whole.numpy()) == part.numel()


@pytest.mark.parametrize("dtype", FULL_DTYPES, ids=str)
def test_bernoulli_with_probability_tensor(dtype):
    probabilities = np.random.default_rng(0).random(3000).astype(np.float64)
    found = forebay.empty(3000, dtype=dtype, device="cpu")
    found.bernoulli_(forebay.tensor(probabilities), generator=forebay.Generator("cpu").manual_seed(9).set_offset(8))
    limits = probabilities if dtype == np.float64 else probabilities.astype(np.float32)
    words = [model_random.philox(9, at // 4, 2)[at % 4] for at in range(3000)]
    drawn = np.array(words, np.uint32).astype(np.float32) * np.float32(2**-32) + np.float32(2**-33)
    np.testing.assert_array_equal(found.numpy().astype(float), drawn <= limits)


@settings(deadline=None, max_examples=60)
@given(st.integers(1, 700), geometries, seeds, offsets)
def test_permutations_match_the_model(count, geometry, seed, offset):
    generator = forebay.Generator("cpu", geometry=geometry).manual_seed(seed).set_offset(4 * offset)
    found = forebay.randperm(count, generator=generator, device="cpu")
    expected = model_random.permuted(count, key_bits(count), geometry, (seed, 4 * offset))
    assert found.tolist() == expected


@given(st.lists(st.integers(-5, 5), min_size=1, max_size=60), st.sampled_from([1, 2, 3, 32]), seeds, offsets)
def test_permutation_shuffles_equal_keys(keys, bits, seed, offset):
    found = permutation(np.array(keys, np.int32), bits, seed, 4 * offset)
    assert found.tolist() == model_random.shuffled(keys, bits, 32, (seed, 4 * offset))


@pytest.mark.parametrize("dtype", REALS, ids=str)
@pytest.mark.parametrize("rate", [0, 0.01, 1, 30, 63.9, 64, 100, 1000, 4000, 5000, 60000])
def test_poisson_numbers_match_the_model(dtype, rate):
    """A rounding error can change a number of rates from 64 to 4000, by the rejection of a candidate."""
    rates = np.full(300, rate).astype(dtype)
    generator = forebay.Generator("cpu").manual_seed(3).set_offset(8)
    found = forebay.poisson(forebay.from_numpy(rates), generator).numpy()
    expected = [model_random.poisson(float(rates[0]), element, (3, 8)) for element in range(300)]
    equal = found.astype(float) == np.array(expected, np.float64).astype(np.float32).astype(dtype).astype(float)
    assert equal.sum() >= (297 if 64 <= float(rates[0]) <= 4000 else 300)
    assert generator.get_offset() == 28
