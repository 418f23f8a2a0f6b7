"""Measure which lines of the sources the tests execute: python3 dev.py coverage [arguments of pytest]

Python is measured by coverage.py, C++ by gcov, and Cython by gcov on the generated code, whose comments name the line
of the source. The sources are copied to build/coverage and compiled there without optimization. The native tests run,
too. Prints a table of the files, and writes build/coverage/lines.json with the lines that were not executed. Fails if
less than 90 % of a file is executed and `coverage_reasons.toml` does not say why. Tests that fail only because they are
measured do not matter here; their number is printed.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path

from steps import ROOT, call, fail

BUILD = ROOT / "build/coverage"
TREE = BUILD / "tree"
FLAGS = "--coverage -O0 -g0 -fprofile-update=atomic -fprofile-abs-path"
LOW = 90.0  # percent
REASONS = Path(__file__).with_name("coverage_reasons.toml")
UNMEASURED = (  # tests, as options of pytest
    "--ignore=tests/native/test_sanitizers.py",  # measures programs of its own, and takes long
    "--deselect=tests/runtime/allocator/test_expandable_segments.py::test_no_memory_is_lost_by_a_raising_signal_handler",
)  # the last one raises while coverage.py holds a lock, which it then never releases
_ORIGIN = re.compile(r'/\* "(?:.*/)?(forebay/[^"]+\.p(?:yx|xi|xd))":(\d+)$')
_CONFIGURATION = """
[run]
parallel = true
source = src/forebay
data_file = {data}
concurrency = thread, multiprocessing
sigterm = true
patch = subprocess, _exit, fork

[report]
exclude_also =
    if TYPE_CHECKING:
    \\.\\.\\.$
"""

Counts = dict[int, int]  # line: executions


def main(arguments: list[str]) -> int:
    copy_sources()
    build = [sys.executable, "setup.py", "-q", "build_ext", "--inplace"]
    call("compiling with counters", build, TREE, FOREBAY_CFLAGS=FLAGS)
    run_native_tests()
    run_tests(arguments)
    files = {**python_counts(), **native_counts()}
    if not files:
        fail("nothing was measured")
    low = show(files)
    missing = {name: [line for line, count in lines.items() if not count] for name, lines in sorted(files.items())}
    (BUILD / "lines.json").write_text(json.dumps(missing, indent=1))
    if arguments:  # a part of the tests
        return 0
    if unneeded := {*reasons()} - low:
        print(f"{REASONS.name} has reasons for files that need none: {', '.join(sorted(unneeded))}")
    return 1 if low ^ {*reasons()} else 0


def reasons() -> dict[str, str]:
    """Return the reason for each file of which less is executed."""
    return {str(name): str(reason) for name, reason in tomllib.loads(REASONS.read_text()).items()}


def copy_sources() -> None:
    shutil.rmtree(BUILD, ignore_errors=True)
    listed = call("sources", ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"])
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).is_file():
            (TREE / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, TREE / name)


def run_native_tests() -> None:
    compiler = os.environ.get("CXX", "g++").split()
    options = [*FLAGS.split(), "-std=c++17", "-pthread", "-Inative", "-ffp-contract=off", "-fno-math-errno"]
    programs = sorted(TREE.glob("native/tests/test_*.cpp"))
    objects = []
    for source in sorted({*TREE.glob("native/*/*.cpp")} - {*TREE.glob("native/tests/*.cpp")}):
        objects.append(str(BUILD / f"{source.parent.name}-{source.stem}.o"))
        call(f"compiling {source.name}", [*compiler, *options, "-c", str(source), "-o", objects[-1]], TREE)
    for program in programs:
        binary = str(BUILD / program.stem)
        call(f"compiling {program.name}", [*compiler, *options, str(program), *objects, "-o", binary], TREE)
        call(f"running {program.stem}", [binary], TREE)


def run_tests(arguments: list[str]) -> None:
    configuration = BUILD / "coveragerc"
    configuration.write_text(_CONFIGURATION.format(data=BUILD / "data"))
    variables = {**os.environ, "PYTHONPATH": str(TREE / "src"), "COVERAGE_RCFILE": str(configuration)}
    command = [sys.executable, "-m", "coverage", "run", "-m", "pytest", "-q", "--timeout=600", *UNMEASURED, *arguments]
    subprocess.run(command, cwd=TREE, env=variables, check=False)  # it reports its failures itself
    for step in (["combine", "-q"], ["json", "-q", "-o", str(BUILD / "python.json")]):
        subprocess.run([sys.executable, "-m", "coverage", *step], cwd=TREE, env=variables, check=True)


def python_counts() -> dict[str, Counts]:
    found = json.loads((BUILD / "python.json").read_text())["files"]
    return {
        name: dict.fromkeys(each["executed_lines"], 1) | dict.fromkeys(each["missing_lines"], 0)
        for name, each in found.items()
    }


def native_counts() -> dict[str, Counts]:
    """Return the counts of C++ files and of Cython files."""
    report = BUILD / "native.json"
    options = ["--json", str(report), "--root", str(TREE), "--gcov-ignore-parse-errors", "--merge-lines"]
    options += ["--include-internal-functions"]  # whose names begin with two underscores, as Cython's do
    call("gcov", [sys.executable, "-m", "gcovr", *options, "--exclude", ".*/tests/", str(BUILD)], TREE)
    files: dict[str, Counts] = {}
    for each in json.loads(report.read_text())["files"]:
        counts: Counts = {}
        for line in each["lines"]:  # one for each instance of a template
            number = int(line["line_number"])
            counts[number] = max(int(line["count"]), counts.get(number, 0))
        if each["file"].startswith("native/"):
            files[each["file"]] = counts
        elif each["file"].startswith("src/"):
            files |= cython_counts(TREE / each["file"], counts)
    return files


def cython_counts(generated: Path, counts: Counts) -> dict[str, Counts]:
    """Map the counts of a generated file to the Cython sources: a line was executed if any of its code was."""
    files: dict[str, Counts] = defaultdict(dict)
    for number, (name, line) in origins(generated.read_text(errors="replace").splitlines()):
        if number in counts:
            lines = files[f"src/{name}"]
            lines[line] = max(counts[number], lines.get(line, 0))
    return files


def origins(lines: Iterable[str]) -> Iterator[tuple[int, tuple[str, int]]]:
    """Yield the number and the Cython line of each generated line that follows a comment with an origin."""
    origin = None
    for number, line in enumerate(lines, start=1):
        if (found := _ORIGIN.search(line)) is not None:
            origin = (found[1], int(found[2]))
        if line.startswith("}"):  # the end of a function: what follows belongs to no line
            origin = None
        if origin is not None:
            yield number, origin


def show(files: dict[str, Counts]) -> set[str]:
    """Print the totals of each language, and the files below the limit with the reasons. Return these files."""
    totals: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    low = []
    for name, counts in sorted(files.items()):
        executed, lines = sum(count > 0 for count in counts.values()), len(counts)
        language = {".py": "Python", ".cpp": "C++", ".hpp": "C++"}.get(Path(name).suffix, "Cython")
        totals[language][0] += executed
        totals[language][1] += lines
        if lines and 100 * executed / lines < LOW:
            low.append((100 * executed / lines, executed, lines, name))
    print(f"\n{'lines':>7} {'executed':>9} {'percent':>8}")
    for language, (executed, lines) in totals.items():
        print(f"{lines:7,} {executed:9,} {100 * executed / lines:8.1f}  {language}")
    print(f"\nfiles below {LOW:.0f} %: {len(low)}")
    known = reasons()
    for percent, executed, lines, name in sorted(low):
        print(f"{lines:7,} {executed:9,} {percent:8.1f}  {name}: {known.get(name, 'NO REASON')}")
    return {name for *_, name in low}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
