"""The Metal backend passes the conformance suite on the stand-in, on a small and on a large machine."""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
import stand_in

# The host cannot access memory of a GPU of its own.
LEFT_OUT = "(test_draws_computed_from_tensors_match_the_cpu_device and with)"


@pytest.mark.timeout(stand_in.LIMIT + 60)
@pytest.mark.parametrize(
    ("machine", "selected", "least"),
    [
        ("m1-8gib", "mps:0", 250),
        ("m2-ultra-192gib", "mps:0 and (memory or reserve or describe or closed)", 15),
        ("intel", f"mps:0 and not {LEFT_OUT}", 245),
    ],
)
def test_backend_conforms(tmp_path, machine, selected, least):
    suite = shutil.copy(stand_in.HERE / "conformance.py", tmp_path)  # away from the conftest.py of this suite
    done = stand_in.run_pytest("-k", selected, f"--rootdir={tmp_path}", suite, cwd=tmp_path, machine=machine)
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]
    passed = re.search(r"(\d+) passed", done.stdout)
    assert passed is not None
    assert int(passed[1]) >= least
