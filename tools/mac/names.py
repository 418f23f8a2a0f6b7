"""The tests of torch.mps's names on Apple's GPU, without those that depend on the memory of an emulated device."""

from __future__ import annotations

import tomllib
from pathlib import Path

from gpu.part import Job, Outcome, execute
from gpu.pytest_runs import run_tests
from steps import ROOT

SUITES = ("tests/mps",)
QUICK = ("tests/mps/test_event.py", "tests/mps/test_streams.py")
LAST = 10.0  # seconds that are left to report


def left_out() -> dict[str, list[str]]:
    """Return the tests that are left out, by the reason."""
    table: dict[str, list[str]] = tomllib.loads((Path(__file__).parent / "names.toml").read_text())["tests"]
    return table


def compare(job: Job) -> Outcome:
    """Run the tests; quickly, those of events and streams."""
    reasons = left_out()
    deselected = [f"--deselect={name}" for names in reasons.values() for name in names]
    suites = QUICK if job.quick else SUITES
    arguments = ["-pmac.real_device", "-m", "not slow", *deselected, *suites]
    run = run_tests(arguments, ROOT, job.remaining() - LAST, job.folder / "pytest.txt")
    lines = [f"* {len(names)} tests were left out: {reason}." for reason, names in reasons.items()]
    return run.outcome(lines)


if __name__ == "__main__":
    execute(compare)
