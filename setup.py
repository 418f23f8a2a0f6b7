"""The extension modules; all other metadata is in pyproject.toml."""

import os
import shlex
import sys
from pathlib import Path

import numpy as np
from Cython.Build import cythonize
from pybind11.setup_helpers import ParallelCompile
from setuptools import Extension, setup

if sys.platform == "win32":
    sys.exit("forebay runs on Linux and macOS: on Windows, install it in the Windows Subsystem for Linux (WSL 2)")

JOBS = "FOREBAY_BUILD_JOBS"
ParallelCompile(JOBS).install()  # one compiler process for each core, or as many as this variable says
# Cython's processes must begin with a copy of this one, as Linux' do before Python 3.14: others run this file again.
in_parallel = int(os.environ.get(JOBS) or 0) if sys.platform == "linux" and sys.version_info < (3, 14) else 0


def native(pattern: str) -> list[str]:
    return sorted(str(path) for path in Path("native").glob(pattern) if path.parts[1] != "tests")


# Random numbers are the same on every machine: nothing is fused that the source does not fuse. The other two let loops
# become vectors, and change no number.
exact = ["-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math"]
warnings = ["-Wall", "-Wextra", "-Wno-invalid-offsetof"]
# Python's own flags ask for debug information, which makes the modules ten times as large.
cpp = ["-std=c++17", "-O3", "-g0", "-fvisibility=hidden", *warnings]
measured = shlex.split(os.environ.get("FOREBAY_CFLAGS", ""))  # of tools; after the others, to replace them
# Without the table of internal symbols, which reports of sanitizers need.
stripped = ["-Wl,--strip-all"] if sys.platform == "linux" and not measured else []

NUMPY_API = "NPY_2_0_API_VERSION"
core = Extension(
    "forebay._core",
    sources=["src/forebay/_core.pyx", *native("*/*.cpp")],
    depends=native("*/*.hpp"),
    include_dirs=["native", np.get_include()],
    # Without the second, the headers of NumPy 2.1 declare what NumPy 1.21 had.
    define_macros=[
        ("NPY_NO_DEPRECATED_API", NUMPY_API),
        ("NPY_TARGET_VERSION", NUMPY_API),
        ("FOREBAY_CALLERS_HOLD_GIL", "1"),
    ],
    extra_compile_args=[*cpp, *exact, *measured],
    extra_link_args=["-pthread", *stripped, *measured],
    language="c++",
)


def small(name: str, *depends: str, language: str = "c++") -> Extension:
    """Return an extension of one Cython file, which may include headers of native/."""
    return Extension(
        f"forebay.{name}".replace("/", "."),
        sources=[f"src/forebay/{name}.pyx"],
        depends=[*depends],
        include_dirs=["native"],
        extra_compile_args=[*(cpp if language == "c++" else ["-g0"]), *measured],
        extra_link_args=[*stripped, *measured],
        language=language,
    )


extensions = [
    core,
    small("backends/common/_releases", language="c"),
    small("backends/common/_segments", language="c"),
    small("backends/nvidia/_memory", language="c"),
    small("backends/nvidia/_stream", "native/cuda/stream.hpp"),
    small("faces/_device_context", language="c"),
    small("interop/_torch_callbacks"),
    small("interop/torch/devices/_device_guard", language="c"),
    small("interop/torch/processes/_process_end", language="c"),
    small("interop/torch/devices/_storage_owners", language="c"),
    small("observe/tracing/_entries", "native/base/ring.hpp"),
    small("runtime/allocator/_reservations", language="c"),
    small("runtime/devices/_thread_state", language="c"),
    small("runtime/memory/_dlpack", language="c"),
    small("runtime/pinned/_cache"),
    small("snapshot/formats/_history_reader", *native("pickle/*.hpp")),
    small("snapshot/formats/_plain_pickle", "native/pickle/opcodes.hpp"),
]
# Cython would give each extension type methods for pickling. They make objects without `__init__`, from any state:
# addresses of another process, tables that are too short. Without these methods, pickle and copy raise TypeError.
setup(ext_modules=cythonize(extensions, nthreads=in_parallel, compiler_directives={"auto_pickle": False}))
