"""`import forebay as torch`: the runtime part of a PyTorch program prints what it prints on PyTorch 2.15.

`python3 tests/test_import_as_torch.py` records the output of PyTorch on the oracle, with two devices.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).parent / "data/programs/top_level.py"
RECORD = PROGRAM.with_suffix(".txt")
ORACLE = Path(os.environ.get("ORACLE", Path(__file__).parents[2] / "shared/torch-oracle/run.sh"))


def torch_output() -> str:
    environ = os.environ | {"FAKE_CUDA_DEVICES": "2"}
    command = [str(ORACLE), str(PROGRAM)]
    return subprocess.run(command, env=environ, capture_output=True, text=True, check=True, timeout=100).stdout


def test_program_prints_what_pytorch_prints(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(PROGRAM.read_text().replace("import torch\n", "import forebay as torch\n"))
    environ = os.environ | {"FOREBAY_EMULATE": "cuda:2@h200"}
    done = subprocess.run(
        [sys.executable, str(program)], env=environ, capture_output=True, text=True, check=False, timeout=60
    )
    assert done.stderr == ""
    assert done.stdout.replace("forebay.", "torch.") == RECORD.read_text()


@pytest.mark.oracle
@pytest.mark.skipif(not ORACLE.exists(), reason="no oracle at ORACLE or beside the repository")
def test_recorded_output_matches_pytorch():
    assert torch_output() == RECORD.read_text()


if __name__ == "__main__":
    RECORD.write_text(torch_output())
