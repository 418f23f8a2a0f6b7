"""Random fills and copies: which of them the GPU computes, and that their numbers equal the CPU device's."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import forebay
from forebay._base import config
from forebay.backends import override_driver
from forebay.backends.metal.driver import MetalDriver
from forebay.backends.metal.kernels.library import Kernels
from forebay.runtime.lifecycle.emulation import reset_kind
from forebay.spi import StridedCopy

REALS = ("float32", "float16", "bfloat16")
INTEGERS = ("uint8", "int8", "int16", "int32", "int64", "bool")


def _processor_flags() -> set[str]:
    file = Path("/proc/cpuinfo")
    return set(file.read_text().split()) if file.exists() else set()


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


@pytest.mark.skipif("fma" not in _processor_flags(), reason="the processor fuses no multiplications and additions")
@pytest.mark.parametrize("dtype", REALS)
def test_fused_operations_change_no_number(device, monkeypatch, dtype):
    """Apple's compiler may contract products and sums, also without fast math."""

    def draw(tensor):
        tensor[::2].normal_(2, 0.5)
        tensor[1::4].exponential_(0.3)
        tensor[3::4].uniform_(-3, 5)

    monkeypatch.setenv("SOFTMETAL_FLAGS", "-mfma -ffp-contract=fast -O2")
    assert np.array_equal(drawn(draw, dtype, "mps"), drawn(draw, dtype, "cpu"))


@pytest.mark.parametrize("dtype", INTEGERS)
@pytest.mark.parametrize("low", [0, -5])
def test_gpu_draws_integers_of_the_cpu_device(device, dtype, low):
    def draw(tensor):
        tensor.random_(0 if dtype in ("uint8", "bool") else low, 2 if dtype == "bool" else 100)
        tensor[::2].bernoulli_(0.25)

    assert np.array_equal(drawn(draw, dtype, "mps"), drawn(draw, dtype, "cpu"))


def test_groups_have_as_many_threads_as_the_pipeline_permits(become):
    become("m1-8gib", threads=64)
    with override_driver(MetalDriver()):
        found = drawn(lambda tensor: tensor.normal_(), "float32", "mps")
        copy = forebay.arange(600, dtype=forebay.int32).view(20, 30).to("mps").transpose(0, 1).contiguous()
        assert copy.tolist() == np.arange(600).reshape(20, 30).T.tolist()
        reset_kind("mps")
    assert np.array_equal(found, drawn(lambda tensor: tensor.normal_(), "float32", "cpu"))


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


EVERY = ("bool", "uint8", "int8", "int16", "int32", "int64", "float16", "bfloat16", "float32")


@pytest.mark.parametrize("source", EVERY)
def test_gpu_converts_as_the_cpu_device(device, source):
    """All 16-bit patterns, as the elements of each type, aligned and not."""
    bits = np.arange(1 << 16, dtype=np.uint16)
    if source == "bool":
        bits = bits & 0x0101
    elif source == "float32":  # patterns of each exponent, with some that are between 16-bit floats
        bits = (np.arange(1 << 16, dtype=np.uint32) << 16 | 0x8FFF * (np.arange(1 << 16, dtype=np.uint32) % 3)).view(
            "u2"
        )
    values = forebay.tensor(bits.view(np.uint8)).view(getattr(forebay, source))
    there = values.to("mps")
    for to in EVERY:
        before = device.calls("dispatchThreads_threadsPerThreadgroup_")
        found, expected = (each.to(getattr(forebay, to)) for each in (there, values))
        by_gpu = device.calls("dispatchThreads_threadsPerThreadgroup_") > before
        is_float = "float" in source
        assert by_gpu == (to != source and not (is_float and "float" not in to and to != "bool")), to
        assert np.array_equal(_pattern(found.cpu()), _pattern(expected)), to


def test_gpu_converts_elements_at_odd_addresses(device):
    raw = np.arange(4001, dtype=np.uint8)
    memory = forebay.tensor(raw).to("mps")
    target = forebay.zeros(4001, dtype=forebay.uint8, device="mps")
    odd = forebay.empty(0, dtype=forebay.float16, device="mps")
    queue, at = odd.raw_storage.opened.default_queue, memory.raw_address()
    copy = StridedCopy((1000,), target.raw_address() + 1, (4,), "float32", 4, at + 3, (2,), "float16")
    queue.copy_strided(copy)
    forebay.mps.synchronize()
    expected = raw[3:2003].copy().view(np.float16).astype(np.float32)
    found = target.cpu().numpy()[1:].copy().view(np.float32)
    assert np.array_equal(np.nan_to_num(found), np.nan_to_num(expected))


def _pattern(tensor) -> np.ndarray:
    """Return the bytes of a tensor, with one pattern for all numbers that are none."""
    if tensor.dtype in (forebay.float16, forebay.float32):
        values = tensor.numpy().copy()
        values[np.isnan(values)] = np.nan
        return values.view(np.uint8)
    return tensor.view(forebay.uint8).numpy()
