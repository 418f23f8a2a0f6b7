"""Compile the native core and the extension modules for other platforms with zig: python3 dev.py cross [TARGET...]

The tests of the native core are compiled and run, too: those for AArch64 by QEMU's user mode (Debian: apt install
qemu-user libc6-arm64-cross, and QEMU_LD_PREFIX=/usr/aarch64-linux-gnu). Without a target, all are built. Nothing of it
is distributed: it shows that the code compiles for a platform and, on Linux, that its core works there. The extension
modules use this interpreter's Python.h and the headers of NumPy's wheel for the platform.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import zipfile
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from steps import ROOT, call, fail

WARNINGS = ["-Wall", "-Wextra", "-Werror", "-Wno-invalid-offsetof"]
EXACT = ["-ffp-contract=off", "-fno-math-errno"]  # as in setup.py: random numbers depend on them
COMMON = ["-O1", "-g0", "-fPIC", "-pthread", "-Inative"]
EXTENSION = [
    "-DNDEBUG",
    "-DNPY_NO_DEPRECATED_API=NPY_2_0_API_VERSION",
    "-DNPY_TARGET_VERSION=NPY_2_0_API_VERSION",
    f"-I{sysconfig.get_path('include')}",
]
RUN_TIMEOUT = 600  # seconds; emulation is slow
EMULATORS = {"aarch64": ("qemu-aarch64", "qemu-aarch64-static")}


@dataclass(frozen=True)
class Target:
    """A platform.

    Parameters
    ----------
    name : str
        Name on the command line.
    zig : str
        Name of the platform for zig. `linux-gnu.2.28` is the C library of manylinux_2_28.
    wheel : str
        Tag of NumPy's wheel for the platform.
    machine : str
        The processor, as `platform.machine()` names it.
    link : tuple of str
        Options that link an extension module.
    """

    name: str
    zig: str
    wheel: str
    machine: str
    link: tuple[str, ...] = ("-shared",)

    def compiler(self, language: str) -> list[str]:
        kind = ["cc"] if language == ".c" else ["c++", "-std=c++17"]
        return [sys.executable, "-m", "ziglang", kind[0], "-target", self.zig, *kind[1:]]

    def runner(self) -> list[str] | None:
        """Return the command that runs programs of the platform, empty for this machine's own; None if none can."""
        if "linux" not in self.zig or sys.platform != "linux":
            return None
        if platform.machine() == self.machine:
            return []
        return next(([found] for name in EMULATORS.get(self.machine, ()) if (found := shutil.which(name))), None)


TARGETS = {
    target.name: target
    for target in (
        Target("x86_64-linux", "x86_64-linux-gnu.2.28", "manylinux_2_28_x86_64", "x86_64"),
        Target("aarch64-linux", "aarch64-linux-gnu.2.28", "manylinux_2_28_aarch64", "aarch64"),
        Target(
            "arm64-macos", "aarch64-macos", "macosx_14_0_arm64", "arm64", ("-shared", "-undefined", "dynamic_lookup")
        ),
    )
}


def main(arguments: list[str]) -> int:
    if unknown := [name for name in arguments if name not in TARGETS]:
        fail(f"unknown target {unknown[0]!r}; known: {', '.join(TARGETS)}")
    os.chdir(ROOT)
    failed: list[str] = []
    with tempfile.TemporaryDirectory(prefix="forebay-cross-") as folder:
        modules = translate(Path(folder))
        for name in arguments or TARGETS:
            failed += build(TARGETS[name], modules, Path(folder, name))
    print("\n".join(f"failed: {each}" for each in failed))
    return 1 if failed else 0


def translate(folder: Path) -> list[Path]:
    """Return the C or C++ file of each extension module, as Cython translates it."""
    translated = []
    for source in sorted(Path("src").rglob("*.pyx")):
        is_cpp = source.stem == "_core" or "language = c++" in source.read_text()
        target = folder / f"{source.stem}{'.cpp' if is_cpp else '.c'}"
        options = ["--cplus"] if is_cpp else []
        call(f"cython {source.stem}", [sys.executable, "-m", "cython", *options, str(source), "-o", str(target)])
        translated.append(target)
    return translated


def build(target: Target, modules: list[Path], folder: Path) -> list[str]:
    """Compile everything for a platform, and run the native tests where possible. Return the failed tests."""
    folder.mkdir()
    sources = sorted(Path("native").glob("*/*.cpp"))
    numpy = numpy_headers(target, folder)
    commands = [(path, [*WARNINGS, *EXACT]) for path in sources]
    commands += [(path, [*EXTENSION, *numpy]) for path in modules]

    def compiled(item: tuple[Path, list[str]]) -> str:
        path, options = item
        result = str(folder / f"{path.stem}.o")
        call(
            f"{target.name}: {path.name}",
            [*target.compiler(path.suffix), *COMMON, *options, "-c", str(path), "-o", result],
        )
        return result

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        objects = dict(zip((path.stem for path, _ in commands), pool.map(compiled, commands), strict=True))
    core = [objects[path.stem] for path in sources if path.parent.name != "tests"]
    for module in modules:
        link(target, folder / f"{module.stem}.so", [objects[module.stem], *core], target.link)
    programs = [path.stem for path in sources if path.parent.name == "tests"]
    for program in programs:
        link(target, folder / program, [objects[program], *core])
    print(f"{target.name}: compiled {len(core)} files of the core, {len(modules)} modules, {len(programs)} tests")
    return run_tests(target, [folder / program for program in programs])


def numpy_headers(target: Target, folder: Path) -> list[str]:
    """Return the option for the headers of NumPy's wheel for a platform."""
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:", "--quiet"]
    command += ["--platform", target.wheel, "--dest", str(folder), f"numpy=={version('numpy')}"]
    call(f"{target.name}: NumPy's headers", command)
    [wheel] = folder.glob("numpy-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder, [name for name in archive.namelist() if "/_core/include/" in name])
    return [f"-I{folder / 'numpy/_core/include'}"]


def link(target: Target, result: Path, objects: list[str], options: Iterable[str] = ()) -> None:
    command = [*target.compiler(".cpp"), "-pthread", *options, *objects, "-o", str(result)]
    call(f"{target.name}: link {result.name}", command)


def run_tests(target: Target, programs: list[Path]) -> list[str]:
    runner = target.runner()
    if runner is None:
        need = f" (QEMU is missing: {EMULATORS[target.machine][0]})" if target.machine in EMULATORS else ""
        print(f"{target.name}: not run, nothing here can run programs of the platform{need}")
        return []
    failed = []
    for program in programs:
        try:
            done = subprocess.run(
                [*runner, str(program)],
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                check=False,
                timeout=RUN_TIMEOUT,
            )
        except subprocess.TimeoutExpired:
            failed.append(f"{target.name}: {program.name} still ran after {RUN_TIMEOUT} s")
            continue
        last = done.stdout.rstrip().rpartition("\n")[2]
        print(f"{target.name}: {program.name}: {last}", flush=True)
        if done.returncode:
            failed.append(f"{target.name}: {program.name}, exit status {done.returncode}\n{done.stdout}")
    return failed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
