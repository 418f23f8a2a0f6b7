"""The software driver of tests/softcuda: built once, and found by child processes instead of NVIDIA's libraries."""

from __future__ import annotations

import fcntl
import hashlib
import importlib.metadata
import os
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = ROOT / "tests/softcuda"
HEADERS = {  # and their packages
    "cuda.h": "nvidia-cuda-runtime",
    "nvml.h": "nvidia-nvml-dev",
    "cupti.h": "nvidia-cuda-cupti",
    "host_defines.h": "nvidia-cuda-crt",  # which cupti.h includes
}
_TIMEOUT = 300  # seconds
_PRINT_MISSING = """
import ctypes
names = ctypes.create_string_buffer(10000)
ctypes.CDLL("libcuda.so.1").softcuda_missing(names, len(names))
print(names.value.decode().split())
"""


@cache
def build() -> Path:
    """Compile the stand-ins for NVIDIA's libraries, unless it was done from these sources, and return their folder."""
    common = [os.environ.get("CXX", "g++"), "-std=c++17", "-O1", "-g1", "-fPIC", "-shared", "-Wall", "-Wextra"]
    folders = [*(header(name).parent for name in ("cuda.h", "nvml.h")), ROOT / "native"]
    common += ["-Werror", *(f"-I{folder}" for folder in folders), "-pthread", "-ldl"]
    common += [f'-DPRELUDE="{SOURCES / "nvrtc/prelude.hpp"}"']
    nvml = [SOURCES / "nvml.cpp", SOURCES / "hardware.cpp"]
    sources = {
        "libnvrtc.so.13": [SOURCES / "nvrtc/nvrtc.cpp"],
        "libcuda.so.1": sorted({*SOURCES.glob("*.cpp")} - {nvml[0]}),
        "libnvidia-ml.so.1": nvml,
        "libcupti.so.13": [SOURCES / "cupti/cupti.cpp"],
    }
    commands = {name: [*common, f"-Wl,-soname,{name}", *map(str, paths)] for name, paths in sources.items()}
    # cuda-bindings uses the libnvrtc that is loaded already, even if NVIDIA's is installed.
    commands["libcuda.so.1"] += ["-Wl,--no-as-needed,-rpath,$ORIGIN", "-l:libnvrtc.so.13"]
    commands["libcupti.so.13"] += ["-Wl,--no-as-needed,-rpath,$ORIGIN", "-l:libcuda.so.1"]
    digest = hashlib.sha256(repr(commands).encode())
    for path in [*sorted(SOURCES.rglob("*.?pp")), ROOT / "native/cuda/work_log.hpp", *map(header, HEADERS)]:
        digest.update(path.read_bytes())
    folder = ROOT / "build/softcuda" / digest.hexdigest()[:16]
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # other processes of the test run build it, too
        for name, command in commands.items():
            if not (folder / name).exists():
                unfinished = folder / "unfinished"
                subprocess.run([*command, f"-L{folder}", "-o", str(unfinished)], check=True, timeout=_TIMEOUT)
                unfinished.rename(folder / name)
    return folder


@cache
def header(name: str) -> Path:
    """Return a header of NVIDIA."""
    files = importlib.metadata.files(HEADERS[name]) or []
    return next(Path(str(each.locate())) for each in files if each.name == name)


def environment(**variables: str) -> dict[str, str]:
    """Return the environment of a child process that finds the software driver."""
    found = {"LD_LIBRARY_PATH": str(build()), "PYTHONPATH": os.pathsep.join(sys.path)}
    found["XDG_CACHE_HOME"] = str(build() / "cache")  # compiled kernels, for all processes
    return {**os.environ, **found, **variables}


def run(
    program: str, *, python: str = sys.executable, driver: bool = True, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run a Python program in a child process with the software driver, or with none."""
    where = environment(**variables) if driver else {**os.environ, **variables}
    return subprocess.run(
        [python, "-c", program], env=where, capture_output=True, text=True, timeout=_TIMEOUT, check=False
    )


def lines_of(
    program: str,
    *,
    needs: str = "cuda.bindings",
    silent: bool = False,
    python: str = sys.executable,
    driver: bool = True,
    **variables: str,
) -> list[str]:
    """Return the lines that a program prints, which must succeed and, if it is to be silent, without a warning.

    The test is skipped unless the module that the program needs is installed.
    """
    pytest.importorskip(needs, reason=f"{needs} is not installed")
    done = run(program, python=python, driver=driver, **variables)
    assert done.returncode == 0, done.stdout + done.stderr
    assert not (silent and done.stderr), done.stderr
    return done.stdout.splitlines()


def lines_of_client(
    program: str, *, needs: str = "cuda.bindings", python: str = sys.executable, **variables: str
) -> list[str]:
    """Return the lines of a program of another library, for which the software driver must lack no function."""
    *lines, missing = lines_of(program + _PRINT_MISSING, needs=needs, silent=True, python=python, **variables)
    assert missing == "[]"
    return lines
