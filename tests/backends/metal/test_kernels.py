"""Random fills and copies: which of them the GPU computes, and that their numbers equal the CPU device's."""

from __future__ import annotations

import numpy as np
import pytest

import forebay
from forebay import config
from forebay.backends import override_driver
from forebay.backends.metal.driver import MetalDriver
from forebay.backends.metal.kernels.library import Kernels
from forebay.runtime.lifecycle.emulation import reset_kind

REALS = ("float32", "float16", "bfloat16")
INTEGERS = ("uint8", "int8", "int16", "int32", "int64", "bool")


@pytest.fixture
def device(mac):
    with override_driver(MetalDriver()):
        yield mac
        reset_kind("mps")


def drawn(draw, dtype: str, where: str) -> np.ndarray:
    """Return the bits of what a function draws into every second element of a matrix with other columns."""
    forebay.manual_seed(77)
    matrix = forebay.zeros(50, 40, dtype=getattr(forebay, dtype), device=where)
    draw(matrix[:, ::2])
    draw(matrix[3])
    return matrix.view(forebay.uint8).cpu().numpy().copy()


@pytest.mark.parametrize("dtype", REALS)
@pytest.mark.parametrize(
    ("name", "draw"),
    [
        ("uniform", lambda tensor: tensor.uniform_(-3, 5)),
        ("unit", lambda tensor: tensor.uniform_()),
        ("normal", lambda tensor: tensor.normal_(2, 0.5)),
        ("exponential", lambda tensor: tensor.exponential_(0.3)),
        ("bernoulli", lambda tensor: tensor.bernoulli_(0.3)),
        ("integers", lambda tensor: tensor.random_(0, 100)),
    ],
)
def test_gpu_draws_the_numbers_of_the_cpu_device(device, name, draw, dtype):
    before = device.calls("dispatchThreads_threadsPerThreadgroup_")
    found = drawn(draw, dtype, "mps")
    assert device.calls("dispatchThreads_threadsPerThreadgroup_") - before >= 2, name
    assert np.array_equal(found, drawn(draw, dtype, "cpu"))


@pytest.mark.parametrize("dtype", INTEGERS)
@pytest.mark.parametrize("low", [0, -5])
def test_gpu_draws_integers_of_the_cpu_device(device, dtype, low):
    def draw(tensor):
        tensor.random_(0 if dtype in ("uint8", "bool") else low, 2 if dtype == "bool" else 100)
        tensor[::2].bernoulli_(0.25)

    assert np.array_equal(drawn(draw, dtype, "mps"), drawn(draw, dtype, "cpu"))


def test_wide_integers_are_those_of_the_cpu_device(device):
    def draw(tensor):
        tensor.random_(-(1 << 60), 1 << 61)

    assert np.array_equal(drawn(draw, "int64", "mps"), drawn(draw, "int64", "cpu"))


@pytest.mark.parametrize("dtype", [*REALS, "float64"])
@pytest.mark.parametrize("name", ["cauchy_", "log_normal_"])
def test_host_draws_what_needs_doubles(device, name, dtype):
    def draw(tensor):
        getattr(tensor, name)()

    assert np.array_equal(drawn(draw, dtype, "mps"), drawn(draw, dtype, "cpu"))


def test_transposed_copy_is_a_kernel(device):
    tensor = forebay.arange(600, dtype=forebay.int32).view(20, 30).to("mps")
    forebay.mps.synchronize()
    before = device.calls("dispatchThreads_threadsPerThreadgroup_")
    copy = forebay.empty(30, 20, dtype=forebay.int32, device="mps").copy_(tensor.transpose(0, 1))
    assert copy.tolist() == np.arange(600).reshape(20, 30).T.tolist()
    assert device.calls("dispatchThreads_threadsPerThreadgroup_") > before


def test_kernels_are_compiled_once(device):
    for _ in range(3):
        forebay.rand(1000, device="mps")
    assert device.calls("newLibraryWithSource_options_error_") == 1
    forebay.randn(1000, device="mps")
    assert device.calls("newLibraryWithSource_options_error_") == 2


@pytest.mark.parametrize(("value", "fast"), [(None, False), ("0", False), ("1", True)])
def test_fast_math_is_what_the_variable_says(device, monkeypatch, value, fast):
    if value is not None:
        monkeypatch.setenv(config.MPS_FAST_MATH.name, value)
    seen, compile_source = [], Kernels.compile

    def noting(self, source, *, fast_math=False):
        seen.append(fast_math)
        return compile_source(self, source, fast_math=fast_math)

    monkeypatch.setattr(Kernels, "compile", noting)
    forebay.mps.compile_shader("#include <metal_stdlib>\nkernel void nothing(device float* x) { x[0] = 1; }")
    assert seen == [fast]
