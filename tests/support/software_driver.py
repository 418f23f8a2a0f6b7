"""The software driver of tests/softcuda: built once, and found by child processes in place of NVIDIA's driver."""

from __future__ import annotations

import fcntl
import hashlib
import importlib.metadata
import os
import subprocess
import sys
from functools import cache
from pathlib import Path

SOURCES = Path(__file__).parents[1] / "softcuda"
_TIMEOUT = 300  # seconds


@cache
def build() -> Path:
    """Compile the driver and NVML, unless that was done from the same sources before, and return their folder."""
    command = [os.environ.get("CXX", "g++"), "-std=c++17", "-O1", "-g1", "-fPIC", "-shared", "-Wall", "-Wextra"]
    command += ["-Werror", *(f"-I{header(name).parent}" for name in ("cuda.h", "nvml.h")), "-pthread", "-ldl"]
    nvml = [SOURCES / "nvml.cpp", SOURCES / "hardware.cpp"]
    libraries = {"libcuda.so.1": sorted({*SOURCES.glob("*.cpp")} - {nvml[0]}), "libnvidia-ml.so.1": nvml}
    digest = hashlib.sha256(repr(command).encode())
    for path in [*sorted(SOURCES.glob("*.?pp")), header("cuda.h"), header("nvml.h")]:
        digest.update(path.read_bytes())
    folder = Path(__file__).parents[2] / "build/softcuda" / digest.hexdigest()[:16]
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # other processes of the test run build it, too
        for name, sources in libraries.items():
            library, unfinished = folder / name, folder / "unfinished"
            if not library.exists():
                compiled = [*command, f"-Wl,-soname,{name}", *map(str, sources), "-o", str(unfinished)]
                subprocess.run(compiled, check=True, timeout=_TIMEOUT)
                unfinished.rename(library)
    return folder


@cache
def header(name: str) -> Path:
    """Return a header of NVIDIA: cuda.h of the package nvidia-cuda-runtime, or nvml.h of nvidia-nvml-dev."""
    package = {"cuda.h": "nvidia-cuda-runtime", "nvml.h": "nvidia-nvml-dev"}[name]
    files = importlib.metadata.files(package) or []
    return next(Path(str(each.locate())) for each in files if each.name == name)


def environment(**variables: str) -> dict[str, str]:
    """Return the environment of a child process that finds the software driver."""
    return {**os.environ, "LD_LIBRARY_PATH": str(build()), "PYTHONPATH": os.pathsep.join(sys.path), **variables}


def run(program: str, *, driver: bool = True, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a Python program in a child process with the software driver, or with none."""
    where = environment(**variables) if driver else {**os.environ, **variables}
    return subprocess.run(
        [sys.executable, "-c", program], env=where, capture_output=True, text=True, timeout=_TIMEOUT, check=False
    )
