"""Build the source distribution, and from it the wheel of this interpreter, and verify both: python3 dev.py dist

The wheel is built as pip builds it for a user without a wheel: from the sdist, in an isolated environment. It is then
installed in an empty environment outside the checkout, where `forebay doctor`, `forebay run`, the conformance suite and
the lines of docs/one-line.md without PyTorch must pass; pytest must find its plugin, and `uvx` the environment of a
program. `dev.py demo` and `dev.py test --quick` must pass in the unpacked sdist. `--no-build` verifies what dist/
already contains, `--no-sdist-tests` omits the tests in the unpacked sdist. `--manylinux` compiles the wheel with zig
for the C library of manylinux_2_28; without it the wheel needs this machine's.
"""

from __future__ import annotations

import configparser
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
import tomllib
import zipfile
from collections.abc import Iterable
from importlib.resources import files
from pathlib import Path, PurePosixPath

import one_lines
from steps import ROOT, call, clean_variables, empty_environment, fail, megabytes, output

DIST = ROOT / "dist"
MAX_BYTES = 10 * 10**6  # of forebay's installed files, without the bytecode that Python caches
SOURCES_ONLY = (".pyx", ".pxd", ".pxi", ".c", ".cpp")
GENERATED = re.compile(r"PKG-INFO|setup\.cfg|src/forebay\.egg-info/.*")  # what setuptools adds to an sdist
OPTIONS = {"--no-build", "--no-sdist-tests", "--manylinux"}
MANYLINUX = "manylinux_2_28"
ZIG = "linux-gnu.2.28"  # its C library, as zig names it

RICH = ("rich*", "pygments*", "markdown_it*", "mdurl*")
CONFORMANCE = 'from forebay.testing.conformance import *\n\npytest_plugins = ["forebay.testing.plugin"]\n'
PROGRAM = """import numpy as np

kept = [np.ones(1 << 20) for _ in range(8)]
print("allocated", sum(array.nbytes for array in kept))
"""


def main(arguments: list[str]) -> int:
    if unknown := {*arguments} - OPTIONS:
        fail(f"unknown argument {min(unknown)!r}")
    if "--no-build" in arguments:
        sdist, wheel = only(DIST, "*.tar.gz"), only(DIST, "*.whl")
    else:
        shutil.rmtree(DIST, ignore_errors=True)
        sdist = build_sdist(DIST)
        wheel = build_wheel(sdist, DIST, zig_compilers() if "--manylinux" in arguments else {})
    call("metadata", [sys.executable, "-m", "twine", "check", "--strict", str(sdist), str(wheel)])
    call("check-wheel-contents", ["check-wheel-contents", str(wheel)])
    problems = [*sdist_problems(sdist_files(sdist)), *wheel_problems(wheel, sdist), *debug_problems(wheel)]
    problems += entry_problems(wheel)
    print("\n".join([describe(sdist), describe(wheel), *linux_tag(wheel)]), flush=True)
    with tempfile.TemporaryDirectory(prefix="forebay-dist-") as folder:
        problems += verify_wheel(wheel, Path(folder))
        verify_uvx(wheel, Path(folder))
        if "--no-sdist-tests" not in arguments:
            verify_sdist(sdist, Path(folder))
    if problems:
        fail("\n".join(problems))
    print(f"\nverified: dist/{sdist.name} and dist/{wheel.name}")
    return 0


def build_sdist(target: Path) -> Path:
    call("sdist", [sys.executable, "-m", "build", "--sdist", "--outdir", str(target), str(ROOT)])
    return only(target, "*.tar.gz")


def zig_compilers() -> dict[str, str]:
    """Return the variables that have setuptools compile with zig for manylinux_2_28."""
    zig, target = files("ziglang") / "zig", f"-target {platform.machine()}-{ZIG}"  # as a path: a build cannot import it
    c, cpp = f"{zig} cc {target}", f"{zig} c++ {target}"
    return {"CC": c, "CXX": cpp, "LDSHARED": f"{c} -shared", "LDCXXSHARED": f"{cpp} -shared"}


def build_wheel(sdist: Path, target: Path, variables: dict[str, str]) -> Path:
    """Compile a wheel from the sdist, outside the checkout."""
    with tempfile.TemporaryDirectory() as outside:
        command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--wheel-dir", str(target), str(sdist)]
        call("wheel", command, folder=outside, **variables)
    if variables:  # gives it the tag of manylinux, if its modules allow that
        repaired = ["repair", "--plat", f"{MANYLINUX}_{platform.machine()}", "--wheel-dir", str(target)]
        wheel = only(target, "*.whl")
        call("auditwheel repair", [sys.executable, "-m", "auditwheel", *repaired, str(wheel)])
        wheel.unlink()
    return only(target, "*.whl")


def only(folder: Path, pattern: str) -> Path:
    found = [*folder.glob(pattern)]
    if len(found) != 1:
        fail(f"{folder} contains {len(found)} files {pattern}, not one")
    return found[0]


# Contents


def sdist_files(sdist: Path) -> set[str]:
    """Return the names of an sdist's files, below the folder that contains them all."""
    with tarfile.open(sdist) as archive:
        return {str(PurePosixPath(*PurePosixPath(name.name).parts[1:])) for name in archive if name.isfile()}


def sdist_problems(files: set[str]) -> list[str]:
    """Compare an sdist with the repository: it has every file that git tracks, and no other."""
    tracked = tracked_files()
    if not tracked:
        return []
    missing = {name for name in tracked if name not in files}
    added = {name for name in files if name not in tracked and not GENERATED.fullmatch(name)}
    return [*listed("the sdist lacks", missing), *listed("the sdist also has", added)]


def tracked_files() -> set[str]:
    """Return what git tracks or could; an empty set outside a git checkout."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    try:
        found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return set()
    return {name for name in found.split("\0") if name and (ROOT / name).is_file()}


def wheel_problems(wheel: Path, sdist: Path) -> list[str]:
    """Compare a wheel with the sources: all Python and data files of `src`, and each compiled module, and no other."""
    sources = {name.removeprefix("src/") for name in sdist_files(sdist) if name.startswith("src/forebay")}
    sources = {name for name in sources if not name.startswith("forebay.egg-info/")}
    compiled = {name.removesuffix(".pyx") for name in sources if name.endswith(".pyx")}
    expected = {name for name in sources if not name.endswith(SOURCES_ONLY)}
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name and not name.endswith("/")}
    modules = {name.partition(".")[0] for name in names if name.endswith(".so")}
    files = {name for name in names if not name.endswith(".so")}
    return [
        *listed("the wheel lacks", expected - files),
        *listed("the wheel also has", files - expected),
        *listed("the wheel lacks the compiled", compiled - modules),
        *listed("the wheel also has the compiled", modules - compiled),
    ]


def entry_problems(wheel: Path) -> list[str]:
    """Compare the entry points and the addresses in a wheel's metadata with those of pyproject.toml."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    points: dict[str, dict[str, str]] = {"console_scripts": project["scripts"], **project["entry-points"]}
    with zipfile.ZipFile(wheel) as archive:
        (folder,) = {name.partition("/")[0] for name in archive.namelist() if ".dist-info/" in name}
        found = configparser.ConfigParser()
        found.read_string(archive.read(f"{folder}/entry_points.txt").decode())
        metadata = archive.read(f"{folder}/METADATA").decode()
    written = {group: dict(found[group]) for group in found.sections()}
    missing = [name for name, address in project["urls"].items() if f"Project-URL: {name}, {address}\n" not in metadata]
    return [
        *([] if written == points else [f"the wheel's entry points are {written}, not {points}"]),
        *listed("the metadata lacks the address", missing),
    ]


def debug_problems(wheel: Path) -> list[str]:
    """Return the modules of a Linux wheel that contain debug information or a table of internal symbols."""
    if not sys.platform.startswith("linux"):
        return []
    from elftools.elf.elffile import ELFFile

    problems = []
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            if name.endswith(".so"):
                with archive.open(name) as module:
                    sections = {section.name for section in ELFFile(module).iter_sections()}
                extra = {section for section in sections if section.startswith(".debug") or section == ".symtab"}
                problems += listed(f"{name} is not stripped: it has", extra)
    return problems


def listed(problem: str, names: Iterable[str]) -> list[str]:
    return [f"{problem} {name}" for name in sorted(names)]


def describe(file: Path) -> str:
    if file.suffix == ".whl":
        with zipfile.ZipFile(file) as archive:
            sizes = [entry.file_size for entry in archive.infolist()]
    else:
        with tarfile.open(file) as archive:
            sizes = [entry.size for entry in archive if entry.isfile()]
    return f"{file.name}: {megabytes(file.stat().st_size)}, {len(sizes):,} files of {megabytes(sum(sizes))}"


def linux_tag(wheel: Path) -> list[str]:
    """Return the line that says which Linux systems run the wheel."""
    if not sys.platform.startswith("linux"):
        return []
    shown = output([sys.executable, "-m", "auditwheel", "show", str(wheel)])
    found = re.search(r'platform tag:\s*"(\S+)"', shown)
    return [f"auditwheel: {found[1] if found else shown.strip()}"]


# Installed


def verify_wheel(wheel: Path, folder: Path) -> list[str]:
    """Install a wheel in an empty environment and use it; return problems of its size."""
    python = empty_environment(folder / "wheel")
    call("install the wheel", [python, "-m", "pip", "install", "--quiet", str(wheel)], folder=folder)
    packages = Path(output([python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]).strip())
    own, bytecode = installed_bytes(packages, "forebay*")
    rich = [sum(sizes) for sizes in zip(*(installed_bytes(packages, name) for name in RICH), strict=True)]
    print(f"installed: forebay {megabytes(own)} and {megabytes(bytecode)} of bytecode,", end=" ")
    print(f"rich and its dependencies {' and '.join(map(megabytes, rich))}", flush=True)
    use(python, folder)
    return (
        [f"forebay's installed files take {megabytes(own)}: at most {megabytes(MAX_BYTES)}"] if own > MAX_BYTES else []
    )


def use(python: str, folder: Path) -> None:
    """Run `doctor`, `run` and the conformance suite of an installed forebay."""
    scripts, program, suite = Path(python).parent, folder / "program.py", folder / "suite"
    program.write_text(PROGRAM)
    suite.mkdir(exist_ok=True)
    (suite / "test_conformance.py").write_text(CONFORMANCE)
    call("doctor", [str(scripts / "forebay"), "doctor"], folder=folder)
    report = folder / "report"
    command = [str(scripts / "forebay"), "run", "--output", str(report), str(program)]
    call("run", command, folder=folder)
    if not [*report.rglob("*.html")]:
        fail("`forebay run` wrote no report")
    call("install pytest", [python, "-m", "pip", "install", "--quiet", "pytest", "pytest-xdist"], folder=folder)
    use_lines(python, folder)
    call(
        "conformance suite", [python, "-m", "pytest", "-q", "--numprocesses=2", "-p", "no:cacheprovider"], folder=suite
    )


def use_lines(python: str, folder: Path) -> None:
    """Execute the lines of docs/one-line.md that need no PyTorch."""
    place, home = folder / "lines", folder / "home"
    place.mkdir()
    home.mkdir()
    one_lines.make_files(place)
    for line in one_lines.lines():
        if not line.with_torch:
            print(f"{line.command} ...", flush=True)
            done = one_lines.execute(line, python, place, home)
            if done.returncode:
                fail(f"{line.command} failed:\n{done.stdout}{done.stderr}")


def verify_uvx(wheel: Path, folder: Path) -> None:
    """Run a program of another environment with `uvx`: it is found, or the command that works is printed."""
    command = str(Path(sys.executable).with_name("uvx"))  # `python -m uv` sets VIRTUAL_ENV to its own environment
    uvx = [command, "--from", str(wheel), "--python", sys.executable]
    project = folder / "project"
    project.mkdir()
    (project / "program.py").write_text("import mine\nprint(mine.NAME)\n")
    call("environment of a program", [sys.executable, "-m", "venv", "--without-pip", str(project / ".venv")])
    packages = sysconfig.get_path("purelib", "venv", {"base": str(project / ".venv")})
    Path(packages, "mine.py").write_text("NAME = 'of the program'\n")
    printed = call("uvx forebay run", [*uvx, "forebay", "run", "program.py"], folder=project)
    if "of the program" not in printed or "using the environment of the program" not in printed:
        fail(f"`uvx forebay run` did not use .venv:\n{printed}")
    done = subprocess.run(
        [*uvx, "forebay", "fit", "program.py"], cwd=project, env=clean_variables(), capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    if done.returncode != 2 or "PyTorch is not installed for" not in done.stderr:
        fail(f"`uvx forebay fit` without PyTorch:\n{done.stderr}")


def verify_sdist(sdist: Path, folder: Path) -> None:
    """Run the README's commands in an unpacked sdist."""
    with tarfile.open(sdist) as archive:
        archive.extractall(folder / "sdist", filter="data")
    tree = only(folder / "sdist", "*")
    call("dev.py demo in the sdist", [sys.executable, "dev.py", "demo"], folder=tree)
    call("dev.py test --quick in the sdist", [sys.executable, "dev.py", "test", "--quick"], folder=tree)


def installed_bytes(packages: Path, pattern: str) -> tuple[int, int]:
    """Return the bytes of the files of some packages, and of their bytecode."""
    paths = [path for top in packages.glob(pattern) for path in ([top] if top.is_file() else top.rglob("*"))]
    sizes = [(path.suffix == ".pyc", path.stat().st_size) for path in paths if path.is_file()]
    return sum(size for cached, size in sizes if not cached), sum(size for cached, size in sizes if cached)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
