#!/usr/bin/env python3
"""Tasks of the forebay repository: python3 dev.py TASK [arguments]

    demo     train a small model on the CPU device and draw a report of its memory
    test     run the test suite; --quick runs the fast tests only; other arguments are pytest's
    check    run linters, formatters, type checkers and the documentation build; --fix repairs what they can repair
    bench    run all benchmarks, or those named; each prints its own table
    docs     build the documentation
    dist     build the source distribution and a wheel, and verify both in empty environments
    wheels   build the wheels of all Python versions with cibuildwheel, which on Linux needs Docker or Podman
    coverage measure which lines the tests execute; arguments are pytest's
    sanitize run the extension modules under sanitizers: sanitize [thread|address] [--seconds N]
    cross    compile for AArch64 and macOS with zig, and run the native tests that can run here
    minimums run the fast tests with the lowest allowed versions of all requirements, or with --newest
    golden   replay golden traces of PyTorch's allocator: golden [--model] FILE...
    gpu      run everything that needs an NVIDIA GPU: gpu [--here] [--minutes N] [--output FOLDER] [PART ...], and take
             the results into the repository: gpu --keep FOLDER
    mac      run everything that needs Apple's GPU, and write a file for an issue: mac [--quick] [--output FILE]
    packages run programs over packages of PyPI on emulated GPUs: packages [--public FOLDER] [NAME ...]
    names    print the names and signatures of an installed PyTorch that forebay lacks: names [--python PYTHON]
    differential  run new random programs on forebay and on PyTorch over the oracle: differential --seeds A..B
    accuracy compare predictions with public measurements of GPUs: accuracy --data FOLDER [--write] [TABLE ...]
    message  check the commit message in a file: message FILE

A task creates .venv (or $FOREBAY_VENV) if it is missing, installs what the task needs, and rebuilds the compiled core
if one of its inputs has changed. It needs only Python 3.11 or later and a C++ compiler.
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
from typing import NoReturn

ROOT = Path(__file__).resolve().parent
VENV = Path(os.environ.get("FOREBAY_VENV") or ROOT / ".venv").absolute()
PYTHON = str(VENV / "bin/python")
BESIDE = {  # environments over .venv: by extra, what is installed, the platforms that have it, and others below it
    # 458 MB; the start-up file of the first one would delay each start of Python by 25 ms
    "numba": ("numba-cuda, CuPy and RMM", ("linux",), ()),
    "torch": ("PyTorch and JAX", ("linux", "darwin"), ()),  # 1.4 GB
    "packages": ("packages that use PyTorch", ("linux", "darwin"), ("torch",)),
}
STAMP = VENV / "dev-stamp.json"  # completed steps; each removes its entry when it starts and restores it at its end

BUILD_INPUTS = ("pyproject.toml", "setup.py", "native/**/*.?pp", "src/**/*.pyx", "src/**/*.px[di]")
STUBTEST = ["-m", "mypy.stubtest", "--mypy-config-file", "pyproject.toml", "--ignore-unused-allowlist"]
STUBTEST += ["--allowlist", "tests/house/stubtest-allowlist.txt"]
SPHINX = ["sphinx-build", "-W", "--keep-going", "--quiet", "docs", "docs/_build/html"]
SCHEMAS = {  # files for services, by the name of their schema
    "github-actions": ["action.yml"],
    "github-workflows": [
        ".github/workflows/ci.yml",
        ".github/workflows/release.yml",
        "examples/ci/github-workflow.yml",
    ],
    "gitlab-ci": ["examples/ci/gitlab-ci.yml"],
    "citation-file-format": ["CITATION.cff"],
}
REPORT = "forebay-report"
PROCESSES = (os.cpu_count() or 1) + 1  # of pytest: tests wait for child processes, timers and disks, too
IN_PARALLEL = [f"--numprocesses={PROCESSES}", "--dist=worksteal"]
QUICK = ["--quick", *IN_PARALLEL, "--override-ini=testpaths=tests"]
FIRST_CHECKED_COMMIT = "a78d606"  # the messages of older commits follow other rules


def demo(arguments: list[str]) -> int:
    prepare("demo")
    shutil.rmtree(REPORT, ignore_errors=True)
    status = run(["forebay", "run", "--output", REPORT, "examples/train_digits.py", *arguments])
    for page in sorted(Path(REPORT).rglob("*.html")):
        print(f"\nThe report of the program's memory: {page}")
    return status


def test(arguments: list[str]) -> int:
    prepare("test", "demo")  # the demo is tested, too
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # thousands of child processes would compile the sources again
    if "--quick" in arguments:
        return run(["python", "tools/suite.py", *QUICK, *(each for each in arguments if each != "--quick")])
    prepare_beside()
    if arguments:
        return run(["python", "-m", "pytest", *arguments])
    return run(["python", "tools/suite.py", *IN_PARALLEL])


def golden(arguments: list[str]) -> int:
    prepare("test")
    os.environ["PYTHONPATH"] = "tests"
    return run(["python", "-m", "support.golden.command", *arguments])


def check(arguments: list[str]) -> int:
    prepare("check", "test", "docs")  # mypy reads the testing package, which imports pytest
    folders = ("native", "report-page/reader", "tests/softcuda", "tests/softmetal")
    native = sorted(str(path) for folder in folders for path in Path(folder).rglob("*.?pp"))
    if "--fix" in arguments:
        run(["ruff", "check", "--fix", "--quiet"])
        run(["ruff", "format", "--quiet"])
        run(["clang-format", "-i", *native])
    commands = {
        "ruff check": ["ruff", "check", "--quiet"],
        "ruff format": ["ruff", "format", "--check", "--quiet"],
        "cython-lint": ["cython-lint", "src"],
        "mypy": ["mypy", "--no-error-summary"],
        "stubtest": ["python", *STUBTEST, *compiled_modules()],
        "report page": ["python", "tools/report_page.py"],
        "clang-format": ["clang-format", "--dry-run", "-Werror", *native],
        "documentation": SPHINX,
    } | {name: ["check-jsonschema", "--builtin-schema", f"vendor.{name}", *files] for name, files in SCHEMAS.items()}
    failed = [name for name, command in commands.items() if run(command)]
    others = {"public types": untyped_names, "commit messages": commit_problems}
    for name, problems_of in others.items():
        if problems := problems_of():
            print("\n".join(problems))
            failed.append(name)
    print("\n".join(f"{'failed' if name in failed else 'ok':7} {name}" for name in [*commands, *others]))
    return 1 if failed else 0


def untyped_names() -> list[str]:
    """Return the errors of pyright in public names. Modules over PyTorch, which is not installed, are left out."""
    command = ["pyright", "--verifytypes", "forebay", "--ignoreexternal"]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    errors, name = [], ""
    for line in found.stdout.splitlines():
        if line and not line.startswith(" "):
            name = line
        elif "error:" in line and not name.startswith("forebay.interop.torch."):
            errors.append(f"{name}:{line}")
    failed = found.returncode and "Type completeness score" not in found.stdout
    return [*errors, *found.stderr.splitlines(), *([found.stdout] if failed else [])]


def commit_problems() -> list[str]:
    """Return what is wrong with the messages of new commits; nothing outside a git repository."""
    log = ["git", "log", "--no-merges", "--format=%h%n%B%x00", f"{FIRST_CHECKED_COMMIT}..HEAD"]
    try:
        found = subprocess.run(log, capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return []
    return [problem for commit in found.split("\0") if commit.strip() for problem in message_problems(commit.strip())]


def message(arguments: list[str]) -> int:
    """Check a message before git commits it, for pre-commit."""
    lines = Path(arguments[0]).read_text().split("\n")
    written = "\n".join(line for line in lines if not line.startswith("#"))
    problems = message_problems(f"message\n{written.strip()}")
    print("\n".join(problems))
    return 1 if problems else 0


def message_problems(commit: str) -> list[str]:
    """Return what is wrong with a commit message, which follows a line with the commit's number."""
    number, subject, *rest = commit.split("\n")
    verb = subject.split(" ")[0].rstrip(":")
    problems = {
        f"the subject has {len(subject)} characters, not at most 72": len(subject) > 72,
        "the subject ends with a full stop": subject.endswith("."),
        "the subject does not begin with a capital letter": not subject[:1].isupper(),
        f"the subject begins with {verb!r}, not with an imperative": verb.endswith(("ed", "ing")) and len(verb) > 4,
        "there is no body that gives the reason": not "".join(rest).strip(),
        "there is no empty line after the subject": bool(rest) and bool(rest[0].strip()),
    }
    return [f"commit {number}: {problem}: {subject!r}" for problem, is_so in problems.items() if is_so]


def bench(arguments: list[str]) -> int:
    prepare("demo", "test")  # the software driver needs NVIDIA's headers
    every = {path.stem.removeprefix("bench_"): path for path in sorted(Path("benchmarks").glob("bench_*.py"))}
    if absent := [name for name in arguments if name not in every]:
        fail(f"unknown benchmark {absent[0]!r}; known: {', '.join(every)}")
    failed = [name for name in arguments or every if run([python_for(name), str(every[name])])]
    return 1 if failed else 0


def python_for(benchmark: str) -> str:
    """Return the interpreter for a benchmark: that of the environment of PyTorch, or that of .venv."""
    if benchmark != "torch":
        return "python"
    prepare_beside("torch")
    return str(VENV / "torch/bin/python")


def docs(arguments: list[str]) -> int:
    prepare("docs")
    status = run([*SPHINX, *arguments])
    print("documentation failed" if status else "documentation: docs/_build/html/index.html")
    return status


def dist(arguments: list[str]) -> int:
    prepare("dist", *(["cross"] if "--manylinux" in arguments else []), core=False)
    return run(["python", "tools/distributions.py", *arguments])


def wheels(arguments: list[str]) -> int:
    prepare("wheels", core=False)
    return run(["cibuildwheel", *arguments])


def coverage(arguments: list[str]) -> int:
    prepare("test", "demo", "coverage")
    prepare_beside()
    return run(["python", "tools/coverage_report.py", *(arguments or IN_PARALLEL)])


def sanitize(arguments: list[str]) -> int:
    prepare("test", core=False)
    return run(["python", "tools/sanitize.py", *arguments])


def cross(arguments: list[str]) -> int:
    prepare("cross", core=False)
    return run(["python", "tools/cross.py", *arguments])


def minimums(arguments: list[str]) -> int:
    prepare("minimums", core=False)
    return run(["python", "tools/minimums.py", *arguments])


def gpu(arguments: list[str]) -> int:
    python = sys.executable
    if not {"--here", "--keep", "--help", "-h"} & {*arguments}:
        prepare("test", "cuda")
        python = "python"
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, ["tools", os.environ.get("PYTHONPATH")]))
    return run([python, "-m", "gpu", *arguments])


def mac(arguments: list[str]) -> int:
    prepare("test", "metal")
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, ["tools", os.environ.get("PYTHONPATH")]))
    return run(["python", "-m", "mac", *arguments])


def names(arguments: list[str]) -> int:
    prepare("test")
    return run(["python", "tools/torch_names.py", *arguments])


def differential(arguments: list[str]) -> int:
    prepare("test")
    seeds = arguments[1:] if arguments[:1] == ["--seeds"] else arguments
    return run(["python", "tests/support/differential.py", "compare", *seeds])


def packages(arguments: list[str]) -> int:
    return run_over_packages("packages", arguments)


def accuracy(arguments: list[str]) -> int:
    return run_over_packages("accuracy", arguments)


def run_over_packages(module: str, arguments: list[str]) -> int:
    """Run a module of tools in the environment of the packages that use PyTorch."""
    prepare("test")
    prepare_beside("torch", "packages")
    if not (VENV / "packages").exists():
        fail("the packages could not be installed")
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, ["tools", os.environ.get("PYTHONPATH")]))
    return run([str(VENV / "packages/bin/python"), "-m", module, *arguments])


def prepare(*extras: str, core: bool = True) -> None:
    """Bring the environment up to date: interpreter, requirements, compiled core."""
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

    if core and stamp.get("built") != built():
        need_compiler()
        stamp.pop("built", None)
        save(stamp)
        pip("building forebay", "--no-deps", "--no-build-isolation", "--editable", ".")
        below = sysconfig.get_path("purelib", "venv", {"base": str(VENV)})
        shutil.copy(ROOT / "src/forebay_startup.pth", below)  # an editable installation has no files of its own
        stamp["built"] = built()
        save(stamp)


def prepare_beside(*extras: str) -> None:
    """Install extras of BESIDE, by default those of the tests, in environments of their own over .venv.

    Without one of them, which only skips its tests, dev.py continues.
    """
    import tomllib

    requirements = tomllib.loads(Path("pyproject.toml").read_text())["project"]["optional-dependencies"]
    for extra in extras or ("numba", "torch"):
        title, platforms, below = BESIDE[extra]
        folder = VENV / extra
        wanted = [*requirements[extra], *(f"over {each}: {stamp_of(each)}" for each in below)]
        stamp = json.loads(STAMP.read_text())
        if sys.platform not in platforms or (stamp.get(extra) == wanted and folder.exists()):
            continue
        stamp.pop(extra, None)
        save(stamp)
        shutil.rmtree(folder, ignore_errors=True)
        try:
            make_environment_over(folder, *(f"../{each}" for each in below), "..")
            pip(f"installing {title}", *requirements[extra], python=str(folder / "bin/python"))
        except SystemExit as error:
            print(f"{error}\ndev.py: the tests of {title} will be skipped", flush=True)
            shutil.rmtree(folder, ignore_errors=True)
        else:
            save({**stamp, extra: wanted})


def stamp_of(extra: str) -> object:
    """Return the requirements with which an environment of BESIDE was made."""
    return json.loads(STAMP.read_text()).get(extra)


def make_environment_over(folder: Path, *bases: str) -> None:
    """Create an environment in a folder of .venv that finds the packages of others, too, after its own."""
    if run([PYTHON, "-m", "venv", "--without-pip", str(folder)]):
        fail(f"{folder} could not be created")
    below = sysconfig.get_path("purelib", "venv", {"base": str(folder)})
    others = [sysconfig.get_path("purelib", "venv", {"base": base}) for base in bases]
    found = (f"import os, site, sys; site.addsitedir(os.path.join(sys.prefix, {each!r}))\n" for each in others)
    Path(below, "others.pth").write_text("".join(found))  # the requirements that they fulfil are not installed again


def interpreter() -> str:
    return f"{sys.version} at {os.path.realpath(sys.executable)} in {VENV}"


def fingerprint(root: Path) -> str:
    """Return a hash of all inputs of the compiled core."""
    digest = hashlib.sha256()
    for path in sorted({path for pattern in BUILD_INPUTS for path in root.glob(pattern)}):
        digest.update(f"{path.relative_to(root)} {path.stat().st_size}\n".encode() + path.read_bytes())
    return digest.hexdigest()


def compiled_modules() -> list[str]:
    """Return the names of the extension modules, one for each .pyx file, as setup.py builds them."""
    sources = sorted((ROOT / "src").rglob("*.pyx"))
    return [".".join(source.relative_to(ROOT / "src").with_suffix("").parts) for source in sources]


def built() -> list[str]:
    """Return the state of the core's inputs and outputs, so that a deleted or replaced output is noticed."""
    suffix = sysconfig.get_config_var("EXT_SUFFIX")
    files = [ROOT / "src" / f"{name.replace('.', '/')}{suffix}" for name in compiled_modules()]
    times = [f"{file.stat().st_mtime_ns}" if file.exists() else f"absent at {time.time_ns()}" for file in files]
    return [fingerprint(ROOT), *times]


def make_environment() -> None:
    if VENV.exists() and any(VENV.iterdir()) and not STAMP.exists():
        fail(f"{VENV} was not made by dev.py: remove it, or set FOREBAY_VENV to another folder")
    if not (importlib.util.find_spec("venv") and importlib.util.find_spec("ensurepip")):
        fail("this Python cannot make virtual environments: install python3-venv (Debian: apt install python3-venv)")
    need_compiler()
    print(f"dev.py: creating {VENV}", flush=True)
    shutil.rmtree(VENV, ignore_errors=True)
    VENV.mkdir(parents=True)
    save({})  # marks the folder as dev.py's, in case the next line is interrupted
    if run([sys.executable, "-m", "venv", str(VENV)]):
        fail(f"{VENV} could not be created")


def need_compiler() -> None:
    compiler = shlex.split(os.environ.get("CXX") or sysconfig.get_config_var("CXX") or "g++")[0]
    if shutil.which(compiler) is None:
        fail(f"the C++ compiler {compiler!r} was not found: install g++ (Debian: apt install g++)")
    if not (Path(sysconfig.get_path("include")) / "Python.h").exists():
        fail("this Python's header Python.h is missing: install python3-dev (Debian: apt install python3-dev)")


def pip(purpose: str, *arguments: str, python: str = PYTHON) -> None:
    print(f"dev.py: {purpose}", flush=True)
    other = [] if python == PYTHON else ["--python", python]
    command = [PYTHON, "-m", "pip", *other, "--disable-pip-version-check", "install", *arguments]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode:
        fail(f"{purpose} failed:\n{done.stdout}")


def save(stamp: dict[str, object]) -> None:
    unfinished = STAMP.with_suffix(".new")
    unfinished.write_text(json.dumps(stamp, indent=1))
    unfinished.replace(STAMP)


def run(command: list[str]) -> int:
    return subprocess.run(command, check=False).returncode


def fail(message: str) -> NoReturn:
    sys.exit(f"dev.py: {message}")


TASKS = {
    "demo": demo,
    "test": test,
    "check": check,
    "bench": bench,
    "docs": docs,
    "dist": dist,
    "wheels": wheels,
    "coverage": coverage,
    "sanitize": sanitize,
    "cross": cross,
    "minimums": minimums,
    "golden": golden,
    "gpu": gpu,
    "mac": mac,
    "packages": packages,
    "names": names,
    "differential": differential,
    "accuracy": accuracy,
    "message": message,
}


def main(arguments: list[str]) -> int:
    if sys.version_info < (3, 11):  # noqa: UP036 - only this file can report it
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
