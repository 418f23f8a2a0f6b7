"""The conformance suite on Apple's GPU."""

from __future__ import annotations

import tempfile
from pathlib import Path

from gpu.conformance import SUITE
from gpu.part import Job, Outcome, execute
from gpu.pytest_runs import run_tests

SECONDS = 1700.0  # less than the part's limit


def conform(job: Job) -> Outcome:
    """Run the suite; quickly, some of its tests."""
    selected = "mps:0 and (copy or fill or tick)" if job.quick else "mps:0"
    with tempfile.TemporaryDirectory(prefix="forebay-suite-") as folder:
        suite = Path(folder) / "test_conformance.py"  # away from the conftest.py of forebay's own tests
        suite.write_text(SUITE)
        run = run_tests(["-k", selected, f"--rootdir={folder}", str(suite)], Path(folder), SECONDS)
    counts = ", ".join(f"{number} {name}" for name, number in run.counts.items())
    passed = run.status == 0 and run.counts["passed"] > 0
    return Outcome("ok" if passed else "failed", counts or "no test ran", [] if passed else run.problems())


if __name__ == "__main__":
    execute(conform)
