"""Programs that run on the real PyTorch over the oracle, with forebay on the same stand-in runtime."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
import rich

from support.beside import paths_of_sources
from support.on_oracle import ORACLE, why_no_oracle

__all__ = ["on_oracle", "run_on_oracle"]

_TIMEOUT = 110  # seconds
_BEGIN = f"""
import sys
sys.path.append({str(Path(rich.__file__).parents[1])!r})  # of the requirements that the oracle's environment lacks
from forebay import backends
from support.oracle_driver import OracleDriver

driver = OracleDriver()
override = backends.override_driver(driver)
override.__enter__()
"""


def on_oracle(test):
    """Mark a test that needs the oracle."""
    return pytest.mark.oracle(pytest.mark.skipif(bool(why_no_oracle()), reason=why_no_oracle() or "it is there")(test))


def run_on_oracle(program: str, *, megabytes: int = 256, devices: int = 1) -> subprocess.CompletedProcess[str]:
    """Run a program; its `driver` has forebay's CUDA devices."""
    where = {**os.environ, "PYTHONPATH": paths_of_sources()}
    where |= {"FAKE_CUDA_TOTAL_MB": str(megabytes), "FAKE_CUDA_DEVICES": str(devices)}
    command = ["bash", str(ORACLE), "-c", _BEGIN + program]
    return subprocess.run(command, env=where, capture_output=True, text=True, timeout=_TIMEOUT, check=False)
