"""Programs that use the runtime part of PyTorch print on forebay what they print on PyTorch 2.15.

A program runs as it is, after `forebay.torch_alias.install()`; one that imports no submodules also with its import
changed to `import forebay as torch`. Both sides have two devices of 4 GiB. To record the output of PyTorch on the
oracle: `PYTHONPATH=tests python3 tests/test_import_as_torch.py`.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.on_oracle import ORACLE, why_no_oracle

PROGRAMS = sorted((Path(__file__).parent / "data/programs").glob("*.py"))
DEVICES = {"FAKE_CUDA_DEVICES": "2", "FAKE_CUDA_TOTAL_MB": "4096", "FAKE_CUDA_CONTEXT_MB": "0"}

EMULATE = "import forebay, runpy, sys; forebay.emulate('cuda', count=2, profile='h200', memory='4GiB');"
INSTALL = "from forebay.torch_alias import install; install();"
RUN = "runpy.run_path(sys.argv[1], run_name='__main__')"

each_program = pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.stem)


def record_of(program: Path) -> Path:
    return program.with_suffix(".txt")


def output_on_forebay(preparation: str, program: Path) -> str:
    command = [sys.executable, "-c", EMULATE + preparation + RUN, str(program)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=100)
    assert done.stderr == ""
    return done.stdout.replace("forebay.", "torch.")


def output_on_torch(program: Path) -> str:
    command = ["bash", str(ORACLE), str(program)]
    return subprocess.run(
        command, env=os.environ | DEVICES, capture_output=True, text=True, check=True, timeout=100
    ).stdout


@each_program
def test_program_prints_what_pytorch_prints(program):
    assert output_on_forebay(INSTALL, program) == record_of(program).read_text()


def test_program_with_changed_import_prints_what_pytorch_prints(tmp_path):
    program = Path(__file__).parent / "data/programs/top_level.py"
    changed = tmp_path / program.name
    changed.write_text(program.read_text().replace("import torch\n", "import forebay as torch\n"))
    assert output_on_forebay("", changed) == record_of(program).read_text()


@pytest.mark.oracle
@pytest.mark.skipif(bool(why_no_oracle()), reason=why_no_oracle())
@each_program
def test_recorded_output_matches_pytorch(program):
    assert output_on_torch(program) == record_of(program).read_text()


if __name__ == "__main__":
    for each in PROGRAMS:
        record_of(each).write_text(output_on_torch(each))
