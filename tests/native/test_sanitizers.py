"""Native tests under AddressSanitizer, UndefinedBehaviorSanitizer and ThreadSanitizer."""

from __future__ import annotations

import fcntl
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
FLAGS = ["-std=c++17", "-Wall", "-Wextra", "-Werror", "-O0", "-g1", "-pthread", "-fno-sanitize-recover=all", "-Inative"]
FLAGS += ["-ffp-contract=off", "-fno-math-errno"]  # as in setup.py: random numbers depend on these flags
SANITIZERS = ["address,undefined", "thread"]
PROGRAMS = sorted(path.stem for path in ROOT.glob("native/tests/test_*.cpp"))
COMPILE_TIMEOUT, RUN_TIMEOUT = 300, 120  # seconds


def run(command: list[str], seconds: int, **options) -> subprocess.CompletedProcess[str]:
    options |= {"cwd": ROOT, "timeout": seconds, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    return subprocess.run(command, text=True, errors="replace", check=False, **options)


@functools.cache
def unsupported_reason(sanitizer: str) -> str:
    """Return the compiler's error for a minimal program, or an empty string if the sanitizer works."""
    with tempfile.TemporaryDirectory() as folder:
        command = [*COMPILER, f"-fsanitize={sanitizer}", "-x", "c++", "-", "-o", f"{folder}/program"]
        try:
            linked = run(command, COMPILE_TIMEOUT, input="int main() {}\n")
        except FileNotFoundError:
            return f"{COMPILER[0]} was not found"
    return f"{COMPILER[0]} -fsanitize={sanitizer}: {linked.stdout.strip()}" if linked.returncode else ""


@functools.cache
def core_objects(sanitizer: str) -> list[str]:
    """Return the object files of the core, compiled once for all programs."""
    with ThreadPoolExecutor(os.cpu_count()) as compilers:
        built = compilers.map(
            lambda source: object_file(source, sanitizer),
            sorted({*ROOT.glob("native/*/*.cpp")} - {*ROOT.glob("native/tests/*.cpp")}),
        )
        return [str(path) for path in built]


def object_file(source: Path, sanitizer: str) -> Path:
    """Return the object file of a source, rebuilt if the source, a header, a flag or the compiler changed."""
    command = [*COMPILER, *FLAGS, f"-fsanitize={sanitizer}", "-c", str(source.relative_to(ROOT))]
    content = hashlib.sha256(repr([command, compiler_version()]).encode())
    for path in [source, *sorted(ROOT.glob("native/**/*.hpp"))]:
        content.update(f"{path.relative_to(ROOT)} {path.stat().st_size}\n".encode() + path.read_bytes())
    stem = f"{source.stem}-{sanitizer.replace(',', '-')}-"
    target = BUILT / f"{stem}{content.hexdigest()[:16]}.o"
    BUILT.mkdir(parents=True, exist_ok=True)
    with (BUILT / f".{stem}lock").open("w") as lock, tempfile.TemporaryDirectory(dir=BUILT) as folder:
        fcntl.flock(lock, fcntl.LOCK_EX)  # other processes of the test run build it, too
        if not target.exists():
            done = run([*command, "-o", f"{folder}/object"], COMPILE_TIMEOUT)
            assert done.returncode == 0, done.stdout
            for old in BUILT.glob(stem + "*"):
                old.unlink(missing_ok=True)
            Path(folder, "object").replace(target)  # atomically: the process may be killed
    return target


@functools.cache
def compiler_version() -> str:
    return run([*COMPILER, "--version"], COMPILE_TIMEOUT).stdout


@pytest.fixture
def binary(program, sanitizer, tmp_path) -> str:
    if reason := unsupported_reason(sanitizer):
        pytest.skip(reason)
    own = object_file(ROOT / f"native/tests/{program}.cpp", sanitizer)
    linking = [*COMPILER, "-pthread", f"-fsanitize={sanitizer}", str(own), *core_objects(sanitizer)]
    done = run([*linking, "-o", f"{tmp_path}/program"], COMPILE_TIMEOUT)
    assert done.returncode == 0, done.stdout
    return f"{tmp_path}/program"


@pytest.mark.timeout(2 * COMPILE_TIMEOUT + 2 * RUN_TIMEOUT)
@pytest.mark.parametrize("sanitizer", SANITIZERS)
@pytest.mark.parametrize("program", PROGRAMS)
def test_native_program_passes_under_sanitizer(binary):
    try:
        done = run([binary], RUN_TIMEOUT)
        if "unexpected memory mapping" in done.stdout:  # TSan does not support the kernel's address randomisation
            done = run(["setarch", "-R", binary], RUN_TIMEOUT)
    except subprocess.TimeoutExpired as error:
        output = error.output or b""
        pytest.fail(f"still running after {RUN_TIMEOUT} s:\n{output.decode(errors='replace')}")
    assert done.returncode == 0, done.stdout
    assert done.stdout.rstrip().endswith(", 0 failed"), done.stdout


def test_native_programs_exist():
    assert PROGRAMS
