"""Compilation of forebay's modules into the checkout with the packages that an interpreter has, without a network."""

from __future__ import annotations

import importlib.util
import os
import shlex
import shutil
import sys
import sysconfig
import time
from collections.abc import Mapping
from pathlib import Path

from steps import ROOT

from gpu.processes import python, run_process
from gpu.run_folder import RunFolder

__all__ = ["build", "missing_tools", "warm_up"]

# Modules without which nothing is compiled or tested, and the packages that have them.
_MODULES = {
    "Cython": "Cython",
    "numpy": "NumPy with its headers",
    "pybind11": "pybind11",
    "pytest": "pytest",
    "pytest_timeout": "pytest-timeout",
    "rich": "rich",
    "setuptools": "setuptools",
    "cuda.bindings": "cuda-bindings",
}


def missing_tools() -> list[str]:
    """Return what this machine lacks to compile forebay and to test it on a GPU."""
    compiler = shlex.split(os.environ.get("CXX") or "g++")[0]
    missing = [] if shutil.which(compiler) else [f"the compiler {compiler}"]
    if not (Path(sysconfig.get_path("include")) / "Python.h").exists():
        missing.append(f"Python.h of Python {sys.version_info[0]}.{sys.version_info[1]}")
    return missing + [title for module, title in _MODULES.items() if not _is_installed(module)]


def _is_installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ImportError:  # nor is its package
        return False


def build(folder: RunFolder, seconds: float) -> str:
    """Compile the modules whose sources have changed. Return why it failed, or an empty text."""
    jobs = str(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)
    variables = {**folder.variables(os.environ), "FOREBAY_BUILD_JOBS": jobs}
    log = folder.of("build") / "log.txt"
    command = [sys.executable, "setup.py", "-q", "build_ext", "--inplace", "--parallel", jobs]
    ending = run_process(command, log, seconds, folder=ROOT, variables=variables)
    if ending.stopped or ending.status:
        last = next((line for line in reversed(ending.tail) if line.strip()), "no output")
        return f"{ending.stopped or f'the compilation ended with {ending.status}'}: {last}"
    return ""


def warm_up(folder: RunFolder, variables: Mapping[str, str], capability: tuple[int, int], seconds: float) -> None:
    """Compile Python's files and the kernels for a GPU. Without them the parts take longer."""
    # The processes of the parts write no bytecode, which would be outside the folder for other packages.
    commands = {
        "bytecode": python("compileall", "-q", "-j", "0", "src", "tests", "tools"),
        "kernels": python("gpu.precompile", *map(str, capability)),
    }
    end = time.monotonic() + seconds
    for name, command in commands.items():
        log, left = folder.of("build") / f"{name}.txt", max(end - time.monotonic(), 1.0)
        run_process(command, log, left, folder=ROOT, variables={**variables, "PYTHONDONTWRITEBYTECODE": ""})
