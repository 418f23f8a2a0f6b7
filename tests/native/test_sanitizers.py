"""The native tests, under sanitizers: no memory misused, nothing undefined, no race."""

from __future__ import annotations

import functools
import hashlib
import os
import shlex
import subprocess
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BUILT = ROOT / "build/native-tests"
COMPILER = shlex.split(os.environ.get("CXX", "g++"))
FLAGS = ["-std=c++17", "-Wall", "-Wextra", "-Werror", "-O1", "-g", "-pthread", "-fno-sanitize-recover=all", "-Inative"]
FLAGS += ["-ffp-contract=off", "-fno-math-errno"]  # as setup.py: the numbers depend on it
SANITIZERS = ["address,undefined", "thread"]
PROGRAMS = sorted(path.stem for path in ROOT.glob("native/tests/test_*.cpp"))
COMPILING, RUNNING = 300, 120  # seconds


def run(command: list[str], seconds: int, **options) -> subprocess.CompletedProcess[str]:
    options |= {"cwd": ROOT, "timeout": seconds, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    return subprocess.run(command, text=True, errors="replace", check=False, **options)


@functools.cache
def why_not(sanitizer: str) -> str:
    """What the compiler says when it links the smallest program; "" when it can."""
    with tempfile.TemporaryDirectory() as folder:
        command = [*COMPILER, f"-fsanitize={sanitizer}", "-x", "c++", "-", "-o", f"{folder}/program"]
        try:
            linked = run(command, COMPILING, input="int main() {}\n")
        except FileNotFoundError:
            return f"{COMPILER[0]} was not found"
    return f"{COMPILER[0]} -fsanitize={sanitizer}: {linked.stdout.strip()}" if linked.returncode else ""


@functools.cache
def library(sanitizer: str) -> list[str]:
    """The core's object files, compiled once for all programs."""
    with ThreadPoolExecutor(os.cpu_count()) as compilers:
        built = compilers.map(
            lambda source: compiled(source, sanitizer),
            sorted({*ROOT.glob("native/*/*.cpp")} - {*ROOT.glob("native/tests/*.cpp")}),
        )
        return [str(path) for path in built]


def compiled(source: Path, sanitizer: str) -> Path:
    """Its object file; made anew when the source, a header, a flag or the compiler has changed."""
    command = [*COMPILER, *FLAGS, f"-fsanitize={sanitizer}", "-c", str(source.relative_to(ROOT))]
    content = hashlib.sha256(repr([command, version()]).encode())
    for path in [source, *sorted(ROOT.glob("native/**/*.hpp"))]:
        content.update(f"{path.relative_to(ROOT)} {path.stat().st_size}\n".encode() + path.read_bytes())
    stem = f"{source.stem}-{sanitizer.replace(',', '-')}-"
    made = BUILT / f"{stem}{content.hexdigest()[:16]}.o"
    if not made.exists():
        BUILT.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=BUILT) as folder:
            done = run([*command, "-o", f"{folder}/object"], COMPILING)
            assert done.returncode == 0, done.stdout
            for old in BUILT.glob(stem + "*"):
                old.unlink(missing_ok=True)
            Path(folder, "object").replace(made)  # whole or not at all: two runs may build at once
    return made


@functools.cache
def version() -> str:
    return run([*COMPILER, "--version"], COMPILING).stdout


@pytest.fixture
def binary(program, sanitizer, tmp_path) -> str:
    if reason := why_not(sanitizer):
        pytest.skip(reason)
    own = compiled(ROOT / f"native/tests/{program}.cpp", sanitizer)
    linking = [*COMPILER, "-pthread", f"-fsanitize={sanitizer}", str(own), *library(sanitizer)]
    done = run([*linking, "-o", f"{tmp_path}/program"], COMPILING)
    assert done.returncode == 0, done.stdout
    return f"{tmp_path}/program"


@pytest.mark.timeout(2 * COMPILING + 2 * RUNNING)
@pytest.mark.parametrize("sanitizer", SANITIZERS)
@pytest.mark.parametrize("program", PROGRAMS)
def test_native(binary):
    try:
        done = run([binary], RUNNING)
        if "unexpected memory mapping" in done.stdout:  # TSan, where the kernel scatters addresses too widely for it
            done = run(["setarch", "-R", binary], RUNNING)
    except subprocess.TimeoutExpired as error:
        output = error.output or b""
        pytest.fail(f"still running after {RUNNING} s:\n{output.decode(errors='replace')}")
    assert done.returncode == 0, done.stdout
    assert done.stdout.rstrip().endswith(", 0 failed"), done.stdout


def test_there_are_native_tests():
    assert PROGRAMS
