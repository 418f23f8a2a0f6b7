"""Environments over .venv that `dev.py test` installs for other libraries: .venv/numba and .venv/torch."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

__all__ = ["NUMBA", "TORCH", "lines_with_torch", "needs_torch", "paths_of_sources"]

NUMBA, TORCH = (Path(sys.prefix, name, "bin/python") for name in ("numba", "torch"))
_ROOT = Path(__file__).parents[2]
_TIMEOUT = 300  # seconds

needs_torch = pytest.mark.skipif(
    not TORCH.exists(), reason="PyTorch and JAX are not installed: `python3 dev.py test` installs them"
)


def paths_of_sources() -> str:
    """Return PYTHONPATH for the sources and the tests of this repository, without the packages of .venv."""
    return os.pathsep.join(str(_ROOT / folder) for folder in ("src", "tests"))


def lines_with_torch(program: str, **variables: str) -> list[str]:
    """Return the lines that a Python program prints in the environment of PyTorch and JAX, where it must succeed."""
    where = {**os.environ, "PYTHONPATH": paths_of_sources(), **variables}
    command = [str(TORCH), "-c", program]
    done = subprocess.run(command, env=where, capture_output=True, text=True, timeout=_TIMEOUT, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.splitlines()
