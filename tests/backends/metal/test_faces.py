"""Tests of the names of torch.mps, written for emulated devices, with the Metal backend on the stand-in."""

from __future__ import annotations

import pytest
from support import metal_processes

# Written for an emulated device, which has neither.
LISTED = (
    "tests/mps/test_mps.py::test_shader_functions_are_unsupported",
    "tests/mps/test_profiler.py::test_metal_capture_is_unsupported",
)


@pytest.mark.timeout(metal_processes.LIMIT + 60)
def test_tests_of_names_pass(root):
    deselected = [f"--deselect={name}" for name in LISTED]
    suites = ("tests/mps", "tests/names/test_three_kinds.py")
    done = metal_processes.run_pytest(
        "-m", "not slow", "-rA", "--tb=short", *deselected, *suites, cwd=root, plugin=True
    )
    found = metal_processes.outcomes(done.stdout)
    assert found["FAILED"] | found["ERROR"] == set(), done.stdout[-20000:]
    assert len(found["PASSED"]) > 240, done.stdout[-5000:] + done.stderr[-2000:]


def test_listed_tests_fail(root):
    done = metal_processes.run_pytest("-rA", *LISTED, cwd=root, plugin=True)
    assert metal_processes.outcomes(done.stdout)["FAILED"] == {*LISTED}, done.stdout[-5000:]
