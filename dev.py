#!/usr/bin/env python3
"""Forebay's tasks, with nothing but Python: python3 dev.py TASK [arguments]

    demo     train a small model on the host device and draw where its memory went
    test     run the whole test suite; the arguments are pytest's
    check    run linters, formatters and type checkers; --fix repairs what they can repair
    bench    run every benchmark, or those named; each prints its own table
    docs     build the documentation (its examples are run by `test`)

A task makes .venv (or $FOREBAY_VENV) if need be, installs what it lacks there, and rebuilds the native core
exactly when something that goes into it has changed.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
import time
from pathlib import Path
from statistics import median
from typing import NoReturn

ROOT = Path(__file__).resolve().parent
VENV = Path(os.environ.get("FOREBAY_VENV") or ROOT / ".venv").absolute()
PYTHON = str(VENV / "bin/python")
STAMP = VENV / "dev-stamp.json"  # what is known to be done; a step takes its line out first and puts it back last

COMPILED = ("_core", "observe/tracing/_entries")  # modules
BUILD_INPUTS = ("pyproject.toml", "setup.py", "native/**/*.?pp", "src/**/*.pyx", "src/**/*.px[di]")
STUBTEST = ["-m", "mypy.stubtest", *(f"forebay.{name}".replace("/", ".") for name in COMPILED)]
STUBTEST += ["--mypy-config-file", "pyproject.toml", "--ignore-unused-allowlist"]
STUBTEST += ["--allowlist", "tests/house/stubtest-allowlist.txt"]
SPHINX = ["sphinx-build", "-W", "--keep-going", "--quiet", "docs", "docs/_build/html"]
REPORT = "forebay-report"


def demo(arguments: list[str]) -> int:
    prepare("demo")
    program = ["examples/train_digits.py", *arguments]
    shutil.rmtree(REPORT, ignore_errors=True)
    status, observed = timed(["forebay", "run", "--output", REPORT, *program])
    if status:
        return status
    with_it, without = [observed], []
    for _ in range(3):  # taking turns: a slow moment of the machine hits both
        without.append(timed(["python", *program], quiet=True)[1])
        with_it.append(timed(["forebay", "run", "--output", REPORT, *program], quiet=True)[1])
    print(f"\nwith forebay     {median(with_it):6.2f} s  (medians; starting and drawing the report included)")
    print(f"without forebay  {median(without):6.2f} s")
    print(f"with / without    {median(with_it) / median(without):6.2f}")
    for page in sorted(Path(REPORT).rglob("*.html")):
        print(f"report            {page}")
    return status


def test(arguments: list[str]) -> int:
    prepare("test", "demo")  # the demo is tested, too
    return run(["python", "-m", "pytest", *arguments])


def check(arguments: list[str]) -> int:
    prepare("check", "test", "docs")  # mypy reads the testing package, which imports pytest
    native = sorted(str(path) for path in Path("native").rglob("*.?pp"))
    if "--fix" in arguments:
        run(["ruff", "check", "--fix", "--quiet"])
        run(["ruff", "format", "--quiet"])
        run(["clang-format", "-i", *native])
    commands = {
        "ruff check": ["ruff", "check", "--quiet"],
        "ruff format": ["ruff", "format", "--check", "--quiet"],
        "cython-lint": ["cython-lint", "src"],
        "mypy": ["mypy", "--no-error-summary"],
        "stubtest": ["python", *STUBTEST],
        "clang-format": ["clang-format", "--dry-run", "-Werror", *native],
        "documentation": SPHINX,
    }
    failed = [name for name, command in commands.items() if run(command)]
    print("\n".join(f"{'failed' if name in failed else 'ok':7} {name}" for name in commands))
    return 1 if failed else 0


def bench(arguments: list[str]) -> int:
    prepare("demo")
    every = {path.stem.removeprefix("bench_"): path for path in sorted(Path("benchmarks").glob("bench_*.py"))}
    if absent := [name for name in arguments if name not in every]:
        fail(f"there is no benchmark {absent[0]!r}; there are {', '.join(every)}")
    failed = [name for name in arguments or every if run(["python", str(every[name])])]
    return 1 if failed else 0


def docs(arguments: list[str]) -> int:
    prepare("docs")
    status = run([*SPHINX, *arguments])
    print("documentation failed" if status else "documentation: docs/_build/html/index.html")
    return status


def prepare(*extras: str) -> None:
    """Brings the environment up to date: the interpreter, the requirements, the compiled core."""
    import tomllib

    stamp = json.loads(STAMP.read_text()) if STAMP.exists() else {}
    if stamp.get("interpreter") != interpreter():
        make_environment()
        stamp = {"interpreter": interpreter(), "requirements": []}

    project = tomllib.loads(Path("pyproject.toml").read_text())
    wanted = {*project["build-system"]["requires"], *project["project"]["dependencies"]}
    for extra in extras:
        wanted |= {*project["project"]["optional-dependencies"][extra]}
    if not wanted <= {*stamp.get("requirements", [])}:
        wanted |= {*stamp.pop("requirements", [])}
        save(stamp)
        pip("installing requirements", *sorted(wanted))
        stamp["requirements"] = sorted(wanted)
        save(stamp)

    if stamp.get("built") != built():
        need_compiler()
        stamp.pop("built", None)
        save(stamp)
        pip("building forebay", "--no-deps", "--no-build-isolation", "--editable", ".")
        stamp["built"] = built()
        save(stamp)


def interpreter() -> str:
    return f"{sys.version} at {os.path.realpath(sys.executable)} in {VENV}"


def fingerprint(root: Path) -> str:
    """A hash of everything that goes into the compiled core."""
    digest = hashlib.sha256()
    for path in sorted({path for pattern in BUILD_INPUTS for path in root.glob(pattern)}):
        digest.update(f"{path.relative_to(root)} {path.stat().st_size}\n".encode() + path.read_bytes())
    return digest.hexdigest()


def built() -> list[str]:
    """What the core is made from and which files it is, so that one deleted or replaced since is noticed."""
    files = [ROOT / "src/forebay" / f"{name}{sysconfig.get_config_var('EXT_SUFFIX')}" for name in COMPILED]
    times = [f"{file.stat().st_mtime_ns}" if file.exists() else f"absent at {time.time_ns()}" for file in files]
    return [fingerprint(ROOT), *times]


def make_environment() -> None:
    if VENV.exists() and any(VENV.iterdir()) and not STAMP.exists():
        fail(f"{VENV} was not made by dev.py: remove it, or name another place in FOREBAY_VENV")
    if not (importlib.util.find_spec("venv") and importlib.util.find_spec("ensurepip")):
        fail("this Python cannot make virtual environments: install python3-venv (Debian: apt install python3-venv)")
    need_compiler()
    print(f"dev.py: making {VENV}", flush=True)
    shutil.rmtree(VENV, ignore_errors=True)
    VENV.mkdir(parents=True)
    save({})  # ours from now on, should the next line be interrupted
    if run([sys.executable, "-m", "venv", str(VENV)]):
        fail(f"{VENV} could not be made")


def need_compiler() -> None:
    compiler = shlex.split(os.environ.get("CXX") or sysconfig.get_config_var("CXX") or "g++")[0]
    if shutil.which(compiler) is None:
        fail(f"there is no C++ compiler {compiler!r}: install g++ (Debian: apt install g++)")
    if not (Path(sysconfig.get_path("include")) / "Python.h").exists():
        fail("this Python's header Python.h is missing: install python3-dev (Debian: apt install python3-dev)")


def pip(purpose: str, *arguments: str) -> None:
    print(f"dev.py: {purpose}", flush=True)
    command = [PYTHON, "-m", "pip", "--disable-pip-version-check", "install", *arguments]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode:
        fail(f"{purpose} failed:\n{done.stdout}")


def save(stamp: dict[str, object]) -> None:
    unfinished = STAMP.with_suffix(".new")
    unfinished.write_text(json.dumps(stamp, indent=1))
    unfinished.replace(STAMP)


def run(command: list[str], *, quiet: bool = False) -> int:
    silence = subprocess.DEVNULL if quiet else None
    return subprocess.run(command, stdout=silence, stderr=silence, check=False).returncode


def timed(command: list[str], *, quiet: bool = False) -> tuple[int, float]:
    start = time.perf_counter()
    return run(command, quiet=quiet), time.perf_counter() - start


def fail(message: str) -> NoReturn:
    sys.exit(f"dev.py: {message}")


TASKS = {"demo": demo, "test": test, "check": check, "bench": bench, "docs": docs}


def main(arguments: list[str]) -> int:
    if sys.version_info < (3, 11):  # noqa: UP036 - this file is what tells the user so
        fail(f"forebay needs Python 3.11 or later, and this is {sys.version.split()[0]}: try python3.11 dev.py")
    if not arguments or arguments[0] not in TASKS:
        print(__doc__.strip())
        return 0 if arguments in ([], ["-h"], ["--help"]) else 2
    os.chdir(ROOT)
    os.environ["PATH"] = f"{VENV / 'bin'}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
    return TASKS[arguments[0]](arguments[1:])


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(130)
