"""The demo, a plain NumPy program, under `forebay run`: with enough memory and with too little."""

from __future__ import annotations

import os
import re

import pytest

pytest.importorskip("sklearn", reason="the demo's data set is part of scikit-learn")


def test_demo_learns_and_is_reported(runner, root):
    demo = str(root / "examples/train_digits.py")
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}  # one thread per core is slow on a busy machine
    observed = runner.command("-m", "forebay", "run", demo, env=environment)
    assert observed.status == 0
    (accuracy,) = re.findall(r"^([\d.]+)% of the unknown digits read right", observed.out, re.MULTILINE)
    assert float(accuracy) >= 96
    assert "train_digits.py" in observed.err
    assert observed.snapshot.stats["allocated_bytes.all.peak"] > 16 << 20
    assert "forebay" not in (root / "examples/train_digits.py").read_text().split('"""')[2]


def test_demo_on_small_device_runs_out_of_memory(runner, root):
    observed = runner.command("-m", "forebay", "run", "--memory", "16MiB", str(root / "examples/train_digits.py"))
    assert observed.status == 1
    assert "OutOfMemory" in observed.own
    assert (observed.output / "report.html").exists()
