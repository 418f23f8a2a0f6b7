"""Compilation by the stand-in for NVRTC, and forebay's own sources by NVIDIA's, where it is installed."""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys

import pytest
from support.kernel_programs import output_of

from forebay.backends.nvidia.kernels.draws import _LAWS
from forebay.backends.nvidia.kernels.strided import _TYPES

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the software driver is built for Linux")

SCALE = r"""
SCALE = Program('extern "C" __global__ void scale(float* x, float by) { x[threadIdx.x] *= by; }', "scale.cu")
"""


def test_program_is_compiled_once_for_all_processes(tmp_path):
    program = SCALE + "print(len(compile_program(SCALE, (9, 0)).code) > 1000, nvrtc.softcuda_compilations())"
    assert output_of(program, XDG_CACHE_HOME=str(tmp_path)) == ["True 1"]
    assert output_of(program, XDG_CACHE_HOME=str(tmp_path)) == ["True 0"]
    other = program.replace("(9, 0)", "(8, 0)")
    assert output_of(other, XDG_CACHE_HOME=str(tmp_path)) == ["True 1"]
    [one, two] = (tmp_path / "forebay/kernels").iterdir()
    assert one.stat().st_mode & 0o777 == two.stat().st_mode & 0o777 == 0o600


def test_options_headers_and_source_are_parts_of_the_key(tmp_path):
    program = """
base = Program('#include "a.hpp"', "a.cu", headers=(("a.hpp", ""),))
changed = [
    base,
    Program('#include "a.hpp" ', "a.cu", headers=(("a.hpp", ""),)),
    Program('#include "a.hpp"', "a.cu", ("-DX=1",), (("a.hpp", ""),)),
    Program('#include "a.hpp"', "a.cu", headers=(("a.hpp", "// new"),)),
]
for each in changed + changed:
    compile_program(each, (9, 0))
print(nvrtc.softcuda_compilations(), nvrtc.softcuda_live_programs())
"""
    assert output_of(program, XDG_CACHE_HOME=str(tmp_path)) == ["4 0"]


def test_compile_error_contains_the_log():
    program = """
try:
    compile_program(Program("__global__ void f() { undeclared(); }", "bad.cu", ("-DX=1",)), (9, 0))
except DeviceError as error:
    print(error.code, error.call)
    print(str(error).splitlines()[0])
    print("bad.cu:1" in str(error), "undeclared" in str(error), nvrtc.softcuda_live_programs())
try:
    compile_program(Program("", "bad.cu", ("--no-such-option",)), (9, 0))
except DeviceError as error:
    print(error.code, "--no-such-option" in str(error), nvrtc.softcuda_live_programs())
"""
    assert output_of(program) == [
        "6 nvrtcCompileProgram",
        "the kernel source bad.cu is invalid (NVRTC_ERROR_COMPILATION; options --gpu-architecture=sm_90 -DX=1):",
        "True True 0",
        "5 True 0",
    ]


def test_template_has_a_symbol():
    program = """
source = "namespace n { template <class T> __global__ void scale(T* x) { x[0] *= 2; } }"
image = compile_program(Program(source, "t.cu", templates=("n::scale<float>", "&n::scale<int>")), (9, 0))
for _ in range(2):  # the second time from the cache
    print(sorted(image.symbols.items()))
"""
    expected = "[('&n::scale<int>', '_ZN1n5scaleIiEEvPT_'), ('n::scale<float>', '_ZN1n5scaleIfEEvPT_')]"
    assert output_of(program) == [expected] * 2


def test_device_that_nvrtc_does_not_know():
    program = (
        SCALE
        + """
from forebay import Unsupported
from forebay.backends.nvidia.kernels.compiler import _architecture, _nvrtc
print(*(_architecture(_nvrtc(), each) for each in ((9, 0), (12, 2), (8, 5))))
try:
    compile_program(SCALE, (6, 1))
except Unsupported as error:
    print(error)
"""
    )
    known, unknown = output_of(program)
    assert known == "sm_90 compute_121 compute_80"
    text = "the installed NVRTC compiles for devices of compute capability 7.5 and higher; this one has 6.1: install an"
    assert unknown.startswith(text)


def test_missing_nvrtc_is_explained():
    program = """
import sys
from forebay import Unsupported
sys.modules["cuda.bindings.nvrtc"] = None
try:
    compile_program(Program("", "a.cu"), (9, 0))
except Unsupported as error:
    print(error)
"""
    [line] = output_of(program)
    assert line.startswith("kernels are compiled by NVRTC, which was not found (")
    assert "pip install nvidia-cuda-nvrtc" in line


def test_threads_compile_a_program_once(tmp_path):
    program = (
        SCALE
        + """
from concurrent.futures import ThreadPoolExecutor
with ThreadPoolExecutor(4) as threads:
    images = list(threads.map(lambda _: compile_program(SCALE, (9, 0)).code, range(8), timeout=60))
print(len(set(images)), nvrtc.softcuda_compilations())
"""
    )
    assert output_of(program, XDG_CACHE_HOME=str(tmp_path)) == ["1 1"]


def _nvidia_library() -> str | None:
    try:
        files = importlib.metadata.files("nvidia-cuda-nvrtc") or []
    except importlib.metadata.PackageNotFoundError:
        return None
    return next((str(each.locate()) for each in files if each.name.startswith("libnvrtc.so.")), None)


@pytest.mark.skipif(_nvidia_library() is None, reason="the package nvidia-cuda-nvrtc is not installed")
@pytest.mark.timeout(600)
def test_nvidias_compiler_accepts_the_own_kernels(tmp_path):
    program = """
import ctypes, sys
ctypes.CDLL(sys.argv[1], ctypes.RTLD_GLOBAL)
from forebay.backends.nvidia.kernels.compiler import compile_program
from forebay.backends.nvidia.kernels.sources import own_program
for law in sys.argv[2].split():
    for element in ("float", "BFloat16"):
        for axes in (0, 8, 64):
            for capability in ((7, 5), (9, 0)):
                program = own_program("draw.cu", DISTRIBUTION=law, ELEMENT=element, AXES=axes)
                assert compile_program(program, capability).code[:4] == b"\\x7fELF"
names = sys.argv[3].split()
for to, source in zip(names, names[1:] + names[:1]):
    for axes in (1, 8):
        compile_program(own_program("strided.cu", TO=to, SOURCE=source, AXES=axes), (9, 0))
for move in ("uint32_t", "Word16", "Bytes"):
    compile_program(own_program("strided.cu", TO=move, SOURCE=move, AXES=64), (9, 0))
"""
    library = _nvidia_library()
    assert library is not None
    command = [sys.executable, "-c", program, library, " ".join(_LAWS.values()), " ".join(_TYPES.values())]
    environment = {"XDG_CACHE_HOME": str(tmp_path), "PYTHONPATH": ":".join(sys.path)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=500, check=False)
    assert done.returncode == 0, done.stderr
