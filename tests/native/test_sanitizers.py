"""The native tests, under sanitizers: no memory misused, nothing undefined, no race."""

from __future__ import annotations

import functools
import hashlib
import os
import shlex
import subprocess
import tempfile
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


def build(program: str, sanitizer: str) -> Path:
    """The program's binary; compiled anew when a source, a flag or the compiler has changed."""
    sources = sorted([*ROOT.glob("native/*.cpp"), ROOT / f"native/tests/{program}.cpp"])
    command = [*COMPILER, *FLAGS, f"-fsanitize={sanitizer}", *(str(path.relative_to(ROOT)) for path in sources)]
    content = hashlib.sha256(repr([command, run([*COMPILER, "--version"], COMPILING).stdout]).encode())
    for path in sorted({*sources, *ROOT.glob("native/**/*.hpp")}):
        content.update(f"{path.relative_to(ROOT)} {path.stat().st_size}\n".encode() + path.read_bytes())
    stem = f"{program}-{sanitizer.replace(',', '-')}-"
    binary = BUILT / (stem + content.hexdigest()[:16])
    if not binary.exists():
        BUILT.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=BUILT) as folder:
            compiled = run([*command, "-o", f"{folder}/program"], COMPILING)
            assert compiled.returncode == 0, compiled.stdout
            for old in BUILT.glob(stem + "*"):
                old.unlink(missing_ok=True)
            Path(folder, "program").replace(binary)  # whole or not at all: two runs may build at once
    return binary


@pytest.mark.timeout(COMPILING + 2 * RUNNING)
@pytest.mark.parametrize("sanitizer", SANITIZERS)
@pytest.mark.parametrize("program", PROGRAMS)
def test_native(program, sanitizer):
    if reason := why_not(sanitizer):
        pytest.skip(reason)
    binary = str(build(program, sanitizer))
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
