"""The programs of `dev.py bench programs` in whole processes."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.parametrize("launcher", [[], ["-m", "forebay", "run", "--quiet"]], ids=["plain", "run"])
def test_program_waits_for_the_end_of_its_input_before_its_time_begins(launcher, root, tmp_path):
    script = str(root / "benchmarks/package_programs.py")
    command = [sys.executable, *launcher, script, "numpy_growing_list_of_arrays", "--wait"]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, cwd=tmp_path, text=True
    ) as program:
        assert program.stdout.readline() == "ready\n"
        output, _ = program.communicate(timeout=60)  # closes the input
    assert program.returncode == 0, output
    assert output.startswith("seconds "), output
