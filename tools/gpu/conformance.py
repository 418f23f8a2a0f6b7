"""The conformance suite on every GPU of the machine."""

from __future__ import annotations

import tempfile
from pathlib import Path

from gpu.part import Job, Outcome, execute
from gpu.pytest_runs import run_tests

SUITE = """from forebay.testing.conformance import *

pytest_plugins = ["forebay.testing.plugin"]
"""
# The suite opens a device for each test. Where nothing else keeps its primary context, CUDA creates and destroys it
# each time, which takes longer than the tests.
KEPT = """
import pytest
from cuda.bindings import driver as api


@pytest.fixture(scope="session", autouse=True)
def primary_contexts():
    api.cuInit(0)
    devices = [api.cuDeviceGet(index)[1] for index in range(api.cuDeviceGetCount()[1])]
    for device in devices:
        api.cuDevicePrimaryCtxRetain(device)
    yield
    for device in devices:
        api.cuDevicePrimaryCtxRelease(device)
"""
LEFT_OUT = "(test_draws_computed_from_tensors_match_the_cpu_device and with)"
WHY_LEFT_OUT = "`normal` with tensors as parameters computes with NumPy, which cannot access a GPU's memory"
LAST = 3.0  # seconds that are left to report


def conform(job: Job) -> Outcome:
    """Run the suite; quickly, some of its tests on the first GPU."""
    selected = "cuda:0 and (copy or fill or tick)" if job.quick else "cuda:"
    with tempfile.TemporaryDirectory(prefix="forebay-suite-") as folder:
        suite = Path(folder) / "test_conformance.py"  # away from the conftest.py of forebay's own tests
        suite.write_text(SUITE + KEPT)
        run = run_tests(
            ["-k", f"{selected} and not {LEFT_OUT}", f"--rootdir={folder}", str(suite)],
            Path(folder),
            job.remaining() - LAST,
            job.folder / "pytest.txt",
        )
    return run.outcome([f"Left out: {WHY_LEFT_OUT}."])


if __name__ == "__main__":
    execute(conform)
