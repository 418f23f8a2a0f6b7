"""examples/torch_like_program.py prints the same with its imports changed back to torch.cuda."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest
from support.on_oracle import ORACLE, why_no_oracle

CHANGED = re.compile(r"^.*forebay.*  # (.*torch.*)$", re.MULTILINE)  # the imports
LIMIT = 100  # seconds


def output_of(*command, **settings):
    done = subprocess.run(
        [*map(str, command)], capture_output=True, text=True, timeout=LIMIT, check=False, env=os.environ | settings
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def comparable(line):
    """Return the line without numbers that require kernels: the oracle's fake CUDA neither runs nor replays any."""
    return line.partition(":")[0] if line.startswith(("random:", "replayed:")) else line


@pytest.fixture(scope="module")
def example(root):
    return root / "examples/torch_like_program.py"


@pytest.fixture(scope="module")
def forebay_output(example):
    return output_of(sys.executable, example, FOREBAY_EMULATE="cuda:2@h200")


def test_example_runs_on_two_emulated_devices(forebay_output):
    assert forebay_output[:2] == [f"device {index}: NVIDIA H200, 132 SMs, 143156 MiB" for index in (0, 1)]
    assert "pipeline: 8 batches came back, unchanged: True" in forebay_output
    assert "3 MiB are in use; the segments have [20, 30] MiB" in forebay_output
    replayed = [line for line in forebay_output if "replayed" in line]
    assert replayed == [f"replayed: {[number] * 3}" for number in (1.0, 2.0)]
    assert "buffer: 128 GiB" in forebay_output
    assert "random: [0.399, 0.5167, 0.0249, 0.9401, 0.9459]" in forebay_output  # as on real GPUs, pytorch#47347


def test_example_runs_on_a_smaller_device(example):
    assert "buffer: 8 GiB" in output_of(sys.executable, example, FOREBAY_EMULATE="cuda:2@t4")


@pytest.mark.oracle
@pytest.mark.skipif(bool(why_no_oracle()), reason=why_no_oracle())
def test_pytorch_prints_the_same(example, forebay_output, tmp_path):
    source, changes = CHANGED.subn(r"\1", example.read_text())
    assert changes == 2
    assert "forebay" not in source.split('"""')[2]
    program = tmp_path / "program.py"
    program.write_text(source)
    torch_output = output_of("bash", ORACLE, program, FAKE_CUDA_DEVICES="2")
    assert [*map(comparable, torch_output)] == [*map(comparable, forebay_output)]
