"""randperm and the `*_like` functions: results and error texts.

The facts are from PyTorch 2.15 without a GPU: its launches and allocations are real, its kernels do not run. There are
no published results from a GPU.
"""

from __future__ import annotations

import threading
from collections import Counter

import ml_dtypes  # noqa: F401 -- makes bfloat16 a dtype
import numpy as np
import pytest
from support.model import random as model_random

import forebay
from forebay.runtime.memory.strided_copy import slowest_first
from forebay.runtime.tensors import random_permutation
from forebay.runtime.tensors.random_permutation import key_bits, permutation

pytestmark = pytest.mark.usefixtures("untouched_seeds")

HOST = "cpu"


def seeded(seed=0, device="cpu"):
    return forebay.Generator(device, geometry="h200").manual_seed(seed)


# ---- randperm


@pytest.mark.parametrize("count", [0, 1, 2, 3, 100, 257, 30_083, 30_084])
def test_randperm_contains_every_number_once(count):
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
def test_generator_offset_advances_as_in_pytorch(count, offset):
    generator = seeded()
    forebay.randperm(count, generator=generator, device=HOST)
    assert generator.get_offset() == offset


@pytest.mark.parametrize(
    ("count", "bits"),
    [(1, 3), (2, 5), (3, 6), (10, 9), (100, 16), (30_083, 32), (30_084, 33), (1 << 20, 43)],
)
def test_key_bits_match_pytorch(count, bits):
    """From 30,084 elements on, PyTorch allocates memory for 64-bit keys."""
    assert key_bits(count) == bits


@pytest.mark.slow
def test_equal_keys_are_shuffled():
    """Six permutations of three numbers, with six-bit keys, are equally frequent."""
    found = Counter(tuple(forebay.randperm(3, generator=seeded(at), device=HOST).tolist()) for at in range(6000))
    assert len(found) == 6
    assert max(abs(seen - 1000) for seen in found.values()) < 150  # five sigma


def test_adjacent_runs_of_equal_keys_are_shuffled_separately():
    keys = np.array([7, 7, 7, 1, 1, 5, 7 + 8, -8, 0, 7], np.int32)
    found = permutation(keys, 3, 11, 400)
    assert found.tolist() == model_random.shuffled(keys.tolist(), 3, 32, (11, 400))
    assert found[:2].tolist() in ([7, 8], [8, 7])  # -8 has the low bits of 0
    assert sorted(found[5:].tolist()) == [0, 1, 2, 6, 9]


@pytest.mark.parametrize("width", [32, 64])
def test_full_width_keys_are_sorted_signed(width):
    keys = np.array([5, -1, 0, -(1 << (width - 1))], f"i{width // 8}")
    assert permutation(keys, width, 0, 0).tolist() == [3, 1, 2, 0]


@pytest.mark.parametrize("bits", [40, 60])
def test_permutation_sorts_wide_keys(bits):
    """40 key bits and 10 index bits fit into one uint64; 60 key bits use the argsort path."""
    keys = np.random.Generator(np.random.Philox(4)).integers(-(1 << 63), 1 << 63, 1000) & -(1 << 36) | 3
    keys[::7] = keys[3]
    assert permutation(keys, bits, 9, 8).tolist() == model_random.shuffled(keys.tolist(), bits, 64, (9, 8))


@pytest.mark.parametrize("dtype", ["uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64"])
def test_randperm_of_each_dtype(dtype):
    found = forebay.randperm(100, generator=seeded(5), dtype=dtype, device=HOST)
    assert found.dtype == np.dtype(dtype)
    assert found.tolist() == forebay.randperm(100, generator=seeded(5), device=HOST).tolist()


@pytest.mark.parametrize(
    ("dtype", "largest", "text"),
    [
        ("uint8", 256, "value cannot be converted to type uint8_t without overflow"),
        ("int8", 128, "value cannot be converted to type int8_t without overflow"),
        ("int16", 32_768, "value cannot be converted to type int16_t without overflow"),
        ("float16", 2049, "n cannot be greater than 2049 for Half type."),
    ],
)
def test_dtype_must_represent_all_numbers(dtype, largest, text):
    generator = seeded()
    assert forebay.randperm(largest, dtype=dtype, generator=generator, device=HOST).numel() == largest
    before = generator.get_offset()
    with pytest.raises(RuntimeError) as caught:
        forebay.randperm(largest + 1, dtype=dtype, generator=generator, device=HOST)
    assert str(caught.value) == text
    assert generator.get_offset() == before


@pytest.mark.parametrize(
    ("count", "dtype", "text"),
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
def test_too_many_elements_raise_without_allocating(count, dtype, text):
    before = forebay.memory.memory_stats(HOST)["allocation.all.allocated"]
    with pytest.raises(RuntimeError) as caught:
        forebay.randperm(count, dtype=dtype, device=HOST)
    assert str(caught.value) == text
    assert forebay.memory.memory_stats(HOST)["allocation.all.allocated"] == before


@pytest.mark.parametrize(
    ("dtype", "name"),
    [("bool", "Bool"), ("uint16", "UInt16"), ("uint32", "UInt32"), ("uint64", "UInt64"), ("complex64", "ComplexFloat")],
)
@pytest.mark.parametrize("count", [0, 7])
def test_unsupported_dtypes_raise(count, dtype, name):
    with pytest.raises(NotImplementedError, match=f"^\"arange_cpu\" not implemented for '{name}'$"):
        forebay.randperm(count, dtype=dtype, device=HOST)


def test_bfloat16_raises_after_drawing_keys():
    generator = seeded()
    assert forebay.randperm(0, dtype="bfloat16", generator=generator, device=HOST).numel() == 0
    with pytest.raises(NotImplementedError, match="\"randperm_out_cpu\" not implemented for 'BFloat16'"):
        forebay.randperm(7, dtype="bfloat16", generator=generator, device=HOST)
    assert generator.get_offset() == 4  # the keys were drawn


@pytest.mark.parametrize("count", [True, np.True_, 2.5, "3", None, (3,)])
def test_randperm_rejects_non_ints(count):
    with pytest.raises(TypeError):
        forebay.randperm(count, device=HOST)


def test_generator_of_other_kind_raises():
    with pytest.raises(RuntimeError, match="Expected a 'cpu' device type for generator but found 'cuda'"):
        forebay.randperm(3, generator=forebay.Generator("cuda"), device=HOST)
    with pytest.raises(TypeError, match=r"must be forebay\.Generator, not int"):
        forebay.randperm(3, generator=3, device=HOST)


def test_randperm_is_ordered_in_its_stream():
    """The permutation is computed in the queue, without blocking the host."""
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
    """Block the stream until the returned event is set, for a minute at most."""
    release = threading.Event()
    stream.queue.call(lambda: release.wait(60))
    return release


def test_emulated_gpu_draws_like_its_profile(clean):
    with forebay.emulate("cuda", profile="t4"):
        generator = forebay.Generator("cuda").manual_seed(8)
        found = forebay.randperm(200_000, generator=generator, device="cuda").cpu().tolist()
    like_t4 = forebay.Generator("cpu", geometry="t4").manual_seed(8)
    assert found == forebay.randperm(200_000, generator=like_t4, device=HOST).tolist()
    assert found != forebay.randperm(200_000, generator=seeded(8), device=HOST).tolist()


def test_queue_without_functions_gives_same_numbers(fake, monkeypatch):
    by_queue = forebay.randperm(300, generator=seeded(2), dtype="int32", device=HOST).tolist()
    own = forebay.Generator("fake", geometry="h200")
    assert forebay.randperm(300, generator=own, device="fake:0").numel() == 300
    assert own.get_offset() == 304
    monkeypatch.setattr(random_permutation, "can_launch", lambda queue: False)
    assert forebay.randperm(300, generator=seeded(2), dtype="int32", device=HOST).tolist() == by_queue


# ---- rand_like, randn_like, randint_like


def test_like_functions_use_shape_dtype_and_device():
    like = forebay.empty(2, 3, dtype="float16", device=HOST)
    for make in (forebay.rand_like, forebay.randn_like):
        assert (make(like).shape, make(like).dtype) == ((2, 3), np.float16)
        assert make(like, dtype="float64").dtype == np.float64
        assert make(like, device=HOST).device == like.device
    assert forebay.randint_like(like, 10).dtype == np.float16
    assert set(forebay.randint_like(like, 1, 3, dtype="uint8").numpy().flat) <= {1, 2}
    assert forebay.randint_like(like, high=1).tolist() == [[0] * 3] * 2
    assert forebay.randint_like(like, low=4, high=5).tolist() == [[4] * 3] * 2


def test_like_functions_draw_same_numbers_as_sized_functions():
    like = forebay.empty(40, 30, device=HOST)
    for make, sized in (
        (forebay.rand_like, forebay.rand),
        (forebay.randn_like, forebay.randn),
    ):
        found = make(like, generator=seeded(1)).numpy()
        np.testing.assert_array_equal(found, sized(40, 30, generator=seeded(1), device=HOST).numpy())
    integers = forebay.randint_like(like, 5, 90, generator=seeded(1), dtype="int64").numpy()
    np.testing.assert_array_equal(integers, forebay.randint(5, 90, (40, 30), generator=seeded(1), device=HOST).numpy())


def test_like_functions_preserve_strides():
    like = forebay.empty(5, 7, device=HOST)
    contiguous = forebay.rand_like(like, generator=seeded(1)).numpy()
    transposed = forebay.rand_like(like.permute(1, 0), generator=seeded(1))
    assert transposed.stride() == (1, 7)
    np.testing.assert_array_equal(transposed.numpy(), contiguous.T)


@pytest.mark.parametrize(
    ("shape", "strides", "slowest"),  # as the strides of torch.rand_like show them
    [
        ((4, 5, 3), (3, 0, 1), [0, 1, 2]),  # expanded
        ((4, 3), (6, 2), [0, 1]),  # with gaps
        ((4, 2, 3), (1, 12, 4), [1, 2, 0]),  # permuted
        ((4, 2, 3), (1, 24, 8), [1, 2, 0]),  # both
        ((2, 3, 4), (0, 0, 0), [0, 1, 2]),
        ((2, 5), (1, 1), [1, 0]),  # overlapping: the longer dimension is the slower one
        ((5, 2), (1, 1), [0, 1]),
        ((), (), []),
    ],
)
def test_slowest_first_orders_dimensions(shape, strides, slowest):
    assert slowest_first(shape, strides) == slowest


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda x: forebay.rand_like([1, 2]), TypeError, "rand_like(): argument 'input' (position 1) must be Tensor"),
        (lambda x: forebay.randn_like(None), TypeError, "randn_like(): argument 'input' (position 1) must be Tensor"),
        (lambda x: forebay.randint_like(3, 4), TypeError, "randint_like(): argument 'input' (position 1) must be"),
        (forebay.rand_like, NotImplementedError, "\"check_uniform_bounds\" not implemented for 'Char'"),
        (forebay.randn_like, NotImplementedError, "\"normal_kernel_cpu\" not implemented for 'Char'"),
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
def test_like_functions_reject_invalid_arguments(call, error, text):
    with pytest.raises(error) as caught:
        call(forebay.empty(3, dtype="int8", device=HOST))
    assert text in str(caught.value)
