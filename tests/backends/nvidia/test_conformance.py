"""The CUDA backend passes the conformance suite on the software driver."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys

import pytest
from support import software_driver

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the software driver is built for Linux")

# These tests start a process that looks for devices of its own, or compute with NumPy in device memory.
LEFT_OUT = (
    "test_queued_work_completes_at_exit or test_seed_set_before_first_use_applies "
    "or (test_draws_computed_from_tensors_match_the_cpu_device and with)"
)
LIMIT = 600  # seconds; the kernels are compiled once


@pytest.mark.timeout(LIMIT + 60)
def test_backend_conforms(tmp_path):
    suite = shutil.copy(software_driver.SOURCES / "conformance.py", tmp_path)  # away from the conftest.py of this suite
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--timeout=60", f"--rootdir={tmp_path}"]
    done = subprocess.run(
        [*command, "-k", f"cuda:0 and not ({LEFT_OUT})", suite],
        env=software_driver.environment(),
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]
    passed = re.search(r"(\d+) passed", done.stdout)
    assert passed is not None
    assert int(passed[1]) > 240
