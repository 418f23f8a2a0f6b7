"""compile_shader and load_metallib with PyTorch's calling convention, and metal_capture."""

from __future__ import annotations

import gc
from pathlib import Path

import numpy as np
import pytest
from softmetal.libraries import metallib

import forebay
from forebay import mps
from forebay.backends import override_driver
from forebay.backends.metal.driver import MetalDriver
from forebay.backends.metal.kernels import shaders
from forebay.mps import profiler
from forebay.runtime.lifecycle.emulation import reset_kind

SOURCE = """
#include <metal_stdlib>
using namespace metal;
kernel void fill(device float* out, constant float& value, uint at [[thread_position_in_grid]]) { out[at] = value; }
kernel void scale(device float* x, constant long& factor, uint at [[thread_position_in_grid]]) { x[at] *= factor; }
kernel void narrow(device int* out, constant int& value, uint at [[thread_position_in_grid]]) { out[at] = value; }
kernel void pick(device long* out, constant long* values, uint at [[thread_position_in_grid]]) {
  out[at] = values[at % 3];
}
kernel void halves(device ushort* out, constant ushort& value, uint at [[thread_position_in_grid]]) { out[at] = value; }
kernel void place(device int* out, uint2 at [[thread_position_in_grid]], uint2 size [[threads_per_grid]]) {
  out[at.y * size.x + at.x] = int(100 * at.y + at.x);
}
"""


@pytest.fixture
def device(mac):
    with override_driver(MetalDriver()):
        yield
        reset_kind("mps")


@pytest.fixture
def library(device):
    return mps.compile_shader(SOURCE)


def test_kernels_are_attributes(library):
    assert sorted(dir(library)) == ["fill", "halves", "narrow", "pick", "place", "scale"]
    kernel = library.fill
    assert kernel.max_threads_per_threadgroup >= 256
    assert kernel.thread_execution_width == 32
    assert kernel.static_thread_group_memory_length == 0
    with pytest.raises(RuntimeError, match=r"there is no kernel 'missing'; the library has .*fill"):
        library.missing  # noqa: B018 -- the lookup is the test
    assert not hasattr(library, "_private")


def test_threads_are_the_elements_of_the_first_tensor(library):
    out = forebay.zeros(1000, device="mps")
    library.fill(out, 2.5)
    library.scale(out, 3)
    assert out.tolist() == [7.5] * 1000
    library.scale(out, 2, threads=10)
    library.scale(out[990:], 2, threads=(10,), group_size=(5,))
    assert out.tolist() == [15.0] * 10 + [7.5] * 980 + [15.0] * 10


def test_grid_and_group_may_have_three_axes(library):
    out = forebay.zeros(6, dtype="int32", device="mps")
    library.place(out, threads=(3, 2), group_size=(1, 2))
    assert out.tolist() == [0, 1, 2, 100, 101, 102]
    library.place(out.zero_(), threads=[3, 2])
    assert out.tolist() == [0, 1, 2, 100, 101, 102]


def test_threads_of_a_group_share_memory(device):
    library = mps.compile_shader("""
#include <metal_stdlib>
using namespace metal;
kernel void reverse(device float* x, uint at [[thread_position_in_grid]], uint place [[thread_index_in_threadgroup]],
                    uint count [[threads_per_threadgroup]]) {
  threadgroup float shared[64];
  shared[place] = x[at];
  threadgroup_barrier(mem_flags::mem_threadgroup);
  x[at] = shared[count - 1 - place];
}
""")
    x = forebay.arange(128, dtype="float32", device="mps")
    library.reverse(x, group_size=64)
    assert x.tolist() == [*range(63, -1, -1), *range(127, 63, -1)]


def test_numbers_are_cast_as_requested(library):
    out = forebay.zeros(2, dtype="int32", device="mps")
    library.narrow(out, -7, arg_casts="int32")
    assert out.tolist() == [-7, -7]
    library.narrow(out, 9, arg_casts={1: "int32"})
    assert out.tolist() == [9, 9]
    many = forebay.zeros(4, dtype="int64", device="mps")
    library.pick(many, [5, -6, 1 << 40])
    assert many.tolist() == [5, -6, 1 << 40, 5]
    bits = forebay.zeros(1, dtype="int16", device="mps")
    for cast, dtype in (("fp16", "float16"), ("bf16", "bfloat16")):
        library.halves(bits, 1.0078125, arg_casts=cast)
        assert bits.view(getattr(forebay, dtype)).tolist() == [1.0078125]


def test_tensor_without_dimensions_on_the_cpu_is_its_value(library):
    out = forebay.zeros(2, device="mps")
    library.fill(out, forebay.tensor(np.float32(1.5)))
    library.scale(out, forebay.tensor(np.int64(2)))
    assert out.tolist() == [3.0, 3.0]
    library.fill(out, forebay.tensor(np.float64(0.25)))
    assert out.tolist() == [0.25, 0.25]


def test_kernels_are_ordered_with_other_work_of_the_stream(library):
    stream = mps.Stream()
    with mps.stream(stream):
        out = forebay.ones(100, device="mps")
        library.scale(out, 2)
        other = out.clone()
        library.scale(out, 2)
    stream.synchronize()
    assert (other.tolist(), out.tolist()) == ([2.0] * 100, [4.0] * 100)


@pytest.mark.parametrize(
    ("error", "message", "call"),
    [
        (RuntimeError, "Passed CPU tensor to MPS op", lambda library, out: library.fill(forebay.zeros(3), 1.0)),
        (RuntimeError, "Number of threads is undefined", lambda library, out: library.fill(1.0)),
        (RuntimeError, "Number of threads is undefined", lambda library, out: library.fill(out, 1.0, threads=(1,) * 4)),
        (RuntimeError, "same number of dim", lambda library, out: library.fill(out, 1.0, threads=(4, 1), group_size=4)),
        (ValueError, "a group of 5000 threads", lambda library, out: library.fill(out, 1.0, group_size=5000)),
        (RuntimeError, "Unsupported cast instruction x", lambda library, out: library.fill(out, 1, arg_casts="x")),
        (RuntimeError, "Empty list/tuple", lambda library, out: library.fill(out, [])),
        (RuntimeError, "Unsupported argument type str", lambda library, out: library.fill(out, "x")),
    ],
)
def test_invalid_arguments_are_refused(library, error, message, call):
    out = forebay.zeros(4, device="mps")
    with pytest.raises(error, match=message):
        call(library, out)
    mps.synchronize()
    assert out.tolist() == [0.0] * 4


def test_invalid_source_is_a_syntax_error_with_the_compilers_text(device):
    with pytest.raises(SyntaxError, match="error"):
        mps.compile_shader("kernel void broken(device float* x) { x[0] = ; }")


def test_library_is_loaded_from_bytes_and_from_a_file(device, tmp_path):
    file, content = tmp_path / "kernels.metallib", metallib(SOURCE)
    file.write_bytes(content)
    for source in (file, str(file), content, bytearray(content)):
        library = mps.load_metallib(source)
        assert sorted(dir(library)) == ["fill", "halves", "narrow", "pick", "place", "scale"]
    out = forebay.zeros(4, device="mps")
    library.fill(out, 2.5)
    assert out.tolist() == [2.5] * 4
    with pytest.raises(forebay.DeviceError, match="the library cannot be loaded: Invalid library file"):
        mps.load_metallib(b"not a library")


def test_file_of_a_library_exists_as_long_as_the_library(device, monkeypatch):
    """Metal may read the kernels when they are first used."""
    files, load = [], shaders._loaded

    def loaded(device, path):
        files.append(Path(path))
        return load(device, path)

    monkeypatch.setattr(shaders, "_loaded", loaded)
    library = mps.load_metallib(metallib(SOURCE))
    kernel = library.fill
    assert files[0].exists()
    del library, kernel
    gc.collect()
    assert not files[0].exists()


def test_metal_capture_writes_a_document(device, mac, tmp_path):
    mac.capture_enabled = False
    assert not profiler.is_metal_capture_enabled()
    with (
        pytest.raises(forebay.DeviceError, match="the recording cannot begin: set MTL_CAPTURE_ENABLED=1"),
        profiler.metal_capture(str(tmp_path / "trace")),
    ):
        pass
    mac.capture_enabled = True
    assert profiler.is_metal_capture_enabled()
    with profiler.metal_capture(str(tmp_path / "trace")):
        assert profiler.is_capturing_metal()
        forebay.zeros(4, device="mps")
    assert not profiler.is_capturing_metal()
    assert (tmp_path / "trace.gputrace").exists()
