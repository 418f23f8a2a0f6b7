"""randperm and the `*_like`: what they give and what they refuse. The facts are from PyTorch 2.15 without a GPU, whose
kernels do not run but are launched and have their memory; nobody published what a GPU gives.
"""

from __future__ import annotations

import threading
from collections import Counter

import ml_dtypes  # noqa: F401 -- makes bfloat16 a dtype
import numpy as np
import pytest
from support.model import random as model_random

import forebay
from forebay.runtime.random.launch_geometry import slowest_first
from forebay.runtime.tensors import random_permutation
from forebay.runtime.tensors.random_permutation import key_bits, permutation

pytestmark = pytest.mark.usefixtures("untouched_seeds")

HOST = "host:0"


def seeded(seed=0, device="host"):
    return forebay.Generator(device, geometry="h200").manual_seed(seed)


# ---- randperm


@pytest.mark.parametrize("count", [0, 1, 2, 3, 100, 257, 30_083, 30_084])
def test_every_number_once(count):
    found = forebay.randperm(count, generator=seeded(count), device=HOST)
    assert found.dtype == np.int64
    assert sorted(found.tolist()) == list(range(count))


@pytest.mark.parametrize(
    ("count", "offset"),
    [
        (0, 0),
        (1, 8),
        (4, 8),
        (5, 12),
        (255, 260),
        (257, 264),
        (30_085, 30_092),
        (300_000, 300_004),
        (1 << 20, 1_048_584),
    ],
)
def test_how_far_the_generator_moves(count, offset):
    generator = seeded()
    forebay.randperm(count, generator=generator, device=HOST)
    assert generator.get_offset() == offset


@pytest.mark.parametrize(
    ("count", "bits"),
    [(1, 3), (2, 5), (3, 6), (10, 9), (100, 16), (30_083, 32), (30_084, 33), (1 << 20, 43)],
)
def test_how_large_the_keys_are(count, bits):
    """From 30,084 on PyTorch takes memory for keys of 64 bits."""
    assert key_bits(count) == bits


def test_equal_keys_do_not_keep_their_order():
    """Of two numbers a key of five bits each: in one of 32 cases they are equal, and in half of those they change."""
    found = Counter(tuple(forebay.randperm(3, generator=seeded(at), device=HOST).tolist()) for at in range(6000))
    assert len(found) == 6
    assert max(abs(seen - 1000) for seen in found.values()) < 150  # five sigma


def test_runs_of_equal_keys_beside_each_other():
    keys = np.array([7, 7, 7, 1, 1, 5, 7 + 8, -8, 0, 7], np.int32)
    found = permutation(keys, 3, 11, 400)
    assert found.tolist() == model_random.shuffled(keys.tolist(), 3, 32, (11, 400))
    assert found[:2].tolist() in ([7, 8], [8, 7])  # -8 has the low bits of 0
    assert sorted(found[5:].tolist()) == [0, 1, 2, 6, 9]


@pytest.mark.parametrize("width", [32, 64])
def test_keys_that_are_sorted_whole_have_a_sign(width):
    keys = np.array([5, -1, 0, -(1 << (width - 1))], f"i{width // 8}")
    assert permutation(keys, width, 0, 0).tolist() == [3, 1, 2, 0]


@pytest.mark.parametrize("bits", [40, 60])
def test_places_beside_the_keys_or_not(bits):
    """One number holds 40 bits of a key and 10 of its place; for 60 there is another way."""
    keys = np.random.Generator(np.random.Philox(4)).integers(-(1 << 63), 1 << 63, 1000) & -(1 << 36) | 3
    keys[::7] = keys[3]
    assert permutation(keys, bits, 9, 8).tolist() == model_random.shuffled(keys.tolist(), bits, 64, (9, 8))


@pytest.mark.parametrize("dtype", ["uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64"])
def test_types(dtype):
    found = forebay.randperm(100, generator=seeded(5), dtype=dtype, device=HOST)
    assert found.dtype == np.dtype(dtype)
    assert found.tolist() == forebay.randperm(100, generator=seeded(5), device=HOST).tolist()


@pytest.mark.parametrize(
    ("dtype", "most", "words"),
    [
        ("uint8", 256, "value cannot be converted to type uint8_t without overflow"),
        ("int8", 128, "value cannot be converted to type int8_t without overflow"),
        ("int16", 32_768, "value cannot be converted to type int16_t without overflow"),
        ("float16", 2049, "n cannot be greater than 2049 for Half type."),
    ],
)
def test_all_the_numbers_must_be_there(dtype, most, words):
    generator = seeded()
    assert forebay.randperm(most, dtype=dtype, generator=generator, device=HOST).numel() == most
    before = generator.get_offset()
    with pytest.raises(RuntimeError) as told:
        forebay.randperm(most + 1, dtype=dtype, generator=generator, device=HOST)
    assert str(told.value) == words
    assert generator.get_offset() == before


@pytest.mark.parametrize(
    ("count", "dtype", "words"),
    [
        ((1 << 24) + 2, "float32", "n cannot be greater than 2^24+1 for Float type."),
        ((1 << 53) + 2, "float64", "n cannot be greater than 2^53+1 for Double type."),
        (65_506, "float16", "value cannot be converted to type c10::Half without overflow"),
        ((1 << 31) + 1, "int32", "value cannot be converted to type int without overflow"),
        (65_537, "uint16", "value cannot be converted to type uint16_t without overflow"),
        (1 << 31, "int64", "cub sort does not support sorting more than INT_MAX elements"),
        (-1, "int64", "Trying to create tensor with negative dimension -1: [-1]"),
    ],
)
def test_too_many(count, dtype, words):
    """Nothing is allocated for them."""
    before = forebay.memory.memory_stats(HOST)["allocation.all.allocated"]
    with pytest.raises(RuntimeError) as told:
        forebay.randperm(count, dtype=dtype, device=HOST)
    assert str(told.value) == words
    assert forebay.memory.memory_stats(HOST)["allocation.all.allocated"] == before


@pytest.mark.parametrize(
    ("dtype", "name"),
    [("bool", "Bool"), ("uint16", "UInt16"), ("uint32", "UInt32"), ("uint64", "UInt64"), ("complex64", "ComplexFloat")],
)
@pytest.mark.parametrize("count", [0, 7])
def test_types_that_no_kernel_counts_in(count, dtype, name):
    with pytest.raises(NotImplementedError, match=f"^\"arange_host\" not implemented for '{name}'$"):
        forebay.randperm(count, dtype=dtype, device=HOST)


def test_bfloat16_is_refused_late():
    generator = seeded()
    assert forebay.randperm(0, dtype="bfloat16", generator=generator, device=HOST).numel() == 0
    with pytest.raises(NotImplementedError, match="\"randperm_out_host\" not implemented for 'BFloat16'"):
        forebay.randperm(7, dtype="bfloat16", generator=generator, device=HOST)
    assert generator.get_offset() == 4  # the keys were drawn


@pytest.mark.parametrize("nonsense", [True, np.True_, 2.5, "3", None, (3,)])
def test_what_is_no_number(nonsense):
    with pytest.raises(TypeError):
        forebay.randperm(nonsense, device=HOST)


def test_a_generator_of_another_kind():
    with pytest.raises(RuntimeError, match="Expected a 'host' device type for generator but found 'cuda'"):
        forebay.randperm(3, generator=forebay.Generator("cuda"), device=HOST)
    with pytest.raises(TypeError, match=r"must be a forebay\.Generator, not int"):
        forebay.randperm(3, generator=3, device=HOST)


def test_it_waits_for_its_turn():
    """Nothing is computed before the queue comes to it, and the host goes on."""
    stream, gate = forebay.Stream(HOST), forebay.Event(HOST)
    other = forebay.Stream(HOST)
    release = hold(other)
    gate.record(other)
    with stream:
        stream.wait_event(gate)
        found = forebay.randperm(50, generator=seeded(3))
        assert not stream.query()
        release.set()
        assert found.tolist() == forebay.randperm(50, generator=seeded(3), device=HOST).tolist()


def hold(stream):
    """The stream does nothing before the event is set; for a minute at most."""
    release = threading.Event()
    stream.queue.call(lambda: release.wait(60))
    return release


def test_an_emulated_gpu_gives_the_profiles(clean):
    with forebay.emulate("cuda", profile="t4"):
        generator = forebay.Generator("cuda").manual_seed(8)
        found = forebay.randperm(200_000, generator=generator, device="cuda").cpu().tolist()
    like_t4 = forebay.Generator("host", geometry="t4").manual_seed(8)
    assert found == forebay.randperm(200_000, generator=like_t4, device=HOST).tolist()
    assert found != forebay.randperm(200_000, generator=seeded(8), device=HOST).tolist()


def test_a_queue_that_runs_no_functions(fake, monkeypatch):
    by_queue = forebay.randperm(300, generator=seeded(2), dtype="int32", device=HOST).tolist()
    own = forebay.Generator("fake", geometry="h200")
    assert forebay.randperm(300, generator=own, device="fake:0").numel() == 300
    assert own.get_offset() == 304
    monkeypatch.setattr(random_permutation, "launches", lambda queue: False)
    assert forebay.randperm(300, generator=seeded(2), dtype="int32", device=HOST).tolist() == by_queue


# ---- The likes


def test_like_what():
    like = forebay.empty(2, 3, dtype="float16", device=HOST)
    for make in (forebay.rand_like, forebay.randn_like):
        assert (make(like).shape, make(like).dtype) == ((2, 3), np.float16)
        assert make(like, dtype="float64").dtype == np.float64
        assert make(like, device=HOST).device == like.device
    assert forebay.randint_like(like, 10).dtype == np.float16
    assert set(forebay.randint_like(like, 1, 3, dtype="uint8").numpy().flat) <= {1, 2}
    assert forebay.randint_like(like, high=1).tolist() == [[0] * 3] * 2
    assert forebay.randint_like(like, low=4, high=5).tolist() == [[4] * 3] * 2


def test_the_same_numbers_as_the_ones_that_are_told_a_shape():
    like = forebay.empty(40, 30, device=HOST)
    for make, told in (
        (forebay.rand_like, forebay.rand),
        (forebay.randn_like, forebay.randn),
    ):
        found = make(like, generator=seeded(1)).numpy()
        np.testing.assert_array_equal(found, told(40, 30, generator=seeded(1), device=HOST).numpy())
    integers = forebay.randint_like(like, 5, 90, generator=seeded(1), dtype="int64").numpy()
    np.testing.assert_array_equal(integers, forebay.randint(5, 90, (40, 30), generator=seeded(1), device=HOST).numpy())


def test_transposed_like_transposed():
    like = forebay.empty(5, 7, device=HOST)
    straight = forebay.rand_like(like, generator=seeded(1)).numpy()
    turned = forebay.rand_like(like.permute(1, 0), generator=seeded(1))
    assert turned.stride() == (1, 7)
    np.testing.assert_array_equal(turned.numpy(), straight.T)


@pytest.mark.parametrize(
    ("shape", "strides", "slowest"),  # as the strides of torch.rand_like show them
    [
        ((4, 5, 3), (3, 0, 1), [0, 1, 2]),  # expanded
        ((4, 3), (6, 2), [0, 1]),  # with gaps
        ((4, 2, 3), (1, 12, 4), [1, 2, 0]),  # permuted
        ((4, 2, 3), (1, 24, 8), [1, 2, 0]),  # both
        ((2, 3, 4), (0, 0, 0), [0, 1, 2]),
        ((2, 5), (1, 1), [1, 0]),  # over themselves: the longer is the slower
        ((5, 2), (1, 1), [0, 1]),
        ((), (), []),
    ],
)
def test_the_order_in_memory(shape, strides, slowest):
    assert slowest_first(shape, strides) == slowest


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda x: forebay.rand_like([1, 2]), TypeError, "rand_like(): argument 'input' (position 1) must be Tensor"),
        (lambda x: forebay.randn_like(None), TypeError, "randn_like(): argument 'input' (position 1) must be Tensor"),
        (lambda x: forebay.randint_like(3, 4), TypeError, "randint_like(): argument 'input' (position 1) must be"),
        (forebay.rand_like, NotImplementedError, "\"check_uniform_bounds\" not implemented for 'Char'"),
        (forebay.randn_like, NotImplementedError, "\"normal_kernel_host\" not implemented for 'Char'"),
        (
            forebay.randint_like,
            TypeError,
            "randint_like() missing 1 required positional argument: 'high'",
        ),
        (lambda x: forebay.randint_like(x, 1000), RuntimeError, "to - 1 is out of bounds for signed char"),
        (lambda x: forebay.randint_like(x, 0), RuntimeError, "random_ expects 'from' to be less than 'to', but got"),
        (lambda x: forebay.randint_like(x, 5, 1), RuntimeError, "random_ expects 'from' to be less than 'to', but"),
        (lambda x: forebay.randint_like(x, 2.5), TypeError, "float"),
    ],
)
def test_like_nonsense(call, error, words):
    with pytest.raises(error) as told:
        call(forebay.empty(3, dtype="int8", device=HOST))
    assert words in str(told.value)
