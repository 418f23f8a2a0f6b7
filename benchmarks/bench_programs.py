"""Programs of well-known packages (package_programs.py) under plain Python and under `forebay run`, in turns.

Time is the program's processor time, without imports and the report. Memory is the peak of the process (RSS), the
report included. The packages are installed in an environment of their own, as they restrict NumPy's version:
$FOREBAY_PROGRAMS_VENV, or `.venv-programs` beside `.venv`.

Some hypervisors take back the free pages of a virtual machine (free page reporting), in units of 2 MiB. The next access
to such a unit takes 2 to 4 ms instead of 0.4, in any program, but small pages mostly come from other units. Therefore
each program waits after its imports until this process has written to memory and returned it to the system.

Arguments of the script are names of programs, `--rounds=N`, and `--cold`, which measures without that write.
"""

from __future__ import annotations

import mmap
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
WARMED = 512 * MIB  # about as much as the largest program uses
# Runs its arguments and prints the peak of their memory in bytes.
MEASURE = """
import resource, subprocess, sys
status = subprocess.run(sys.argv[1:]).returncode
print("peak", resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * (1 if sys.platform == "darwin" else 1024))
sys.exit(status)
"""


def python() -> str:
    """Return the interpreter of the environment, which is made if it is missing."""
    found = ENVIRONMENT / "bin/python"
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    if not found.exists():
        venv.create(ENVIRONMENT, with_pip=True)
    subprocess.run([found, "-m", "pip", "install", "--quiet", *PACKAGES, *project["dependencies"]], check=True)
    return str(found)


def warm_memory() -> None:
    """Write to memory, on huge pages if there are any, and return it to the system."""
    with mmap.mmap(-1, WARMED, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
        if hasattr(mmap, "MADV_HUGEPAGE"):
            memory.madvise(mmap.MADV_HUGEPAGE)
        for page in range(0, WARMED, mmap.PAGESIZE):
            memory[page] = 1


def run(*command: str, warm: bool) -> tuple[float, int]:
    """Run a program once. Returns its seconds and the peak of its memory in bytes."""
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT / "src")}
    measured, output = {}, []
    with (
        tempfile.TemporaryDirectory() as folder,
        subprocess.Popen(
            [sys.executable, "-c", MEASURE, *command, "--wait"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            cwd=folder, env=environment, text=True,
        ) as process,
    ):  # fmt: skip
        assert process.stdin is not None
        assert process.stdout is not None
        for line in process.stdout:
            output.append(line)
            name, _, value = line.strip().partition(" ")
            if name in ("seconds", "peak"):
                measured[name] = float(value)
            elif name == "ready":
                if warm:
                    warm_memory()
                process.stdin.close()
    if process.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{''.join(output)[-2000:]}")
    return measured["seconds"], int(measured["peak"])


def main(arguments: list[str]) -> None:
    rounds = next((int(each.partition("=")[2]) for each in arguments if each.startswith("--rounds=")), ROUNDS)
    warm = "--cold" not in arguments
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
            plain.append(run(interpreter, program, name, warm=warm))
            recorded.append(run(interpreter, "-m", "forebay", "run", "--quiet", program, name, warm=warm))
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
