"""The expected texts of wrong calls are those of PyTorch's CUDA build."""

from __future__ import annotations

import os
import subprocess

import pytest
from support.beside import paths_of_sources
from support.on_oracle import ORACLE_HOME, why_no_oracle
from support.operator_allocations import real_environment


@pytest.mark.oracle
@pytest.mark.skipif(bool(why_no_oracle()), reason=why_no_oracle())
@pytest.mark.timeout(300)
def test_wrong_calls_are_refused_with_the_expected_texts():
    environment = {**os.environ, "PYTHONPATH": paths_of_sources(), **real_environment()}
    command = [str(ORACLE_HOME / "venv/bin/python"), "-m", "support.wrong_calls"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=280, check=False)
    assert done.stdout.splitlines() == ["24 calls"], done.stdout + done.stderr
