"""tools/suite.py: tests that fail in a parallel run are repeated alone, and named if they pass then."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys

import pytest

PASSES_ALONE = """
import os
def test_beside_others():
    assert "PYTEST_XDIST_WORKER" not in os.environ
"""
FAILS = "\ndef test_broken():\n    assert False\n"
PASSES = "\ndef test_right():\n    pass\n"
PARALLEL = ["--numprocesses=2", "--dist=worksteal"]


@pytest.fixture
def suite(root, tmp_path):
    """Return a function that runs tools/suite.py over a file of tests, and returns its status and output."""
    (tmp_path / "pytest.ini").write_text("[pytest]\n")

    def run(source: str) -> tuple[int, str]:
        (tmp_path / "test_suite_file.py").write_text(source)
        command = [sys.executable, str(root / "tools/suite.py"), *PARALLEL]
        variables = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
        done = subprocess.run(
            command, cwd=tmp_path, env=variables, capture_output=True, text=True, check=False, timeout=100
        )
        return done.returncode, done.stdout

    return run


def test_test_that_passes_alone_is_named_and_does_not_fail_the_run(suite):
    status, output = suite(PASSES + PASSES_ALONE)
    assert status == 0
    assert "1 failed, 1 passed" in output  # the first run
    end = output[output.index("passed alone (1)") :]
    assert end.split("\n")[1:2] == ["  test_suite_file.py::test_beside_others"]


def test_test_that_fails_alone_fails_the_run(suite):
    status, output = suite(PASSES + PASSES_ALONE + FAILS)
    assert status == 1
    assert "Run again alone (2)" in output
    assert "passed alone (1)" in output


@pytest.mark.parametrize(("status", "failed"), [(0, 0), (1, 11), (2, 1), (130, 3)])
def test_other_runs_end_after_the_first(root, tmp_path, monkeypatch, status, failed):
    monkeypatch.syspath_prepend(root / "tools")
    suite = importlib.import_module("suite")
    runs = []
    monkeypatch.chdir(tmp_path)
    suite.LAST_FAILED.parent.mkdir(parents=True)
    suite.LAST_FAILED.write_text(json.dumps({f"test_{number}": True for number in range(failed)}))
    monkeypatch.setattr(suite, "pytest", lambda *arguments: runs.append(arguments) or status)
    assert suite.main(PARALLEL) == status
    assert runs == [("--cache-clear", *PARALLEL)]
