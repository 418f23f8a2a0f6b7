"""The extension modules; all other metadata is in pyproject.toml."""

import sys
from pathlib import Path

import numpy as np
from Cython.Build import cythonize
from pybind11.setup_helpers import ParallelCompile
from setuptools import Extension, setup

if sys.platform == "win32":
    sys.exit("forebay runs on Linux and macOS: on Windows, install it in the Windows Subsystem for Linux (WSL 2)")

ParallelCompile("FOREBAY_BUILD_JOBS").install()  # one compiler process for each core


def native(pattern: str) -> list[str]:
    return sorted(str(path) for path in Path("native").glob(pattern) if path.parts[1] != "tests")


# Random numbers are the same on every machine: nothing is fused that the source does not fuse. The other two let loops
# become vectors, and change no number.
exact = ["-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math"]
warnings = ["-Wall", "-Wextra", "-Wno-invalid-offsetof"]
# Python's own flags ask for debug information, which makes the modules ten times as large.
cpp = ["-std=c++17", "-O3", "-g0", "-fvisibility=hidden", *warnings]

core = Extension(
    "forebay._core",
    sources=["src/forebay/_core.pyx", *native("*/*.cpp")],
    depends=native("*/*.hpp"),
    include_dirs=["native", np.get_include()],
    define_macros=[("NPY_NO_DEPRECATED_API", "NPY_2_0_API_VERSION")],
    extra_compile_args=[*cpp, *exact],
    extra_link_args=["-pthread"],
    language="c++",
)

entries = Extension(
    "forebay.observe.tracing._entries",
    sources=["src/forebay/observe/tracing/_entries.pyx"],
    depends=["native/base/ring.hpp"],
    include_dirs=["native"],
    extra_compile_args=cpp,
    language="c++",
)

pinned_cache = Extension(
    "forebay.runtime.pinned._cache",
    sources=["src/forebay/runtime/pinned/_cache.pyx"],
    extra_compile_args=cpp,
    language="c++",
)

segments = Extension(
    "forebay.backends.common._segments",
    sources=["src/forebay/backends/common/_segments.pyx"],
    extra_compile_args=["-g0"],
)
reservations = Extension(
    "forebay.runtime.allocator._reservations",
    sources=["src/forebay/runtime/allocator/_reservations.pyx"],
    extra_compile_args=["-g0"],
)

plain_pickle = Extension(
    "forebay.snapshot.formats._plain_pickle",
    sources=["src/forebay/snapshot/formats/_plain_pickle.pyx"],
    depends=["native/pickle/opcodes.hpp"],
    include_dirs=["native"],
    extra_compile_args=cpp,
    language="c++",
)

setup(ext_modules=cythonize([core, entries, pinned_cache, segments, reservations, plain_pickle]))
