"""Random fills: results and error texts, as in PyTorch 2.15. About 400 lines because of the table of error texts."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import forebay
from forebay import random
from forebay.errors import DeviceError
from forebay.runtime.random import drawing

pytestmark = pytest.mark.usefixtures("untouched_seeds")

HOST = "cpu"
FLOATS = ["float16", "bfloat16", "float32", "float64"]


def empty(*size, dtype=None):
    return forebay.empty(*size, dtype=dtype, device=HOST)


# ---- Fills


@pytest.mark.parametrize(
    "draw",
    [
        lambda generator: forebay.rand(30, device=HOST, generator=generator),
        lambda generator: forebay.randn(5, 6, device=HOST, generator=generator),
        lambda generator: forebay.exponential((5, 6), device=HOST, generator=generator),
        lambda generator: forebay.randint(0, 100, (30,), device=HOST, generator=generator),
        lambda generator: forebay.bernoulli(forebay.full((30,), 0.5, device=HOST), generator=generator),
        lambda generator: forebay.bernoulli(forebay.zeros(30, device=HOST), 0.5, generator=generator),
    ],
)
def test_same_seed_gives_same_numbers(draw):
    random.manual_seed(11)
    one, given = draw(None).numpy().copy(), draw(forebay.Generator("cpu").manual_seed(11)).numpy().copy()
    other = draw(None).numpy().copy()
    np.testing.assert_array_equal(one, given)
    assert not np.array_equal(one, other)
    assert one.size == 30


def test_creation_functions_return_dtype_and_shape():
    assert forebay.rand(2, 3, device=HOST).dtype == forebay.randn(2, device=HOST).dtype == np.float32
    assert forebay.randint(5, (2, 3), device=HOST).dtype == np.int64
    assert forebay.randint(high=5, size=[2], dtype="uint8", device=HOST).dtype == np.uint8
    assert forebay.randint(3, 4, (2,), device=HOST).tolist() == [3, 3]
    assert forebay.randint(1, size=(2,), device=HOST).tolist() == [0, 0]
    assert forebay.exponential(2, 3, lambd=5, dtype="float64", device=HOST).shape == (2, 3)
    assert forebay.rand((), device=HOST).shape == ()
    made = empty(3)
    assert made.uniform_() is made.normal_() is made.random_() is made.bernoulli_() is made.exponential_() is made


@pytest.mark.parametrize("dtype", FLOATS)
def test_floats_follow_their_distribution(generator, dtype):
    count = 40_000
    uniform = empty(count, dtype=dtype).uniform_(2, 5, generator=generator).numpy().astype(float)
    assert ((uniform >= 2) & (uniform < 5)).all()
    assert abs(uniform.mean() - 3.5) < 0.03
    normal = empty(count, dtype=dtype).normal_(3, 2, generator=generator).numpy().astype(float)
    assert abs(normal.mean() - 3) < 0.06
    assert abs(normal.std() - 2) < 0.06
    waiting = empty(count, dtype=dtype).exponential_(0.5, generator=generator).numpy().astype(float)
    assert (waiting > 0).all()
    assert abs(waiting.mean() - 2) < 0.06
    coins = empty(count, dtype=dtype).bernoulli_(0.3, generator=generator).numpy().astype(float)
    assert set(coins) == {0, 1}
    assert abs(coins.mean() - 0.3) < 0.02


@pytest.mark.parametrize("dtype", ["complex64", "complex128"])
def test_complex_elements_are_drawn_as_two_floats(dtype):
    seeded = forebay.Generator("cpu")
    parts = np.dtype(dtype).type(0).real.dtype
    found = empty(500, dtype=dtype).normal_(1, 3, generator=seeded).numpy()
    wanted = empty(1000, dtype=parts).normal_(1, 3 / 2**0.5, generator=seeded.manual_seed(67280421310721)).numpy()
    np.testing.assert_array_equal(found.view(parts), wanted)
    found = empty(6, 4, dtype=dtype)[::2, 1:].uniform_(generator=seeded.manual_seed(1)).numpy()
    wanted = empty(24, dtype=parts).uniform_(generator=seeded.manual_seed(1)).numpy()
    np.testing.assert_array_equal(found.ravel().view(parts), wanted[:18])


def test_random_without_bounds_draws_all_64_bits(generator):
    found = empty(2000, dtype="int64").random_(-(1 << 63), None, generator=generator).numpy()
    assert found.min() < -(1 << 61)
    assert found.max() > 1 << 61
    floats = empty(2000, dtype="float64").random_(-(1 << 63), None, generator=generator.manual_seed(7)).numpy()
    np.testing.assert_array_equal(floats, found.astype(np.float64))


def test_empty_tensors_do_not_advance_generator(generator):
    for made in (empty(0), empty(3, 0, dtype="int64"), empty(0, dtype="complex64")):
        for draw in (made.normal_, made.exponential_, made.bernoulli_, made.random_):
            assert draw(generator=generator) is made
        made.bernoulli_(forebay.zeros(made.shape, device=HOST), generator=generator)
    empty(0).uniform_(generator=generator)
    empty(0, dtype="complex64").uniform_(3, 1, generator=generator)
    assert generator.get_offset() == 0


def test_offset_advances_as_in_pytorch(generator):
    """The offsets of PyTorch's generator after the same fills of a million elements on an H200."""

    def skipped(draw, dtype):
        generator.set_offset(0)
        draw(empty(1_000_000, dtype=dtype))
        return generator.get_offset()

    assert skipped(lambda made: made.uniform_(generator=generator), "float32") == 4
    assert skipped(lambda made: made.uniform_(generator=generator), "float64") == 8
    assert skipped(lambda made: made.bernoulli_(generator=generator), "float64") == 8
    assert skipped(lambda made: made.bernoulli_(generator=generator), "bool") == 4
    assert skipped(lambda made: made.random_(generator=generator), "float32") == 4
    assert skipped(lambda made: made.random_(generator=generator), "float64") == 8
    assert skipped(lambda made: made.random_(0, 100, generator=generator), "float64") == 4
    assert skipped(lambda made: made.random_(0, 2**28 - 1, generator=generator), "int64") == 4
    assert skipped(lambda made: made.random_(0, 2**28, generator=generator), "int64") == 8
    assert skipped(lambda made: made.random_(3, None, generator=generator), "int32") == 8
    assert skipped(lambda made: made.uniform_(generator=generator), "complex64") == 8
    probabilities = forebay.zeros(1, device=HOST)
    assert skipped(lambda made: made.bernoulli_(probabilities, generator=generator), "int8") == 12


def test_draw_is_ordered_in_its_queue(generator):
    stream = forebay.Stream(HOST)
    with stream:
        made = forebay.zeros(1000, device=HOST)
        made.uniform_(1, 2, generator=generator)
        made[:500].zero_()
        found = made.numpy()
    assert not found[:500].any()
    assert (found[500:] >= 1).all()


def test_array_memory_is_kept_alive_during_fill(generator):
    array = np.zeros(1000, np.float32)
    forebay.from_numpy(array).normal_(generator=generator)
    forebay.synchronize(HOST)
    assert array.any()


def test_fill_without_queue_support_gives_same_numbers(generator, fake, monkeypatch):
    def fill():
        made = forebay.zeros(8, 6, device=HOST)
        made[::-2, 1:].transpose(0, 1).normal_(generator=generator.manual_seed(7))
        probabilities = forebay.full((8,), 0.5, device=HOST)
        return made.numpy().copy(), empty(8).bernoulli_(probabilities, generator=generator).numpy().copy()

    by_queue = fill()
    monkeypatch.setattr(drawing, "_supports_draws", lambda queue: False)
    for one, other in zip(by_queue, fill(), strict=True):
        np.testing.assert_array_equal(one, other)
    assert np.count_nonzero(by_queue[0]) == 20
    with pytest.raises(DeviceError, match="not in"):
        empty(2).bernoulli_(forebay.full((2,), 3.0, device=HOST), generator=generator)
    own = forebay.Generator("fake")
    forebay.empty(4, 6, device="fake:0").uniform_(generator=own)
    assert own.get_offset() == 4


# ---- Invalid arguments

FILLS = {
    "uniform": lambda made, *numbers, **options: made.uniform_(*numbers, **options),
    "normal": lambda made, *numbers, **options: made.normal_(*numbers, **options),
    "exponential": lambda made, *numbers, **options: made.exponential_(*numbers, **options),
    "bernoulli": lambda made, *numbers, **options: made.bernoulli_(*numbers, **options),
    "random": lambda made, *numbers, **options: made.random_(*numbers, **options),
}
NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("fill", "dtype", "numbers", "text"),
    [
        ("normal", "float32", (0, -1), "normal expects std >= 0.0, but found std -1"),
        ("normal", "float32", (0, NAN), "normal expects std >= 0.0, but found std nan"),
        ("normal", "int64", (), "\"normal_kernel_cpu\" not implemented for 'Long'"),
        ("normal", "bool", (), "\"normal_kernel_cpu\" not implemented for 'Bool'"),
        ("uniform", "float32", (2, 1), "uniform_ expects to return a [from, to) range, but found from=2 > to=1"),
        (
            "uniform",
            "float32",
            (-3e38, 3e38),
            (
                "uniform_ expects to-from <= std::numeric_limits<Float>::max(), but found to=3e+38 and from=-3e+38 "
                "which result in to-from to exceed the limit"
            ),
        ),
        ("uniform", "float16", (0, 1e5), "to is out of bounds for c10::Half"),
        ("uniform", "bfloat16", (-INF, 1), "from is out of bounds for c10::BFloat16"),
        ("uniform", "float32", (NAN, 1), "from is out of bounds for float"),
        ("uniform", "int64", (), "\"check_uniform_bounds\" not implemented for 'Long'"),
        ("exponential", "float32", (0,), "exponential_ expects lambda > 0.0, but found lambda=0"),
        ("exponential", "float32", (-1.5,), "exponential_ expects lambda > 0.0, but found lambda=-1.5"),
        ("exponential", "float32", (NAN,), "exponential_ expects lambda > 0.0, but found lambda=nan"),
        (
            "exponential",
            "complex64",
            (),
            (
                "Exponential distribution is a continuous probability distribution. dtype must be a floating point but "
                "you specified ComplexFloat"
            ),
        ),
        ("bernoulli", "float32", (1.5,), "bernoulli_ expects p to be in [0, 1], but got p=1.5"),
        ("bernoulli", "float32", (NAN,), "bernoulli_ expects p to be in [0, 1], but got p=nan"),
        ("bernoulli", "uint16", (), "\"bernoulli_scalar_cpu_\" not implemented for 'UInt16'"),
        ("bernoulli", "complex64", (), "\"bernoulli_scalar_cpu_\" not implemented for 'ComplexFloat'"),
        ("random", "float32", (5, 5), "random_ expects 'from' to be less than 'to', but got from=5 >= to=5"),
        ("random", "uint8", (-1,), "random_ expects 'from' to be less than 'to', but got from=0 >= to=-1"),
        ("random", "int8", (0, 300), "to - 1 is out of bounds for signed char"),
        ("random", "int8", (-300, 3), "from is out of bounds for signed char"),
        ("random", "int16", (-(1 << 63) + 5, 1), "from is out of bounds for short int"),
        ("random", "uint32", (-5, None), "from is out of bounds for unsigned int"),
        ("random", "bool", (0, 3), "to - 1 is out of bounds for bool"),
        ("random", "uint64", (5, None), "to - 1 is out of bounds for long unsigned int"),
        ("random", "int8", (500, None), "from is out of bounds for signed char"),
        ("random", "float16", (0, 70000), "to - 1 is out of bounds for c10::Half"),
        (
            "random",
            "float64",
            (1 << 60, None),
            (
                "random_ expects 'from' casted to dtype to be less than or equal to 'to_inc' casted to dtype, but got "
                "from=1152921504606846976 > to_inc=9007199254740992"
            ),
        ),
        (
            "random",
            "float16",
            (5000, None),
            (
                "random_ expects 'from' casted to dtype to be less than or equal to 'to_inc' casted to dtype, but got "
                "from=5000 > to_inc=2048"
            ),
        ),
        ("random", "uint16", (), "\"random_kernel_cpu\" not implemented for 'UInt16'"),
        ("random", "complex64", (), "\"random_kernel_cpu\" not implemented for 'ComplexFloat'"),
        (
            "random",
            "complex64",
            (0, 2),
            "check_random_bounds handles only integral, floating-point and boolean types",
        ),
        (
            "random",
            "complex64",
            (-5, None),
            "random_from_to_impl handles only integral, floating-point and boolean types",
        ),
        (
            "random",
            "int32",
            (-(1 << 63), None),
            "random_full_64_bits_range_kernel_cpu handles only int64, double, float and bfloat16",
        ),
        (
            "random",
            "float16",
            (-(1 << 63), None),
            "\"random_full_64_bits_range_kernel_cpu\" not implemented for 'Half'",
        ),
        ("random", ">i4", (), "\"random_kernel_cpu\" not implemented for '>i4'"),
        ("normal", [("x", "f4")], (), "\"normal_kernel_cpu\" not implemented for '[('x', '<f4')]'"),
    ],
)
def test_invalid_arguments_raise_pytorchs_errors(generator, fill, dtype, numbers, text):
    with pytest.raises(RuntimeError) as caught:
        FILLS[fill](empty(2, dtype=dtype), *numbers, generator=generator)
    assert str(caught.value) == text
    assert isinstance(caught.value, NotImplementedError) == ("not implemented" in text)
    assert generator.get_offset() == 0


def test_bounds_beyond_float_precision_warn(generator):
    with pytest.warns(UserWarning, match=r"^to - 1 is out of bounds \[-\(2\^11\), 2\^11\]\. Due to precision"):
        found = empty(5000, dtype="float16").random_(0, 5000, generator=generator).numpy()
    assert found.max() < 5000
    with pytest.warns(UserWarning, match="out of bounds"):
        found = empty(5000).random_(0, (1 << 63) - 1, generator=generator).numpy()
    with pytest.warns(UserWarning, match="out of bounds"):
        found = empty(5000, dtype="bfloat16").random_(0, 1 << 60, generator=generator).numpy()
    assert found.astype(float).max() < 1 << 60
    with pytest.warns(UserWarning, match="from is out of bounds"):
        found = empty(5000).random_(-(1 << 24) - 3, 0, generator=generator).numpy()
    assert found.min() >= -(1 << 24) - 2


@pytest.mark.parametrize("bounds", [(2.5,), ("a",), (1, 2, 3), (None,), (None, 3), (True,)])
def test_random_rejects_invalid_bounds(generator, bounds):
    with pytest.raises(TypeError):
        empty(2).random_(*bounds, generator=generator)


def test_random_rejects_bounds_beyond_64_bits(generator):
    with pytest.raises(ValueError, match="Overflow when unpacking long long"):
        empty(2, dtype="uint64").random_(0, 1 << 63, generator=generator)


@pytest.mark.parametrize("arguments", [(10, 2), (1, 2, 3), (1,), (), ((2,), (3,)), (5, "23"), (1, (2,), (3,))])
def test_randint_rejects_invalid_arguments(arguments):
    with pytest.raises(TypeError):
        forebay.randint(*arguments, device=HOST)


def test_generator_of_other_kind_raises():
    with pytest.raises(RuntimeError, match=r"^Expected a 'cpu' device type for generator but found 'cuda'$"):
        forebay.rand(2, device=HOST, generator=forebay.Generator("cuda"))
    with pytest.raises(TypeError, match=r"argument .generator. must be forebay\.Generator, not int"):
        forebay.rand(2, device=HOST, generator=3)


def test_overlapping_elements_raise(generator):
    with pytest.raises(RuntimeError, match=r"^unsupported operation: more than one element of the written-to tensor"):
        empty(1, 1).expand(2, 2).uniform_(generator=generator)


def test_invalid_probabilities_raise(generator):
    made = empty(100)
    for bad in (1.5, -0.5, NAN):
        made.bernoulli_(forebay.full((100,), bad, device=HOST), generator=generator)
        with pytest.raises(DeviceError, match="code 710") as caught:
            forebay.synchronize(HOST)
        assert caught.value.code == 710
    with pytest.raises(RuntimeError, match=r"^expected probabilities tensor to have floating type, got Long$"):
        made.bernoulli_(forebay.zeros(100, dtype="int64", device=HOST), generator=generator)
    with pytest.raises(NotImplementedError, match="bernoulli_tensor_cpu_self_"):
        empty(100, dtype="uint32").bernoulli_(forebay.zeros(100, device=HOST), generator=generator)
    with pytest.raises(RuntimeError, match="The expanded size of the tensor"):
        made.bernoulli_(forebay.zeros(3, device=HOST), generator=generator)


@pytest.mark.parametrize("dtype", ["float32", ml_dtypes.bfloat16, "int8"])
def test_order_of_bernoulli_with_probabilities(generator, dtype):
    """Elements are drawn in memory order if the strides of both tensors agree, else in order of dimensions."""
    values = np.linspace(0, 1, 24, dtype=np.float32).reshape(4, 6)

    def coins(tensor, probabilities):
        return tensor.bernoulli_(probabilities, generator=generator.manual_seed(2)).numpy().astype(int)

    flat = coins(empty(24, dtype=dtype), forebay.tensor(values.ravel(), device=HOST))
    both = coins(empty(4, 6, dtype=dtype).transpose(0, 1), forebay.tensor(values, device=HOST).transpose(0, 1))
    np.testing.assert_array_equal(both.T.ravel(), flat)
    one = coins(empty(6, 4, dtype=dtype).transpose(0, 1), forebay.tensor(values, device=HOST))
    np.testing.assert_array_equal(one.ravel(), flat)


def test_impossible_sizes_raise():
    with pytest.raises(forebay.OutOfMemory):
        forebay.rand(1 << 60, device=HOST)
    with pytest.raises(RuntimeError, match="negative"):
        forebay.randn(-1, device=HOST)
