"""The conformance suite on Apple's GPU."""

from __future__ import annotations

import tempfile
from pathlib import Path

from gpu.conformance import SUITE
from gpu.part import Job, Outcome, execute
from gpu.pytest_runs import run_tests

LAST = 10.0  # seconds that are left to report


def conform(job: Job) -> Outcome:
    """Run the suite; quickly, some of its tests."""
    selected = "mps:0 and (copy or fill or tick)" if job.quick else "mps:0"
    with tempfile.TemporaryDirectory(prefix="forebay-suite-") as folder:
        suite = Path(folder) / "test_conformance.py"  # away from the conftest.py of forebay's own tests
        suite.write_text(SUITE)
        arguments = ["-k", selected, f"--rootdir={folder}", str(suite)]
        run = run_tests(arguments, Path(folder), job.remaining() - LAST, job.folder / "pytest.txt")
    return run.outcome()


if __name__ == "__main__":
    execute(conform)
