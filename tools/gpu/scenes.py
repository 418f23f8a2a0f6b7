"""The recorded scenes of torch.cuda (tests/names/scenes) on the GPUs of this machine, each file in its own process.

A scene that ends its process, for example because the host accesses memory of the GPU, affects only its file.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from steps import ROOT

import forebay
from gpu.part import Job, Outcome, execute
from gpu.pytest_runs import TestRun, run_tests

TESTS = "tests/names/test_scenes.py"
PLUGIN = "gpu.real_devices"
QUICK = ("events", "streams", "untyped_storages")  # files of scenes
ONCE = "ignore:TypedStorage is deprecated:UserWarning"  # once in a process: an error in the first scene that uses one
PER_FILE, LAST = 120.0, 3.0  # seconds of a file, and those that are left to report
WORKERS = min(len(os.sched_getaffinity(0)) if sys.platform == "linux" else 1, 8)  # each has a context of the GPU


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
    table = tomllib.loads((Path(__file__).parent / "scenes.toml").read_text())
    reasons = {reason: {*names} for part in ("scenes", "scenes_of_gpus") for reason, names in table[part].items()}
    if forebay.device_count("cuda") < 2:
        reasons["they need two GPUs"] = {*table["two_devices"]}
    return reasons


def compare(job: Job) -> Outcome:
    """Run the scenes file by file."""
    reasons = left_out()
    excluded = {name for names in reasons.values() for name in names}
    selected = {stem: [name for name in names if name not in excluded] for stem, names in scenes().items()}
    files = {stem: names for stem, names in selected.items() if names and (not job.quick or stem in QUICK)}
    counts: Counter[str] = Counter()
    problems: list[str] = []
    late: list[str] = []

    def run_file(stem: str) -> TestRun | None:
        rest = job.remaining() - LAST
        tests = [f"{TESTS}::test_forebay_does_as_recorded[{name}]" for name in files[stem]]
        return (
            run_tests([f"-p{PLUGIN}", "-W", ONCE, *tests], ROOT, min(PER_FILE, rest), job.folder / f"{stem}.txt")
            if rest > 0
            else None
        )

    def outcome() -> Outcome:
        lines = [f"* {len(names)} scenes were left out: {reason}." for reason, names in reasons.items()]
        lines += [f"* {len(late)} files of scenes did not end in time: {', '.join(late)}."] if late else []
        detail = ", ".join(f"{number} {name}" for name, number in counts.items())
        status = "failed" if problems or not counts["passed"] else "incomplete" if late else "ok"
        return Outcome(status, detail, [*problems, *lines])

    with ThreadPoolExecutor(WORKERS) as pool:
        for stem, run in zip(files, pool.map(run_file, files), strict=True):
            if run is not None:
                counts += run.counts
            if run is None or (run.late and not run.failed):
                late.append(stem)
            elif run.status:
                problems += [f"File {stem}:", "", *run.problems(), ""]
            job.save(outcome())
    return outcome()


if __name__ == "__main__":
    execute(compare)
