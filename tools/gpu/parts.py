"""The parts of a run, each in a child process with a time limit."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from steps import ROOT

from gpu.part import RESULT, Outcome

__all__ = ["PARTS", "Part", "Result", "run_part"]

TOOLS = ROOT / "tools"
_TAIL = 40  # lines of the output of a part that did not end by itself
_KILLED = 10.0  # seconds for a killed process to end; one that is stuck in the driver does not


@dataclass(frozen=True)
class Part:
    """A part: the name of its module, its title and its time limit."""

    name: str
    title: str
    seconds: float
    required: bool = True  # for the entry of verified hardware; other parts may be left out
    package: str = "gpu"  # of its module


PARTS = (
    Part("conformance", "Conformance suite", 1800),
    Part("faces", "Recorded scenes of torch.cuda", 1800),
    Part("random_numbers", "Random numbers beside PyTorch's", 900, required=False),
    Part("allocator_statistics", "Allocator statistics beside PyTorch's", 300, required=False),
    Part("graphs", "Graphs", 300),
    Part("interoperability", "Exchange and allocators with CuPy, Numba, PyTorch and RMM", 900, required=False),
    Part("benchmarks", "Benchmarks", 900),
)


@dataclass(frozen=True)
class Result:
    """A part, what it found, and the seconds it took."""

    part: Part
    outcome: Outcome
    seconds: float


def run_part(part: Part, *, quick: bool) -> Result:
    """Run a part in a child process."""
    start = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="forebay-gpu-") as folder:
        result, log = Path(folder) / RESULT, Path(folder) / "log.txt"
        command = [sys.executable, "-m", f"{part.package}.{part.name}", folder, f"{part.seconds:.1f}"]
        command += ["--quick"] if quick else []
        status = _run(command, log, part.seconds)
        ended = result.exists()
        if ended:
            outcome = Outcome(**json.loads(result.read_text()))
        else:
            why = f"stopped after {part.seconds:.0f} s" if status is None else f"its process ended with {status}"
            tail = log.read_text(errors="replace").splitlines()[-_TAIL:]
            outcome = Outcome("failed", why, ["```text", *tail, "```"])
    return Result(part, outcome, time.monotonic() - start)


def environment() -> dict[str, str]:
    """Return the variables of a part's process, which imports from this folder and from tests/."""
    paths = [str(TOOLS), str(ROOT / "tests"), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}


def _run(command: list[str], log: Path, seconds: float) -> int | None:
    """Return the exit status of a command, or None if it was stopped at its limit."""
    with log.open("wb") as out:
        process = subprocess.Popen(
            command, cwd=ROOT, env=environment(), stdout=out, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            return process.wait(seconds)
        except subprocess.TimeoutExpired:
            return None
        finally:
            if process.poll() is None:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)  # the part and what it started
                with suppress(subprocess.TimeoutExpired):
                    process.wait(_KILLED)
