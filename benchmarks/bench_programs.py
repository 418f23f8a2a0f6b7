"""Programs of well-known packages (package_programs.py) under plain Python and under `forebay run`, in turns.

Time is the program's processor time, without imports and the report. Memory is the peak of the process (RSS), the
report included. The packages are installed in an environment of their own, as they restrict NumPy's version:
$FOREBAY_PROGRAMS_VENV, or `.venv-programs` beside `.venv`. Arguments of the script are names of programs and
`--rounds=N`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import tomllib
import venv
from pathlib import Path
from statistics import median

from measure import console, show, table
from package_programs import PACKAGES, PROGRAMS

ROOT = Path(__file__).parents[1]
ENVIRONMENT = Path(os.environ.get("FOREBAY_PROGRAMS_VENV") or ROOT / ".venv-programs")
ROUNDS = 7
MIB = 1 << 20
MEMORY_RATIO, MEMORY_OFFSET, TIME_RATIO = 1.15, 48 * MIB, 1.05  # the goals
# Runs its arguments and prints their output and the peak of their memory in bytes.
MEASURE = """
import json, resource, subprocess, sys
done = subprocess.run(sys.argv[1:], stdout=subprocess.PIPE, text=True)
peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
print(json.dumps([done.returncode, done.stdout, peak]))
"""


def python() -> str:
    """Return the interpreter of the environment, which is made if it is missing."""
    found = ENVIRONMENT / "bin/python"
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    if not found.exists():
        venv.create(ENVIRONMENT, with_pip=True)
    subprocess.run([found, "-m", "pip", "install", "--quiet", *PACKAGES, *project["dependencies"]], check=True)
    return str(found)


def run(*command: str) -> tuple[float, int]:
    """Run a program once. Returns its seconds and the peak of its memory in bytes."""
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT / "src")}
    with tempfile.TemporaryDirectory() as folder:
        measure = [sys.executable, "-c", MEASURE, *command]
        measured = subprocess.run(measure, cwd=folder, env=environment, capture_output=True, text=True, check=True)
    status, output, peak = json.loads(measured.stdout)
    if status:
        raise SystemExit(f"{' '.join(command)} failed:\n{measured.stderr[-2000:]}")
    seconds = next(line.split()[1] for line in output.splitlines() if line.startswith("seconds "))
    return float(seconds), peak


def main(arguments: list[str]) -> None:
    rounds = next((int(each.partition("=")[2]) for each in arguments if each.startswith("--rounds=")), ROUNDS)
    names = [each for each in arguments if not each.startswith("-")] or [*PROGRAMS]
    interpreter, missed = python(), 0
    program = str(Path(__file__).with_name("package_programs.py"))
    result = table(
        f"Programs of packages, median of {rounds}",
        "program", "seconds", "forebay", "ratio", "MiB", "forebay", "ratio", "goals",
    )  # fmt: skip
    for name in names:
        plain, recorded = [], []
        for _ in range(rounds):
            plain.append(run(interpreter, program, name))
            recorded.append(run(interpreter, "-m", "forebay", "run", "--quiet", program, name))
        (plain_time, plain_peak), (time, peak) = (
            tuple(median(column) for column in zip(*runs, strict=True)) for runs in (plain, recorded)
        )
        reached = time <= TIME_RATIO * plain_time and peak <= MEMORY_RATIO * plain_peak + MEMORY_OFFSET
        missed += not reached
        row = [name, f"{plain_time:.2f}", f"{time:.2f}", f"{time / plain_time:.2f}"]
        row += [f"{plain_peak / MIB:.0f}", f"{peak / MIB:.0f}", f"{peak / plain_peak:.2f}"]
        result.add_row(*row, "reached" if reached else "missed")
        console.log(" ".join(row))
    show(result)
    console.print(f"{len(names) - missed} of {len(names)} programs reach the goals: time at most {TIME_RATIO} times, ")
    console.print(f"memory at most {MEMORY_RATIO} times and {MEMORY_OFFSET // MIB} MiB more than plain Python's")


if __name__ == "__main__":
    main(sys.argv[1:])
