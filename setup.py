"""The extension modules, one for each .pyx file, and forebay_startup.pth; all other metadata is in pyproject.toml."""

import os
import shlex
import sys
from pathlib import Path

import numpy as np
from Cython.Build import cythonize
from pybind11.setup_helpers import ParallelCompile
from setuptools import Extension, setup
from setuptools.command.build_py import build_py

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


def small(source: Path) -> Extension:
    """Return an extension of one Cython file, in the language that the file states; C by default."""
    is_cpp = "\n# distutils: language = c++\n" in source.read_text()
    return Extension(
        ".".join(source.relative_to("src").with_suffix("").parts),
        sources=[str(source)],
        depends=native("*/*.hpp") if is_cpp else [],
        include_dirs=["native"],
        extra_compile_args=[*(cpp if is_cpp else ["-g0"]), *measured],
        extra_link_args=[*stripped, *measured],
        language="c++" if is_cpp else "c",
    )


class BuildPython(build_py):
    """The Python files, and the file that Python executes when it starts: Note [Emulation by the environment]."""

    startup = "forebay_startup.pth"

    def run(self) -> None:
        super().run()
        if not self.editable_mode:  # dev.py copies it
            self.copy_file(f"src/{self.startup}", str(Path(self.build_lib, self.startup)))

    def get_outputs(self, include_bytecode: bool = True) -> list[str]:
        own = [] if self.editable_mode else [str(Path(self.build_lib, self.startup))]
        return [*super().get_outputs(include_bytecode), *own]


others = sorted({*Path("src").rglob("*.pyx")} - {Path("src/forebay/_core.pyx")})
extensions = [core, *map(small, others)]
# Cython would give each extension type methods for pickling. They make objects without `__init__`, from any state:
# addresses of another process, tables that are too short. Without these methods, pickle and copy raise TypeError.
setup(
    cmdclass={"build_py": BuildPython},
    ext_modules=cythonize(extensions, nthreads=in_parallel, compiler_directives={"auto_pickle": False}),
)
