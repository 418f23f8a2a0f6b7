"""Accuracy task: rows and commands of the tables, constants of the other half, verdicts, and two rows that run."""

from __future__ import annotations

import csv
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed; test_with_torch.py runs this file")

TOOLS = Path(__file__).parents[2] / "tools"
MIB = 1 << 20
COLUMNS = (
    "id", "kind", "model", "optimizer", "batch", "input", "card", "total_bytes", "gpu_peak_bytes", "real_oom",
    "zero_grad", "xmem", "xmem_check", "dnnmem", "dnnmem_check", "schedtune", "schedtune_check", "llmem", "llmem_check",
)  # fmt: skip
# Rows of plot/data of github.com/Stone-ResearchLife/xMem at d61e0764.
ROWS = [
    ("MC-T-001-16-9ace", "openai-community-gpt2", "AdamW", 35, 11435769856, 11702108160),
    ("cerebras-35", "cerebras-Cerebras-GPT-111M", "AdamW", 35, 8738832384, 8879341568),
]


@pytest.fixture
def accuracy(monkeypatch):
    """Import the modules of the task."""
    monkeypatch.syspath_prepend(TOOLS)
    from accuracy import measurements, predictions, scores

    yield measurements, predictions, scores
    for name in [name for name in sys.modules if name.partition(".")[0] == "accuracy"]:
        del sys.modules[name]


@pytest.fixture
def folder(tmp_path):
    """Return a folder with the tables: rows of xMem's, and no others."""
    with (tmp_path / "xmem.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(COLUMNS)
        for name, model, optimizer, batch, recorded, answer in ROWS:
            card = ("NVIDIA GeForce RTX 3060", 12622168064)
            answers = (answer, "passed", 13e9, "said OOM", 5e9, "OOM under its limit", -1, "absent")
            row = (name, "transformer", model, optimizer, batch, "", *card, recorded, "False", "not recorded", *answers)
            writer.writerow(row)
    return tmp_path


def test_answers_of_other_tools_are_read(accuracy, folder):
    measurements, _, _ = accuracy
    for row in measurements.measurements(folder, "xmem"):
        failed = {tool: answer.failed for tool, answer in row.published.items()}
        assert failed == {"xmem": False, "dnnmem": True, "schedtune": True}  # a wrong verdict, then too little memory
        assert row.card == "rtx_3060"
        assert not row.varies


def test_constant_is_of_the_other_half(accuracy, folder):
    measurements, predictions, scores = accuracy
    rows = list(measurements.measurements(folder, "xmem"))
    assert {scores.half(row) for row in rows} == {0, 1}
    known = {}
    for row, more in zip(rows, (100 * MIB, 300 * MIB), strict=True):
        (command,) = row.commands.values()
        run = predictions.Run(row.card, predictions.ENOUGH, command)
        reserved = row.recorded - more
        known[predictions.key_of(run)] = predictions.Prediction(
            "fits", "", reserved, reserved, (0, 0, 0), (0, 0, 0), 1.0
        )
    found = scores.score_rows({"xmem": rows}, known)["xmem"]
    above = {(each.value - each.row.recorded) / MIB: each.fails_under_answer for each in found}
    assert above == {200: False, -200: True}


def test_rows_that_run_are_near_the_gpu(accuracy, folder, tmp_path):
    """Reserved bytes and one constant for what was loaded besides, as in all rows of language models."""
    measurements, predictions, scores = accuracy
    rows = list(measurements.measurements(folder, "xmem"))
    path = tmp_path / "predictions.jsonl"
    known = predictions.predict(rows, path, 1, lambda: False, lambda _: None)
    assert predictions.read_predictions(path) == known
    for row in rows:
        low, value, high = scores.predicted_bytes(row, known)
        assert low == value == high  # no convolution
        assert abs((value + 105 * MIB) / row.recorded - 1) < 0.02, (row.name, known)
