"""The tests that need PyTorch in their own process, in the environment .venv/torch."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from support.beside import TORCH, needs_torch, paths_of_sources

ROOT = Path(__file__).parents[2]
FOLDER = Path(__file__).parent / "torch"
FILES = [path for path in sorted(FOLDER.rglob("test_*.py")) if "importorskip" in path.read_text()]


@needs_torch
@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(FOLDER)))
@pytest.mark.timeout(600)
def test_file_passes_with_torch(file):
    command = [str(TORCH), "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:randomly", str(file)]
    environment = {**os.environ, "PYTHONPATH": paths_of_sources()}
    environment.pop("PYTEST_XDIST_WORKER", None)
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=590, check=False
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-20_000:] + done.stderr
    assert " passed" in done.stdout
