"""The Metal backend passes the conformance suite on the stand-in, on a small and on a large machine."""

from __future__ import annotations

import re
import shutil

import pytest
from support import metal_processes

# The host cannot access memory of a GPU of its own.
LEFT_OUT = "(test_draws_computed_from_tensors_match_the_cpu_device and with)"


@pytest.mark.timeout(metal_processes.LIMIT + 60)
@pytest.mark.parametrize(
    ("machine", "selected", "least"),
    [
        ("m1-8gib", "mps:0", 250),
        ("m2-ultra-192gib", "mps:0 and (memory or reserve or describe or closed)", 15),
        ("intel", f"mps:0 and not {LEFT_OUT}", 245),
    ],
)
def test_backend_conforms(tmp_path, machine, selected, least):
    suite = shutil.copy(metal_processes.HERE / "conformance.py", tmp_path)  # away from the conftest.py of this suite
    done = metal_processes.run_pytest("-k", selected, f"--rootdir={tmp_path}", suite, cwd=tmp_path, machine=machine)
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]
    passed = re.search(r"(\d+) passed", done.stdout)
    assert passed is not None
    assert int(passed[1]) >= least
