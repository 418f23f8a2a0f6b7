"""The recorded scenes of torch.cuda (tests/faces/scenes) on the GPUs of this machine, each file in its own process.

A scene that ends its process, for example because the host accesses memory of the GPU, affects only its file.
"""

from __future__ import annotations

import re
import subprocess
import sys
import time
import tomllib
from collections import Counter
from pathlib import Path

from steps import ROOT

import forebay
from gpu.part import Job, Outcome, execute
from gpu.pytest_runs import run_tests

TESTS = "tests/faces/test_scenes.py"
PLUGIN = "gpu.real_devices"
QUICK = ("events", "streams", "untyped_storages")  # files of scenes
ONCE = "ignore:TypedStorage is deprecated:UserWarning"  # once in a process: an error in the first scene that uses one
DEADLINE, PER_FILE = 1700.0, 300.0  # seconds


def scenes() -> dict[str, list[str]]:
    """Return the scenes of each file. Those that need a new process, which would use emulated devices, are left out."""
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "--collect-only",
        "-m",
        "not slow",
        "-p",
        "no:cacheprovider",
        TESTS,
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=PER_FILE, check=False)
    found: dict[str, list[str]] = {}
    for name, stem in re.findall(r"test_forebay_does_as_recorded\[((\w+)-\w+)\]", done.stdout):
        found.setdefault(stem, []).append(name)
    if not found:
        raise RuntimeError(f"no scene was found: {done.stdout[-500:]}{done.stderr[-500:]}")
    return found


def left_out() -> dict[str, set[str]]:
    """Return the scenes that are left out on this machine, by the reason."""
    table = tomllib.loads((Path(__file__).parent / "faces.toml").read_text())
    reasons = {reason: {*names} for part in ("scenes", "scenes_of_gpus") for reason, names in table[part].items()}
    if forebay.device_count("cuda") < 2:
        reasons["they need two GPUs"] = {*table["two_devices"]}
    return reasons


def compare(job: Job) -> Outcome:
    """Run the scenes file by file."""
    reasons, end = left_out(), time.monotonic() + DEADLINE
    excluded = {name for names in reasons.values() for name in names}
    counts: Counter[str] = Counter()
    problems: list[str] = []
    for stem, names in scenes().items():
        selected = [name for name in names if name not in excluded]
        if not selected or (job.quick and stem not in QUICK):
            continue
        if (rest := end - time.monotonic()) <= 0:
            problems.append(f"* {stem}: not run within {DEADLINE:.0f} s")
            continue
        tests = [f"{TESTS}::test_forebay_does_as_recorded[{name}]" for name in selected]
        run = run_tests(["-p", PLUGIN, "-W", ONCE, *tests], ROOT, min(PER_FILE, rest))
        counts += run.counts
        if run.status:
            problems += [f"File {stem}:", "", *run.problems(), ""]
    detail = ", ".join(f"{number} {name}" for name, number in counts.items())
    lines = [f"* {len(names)} scenes were left out: {reason}." for reason, names in reasons.items()]
    return Outcome("failed" if problems or not counts["passed"] else "ok", detail, [*problems, *lines])


if __name__ == "__main__":
    execute(compare)
