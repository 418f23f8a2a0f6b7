"""Random numbers with a parameter per element: `normal` of tensors, and `poisson`."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import forebay
from forebay import cuda
from forebay.errors import DeviceError

HOST = "cpu"
NAN = float("nan")


@pytest.fixture
def generator():
    return forebay.Generator(HOST, geometry="a100").manual_seed(5)


def standard(shape, dtype="float32", std=1.0):
    """Return the numbers that `normal` scales and shifts."""
    generator = forebay.Generator(HOST, geometry="a100").manual_seed(5)
    return forebay.empty(shape, dtype=dtype, device=HOST).normal_(0, std, generator=generator).numpy().copy()


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", ml_dtypes.bfloat16], ids=str)
def test_normal_rounds_after_each_step(generator, dtype):
    means, deviations = (np.linspace(1, stop, 300).astype(dtype) for stop in (50, 9))
    found = forebay.normal(forebay.from_numpy(means), forebay.from_numpy(deviations), generator=generator)
    np.testing.assert_array_equal(found.numpy(), standard(300, dtype) * deviations + means)
    assert found.numpy_dtype == np.dtype(dtype)


def test_normal_with_one_deviation_scales_while_drawing(generator):
    means = forebay.arange(300, dtype="float32", device=HOST)
    found = forebay.normal(means, 3.0, generator=generator)
    np.testing.assert_array_equal(found.numpy(), standard(300, std=3.0) + means.numpy())


def test_normal_with_one_mean(generator):
    deviations = forebay.arange(300, dtype="float16", device=HOST)
    found = forebay.normal(0.1, deviations, generator=generator)
    np.testing.assert_array_equal(found.numpy(), standard(300, "float16") * deviations.numpy() + np.float16(0.1))


def test_normal_broadcasts(generator):
    means, deviations = forebay.arange(5, device=HOST, dtype="float32"), forebay.ones(3, 1, device=HOST)
    found = forebay.normal(means, deviations, generator=generator)
    np.testing.assert_array_equal(found.numpy(), standard((3, 5)) + means.numpy())


def test_normal_computes_in_the_wider_dtype(generator):
    wide = np.full(300, 1 + 2.0**-40)
    found = forebay.normal(forebay.zeros(300, device=HOST), forebay.from_numpy(wide), generator=generator)
    np.testing.assert_array_equal(found.numpy(), (standard(300) * wide).astype(np.float32))
    scalar = forebay.tensor(1 / 3, dtype=forebay.float64, device=HOST)
    found = forebay.normal(scalar.expand(300).to(dtype="float32"), scalar, generator=generator.manual_seed(5))
    np.testing.assert_array_equal(found.numpy(), standard(300) * np.float32(1 / 3) + np.float32(1 / 3))


@pytest.mark.parametrize(
    ("given", "dtype"), [("float16", ml_dtypes.bfloat16), (ml_dtypes.bfloat16, "float16")], ids=str
)
def test_normal_computes_with_another_float_of_two_bytes_in_float32(generator, given, dtype):
    """Neither type has all values of the other; each step is rounded to that of `out`, as PyTorch 2.13 does."""
    means, deviations = (np.linspace(1, stop, 300).astype(given) for stop in (3000, 9))
    out = forebay.empty(300, dtype=dtype, device=HOST)
    forebay.normal(forebay.from_numpy(means), forebay.from_numpy(deviations), generator=generator, out=out)
    scaled = (standard(300, dtype).astype("f4") * deviations.astype("f4")).astype(dtype)
    expected = (scaled.astype("f4") + means.astype("f4")).astype(dtype)
    np.testing.assert_array_equal(out.numpy(), expected)


@pytest.mark.parametrize("given", ["int16", "uint16", "int64"])
@pytest.mark.parametrize("dtype", ["float16", ml_dtypes.bfloat16], ids=str)
def test_normal_converts_integers_to_the_type_of_out(generator, given, dtype):
    means = np.linspace(0, 30_000, 300).astype(given)
    out = forebay.empty(300, dtype=dtype, device=HOST)
    forebay.normal(forebay.from_numpy(means), 1.0, generator=generator, out=out)
    np.testing.assert_array_equal(out.numpy(), standard(300, dtype) + means.astype(dtype))


def test_normal_fills_out(generator):
    out = forebay.empty(4, device=HOST)
    assert forebay.normal(forebay.ones(4, device=HOST), 0.0, generator=generator, out=out) is out
    assert out.tolist() == [1] * 4


@pytest.mark.parametrize("bad", [-0.5, NAN])
def test_normal_rejects_invalid_deviations(generator, bad):
    deviations = forebay.tensor([1.0, bad], device=HOST)
    for mean in (0.0, forebay.zeros(2, device=HOST)):
        with pytest.raises(RuntimeError, match=r"^normal expects all elements of std >= 0.0$"):
            forebay.normal(mean, deviations, generator=generator)
    assert generator.get_offset() == 0


def test_normal_with_a_size(generator):
    found = forebay.normal(2.0, 3.0, (4, 5), generator=generator, device=HOST)
    expected = forebay.empty(4, 5, device=HOST).normal_(2, 3, generator=generator.manual_seed(5))
    assert found.tolist() == expected.tolist()


def test_poisson_has_an_order_of_elements(generator):
    """Elements get the numbers of the contiguous result's order, whatever the order of the rates."""
    rates = forebay.arange(6, dtype="float32", device=HOST).to(dtype="float32")
    table = forebay.from_numpy(rates.numpy().reshape(3, 2))
    straight = forebay.poisson(table, generator).numpy()
    turned = forebay.from_numpy(np.asfortranarray(table.numpy()))
    assert forebay.poisson(turned, generator.manual_seed(5)).tolist() == straight.tolist()
    assert straight[0, 0] == 0


@pytest.mark.parametrize("bad", [-0.5, NAN])
def test_negative_rate_fails(generator, bad):
    drawn = forebay.poisson(forebay.full((4,), bad, device=HOST), generator)
    with pytest.raises(DeviceError, match="code 710"):
        forebay.synchronize(HOST)
    assert drawn.tolist() == [0] * 4


def test_poisson_of_large_rates_is_large(generator):
    numbers = forebay.poisson(forebay.full((1000,), 1e6, dtype="float64", device=HOST), generator).numpy()
    assert abs(numbers.mean() - 1e6) < 200
    assert (numbers == np.floor(numbers)).all()


def test_captured_normal_with_deviations_breaks_the_capture():
    with forebay.emulate("cuda"), cuda.stream(cuda.Stream()):
        graph, tensor = cuda.CUDAGraph(), forebay.ones(4, device="cuda")
        graph.capture_begin()
        with pytest.raises(DeviceError) as raised:
            forebay.normal(tensor, tensor)
        assert raised.value.code == 900
        graph.reset()


def test_captured_draws_equal_eager_ones():
    """Each replay draws the numbers that eager calls would."""
    with forebay.emulate("cuda"):
        rates = forebay.full((500,), 3.5, device="cuda")
        calls = (
            lambda: forebay.poisson(rates),
            lambda: forebay.normal(rates, 2.0),
            lambda: forebay.empty(500, device="cuda").cauchy_(),
            lambda: forebay.empty(500, device="cuda").log_normal_(),
            lambda: forebay.empty(500, device="cuda").geometric_(0.3),
        )
        cuda.manual_seed(11)
        eager = [[call().tolist() for call in calls] for _ in range(2)]
        graph = cuda.CUDAGraph()
        cuda.manual_seed(11)
        with cuda.graph(graph):
            captured = [call() for call in calls]
        for expected in eager:
            graph.replay()
            assert [each.tolist() for each in captured] == expected
