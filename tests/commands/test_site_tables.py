"""Tables of sites at 60, 80 and 130 columns: they fit, and no two rows of different sites look equal."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from rich.console import Console
from support.snapshot_scenes import MIB, Scene

from forebay.commands import top_table
from forebay.commands.cli import main
from forebay.commands.top_sites import with_sites
from forebay.observe.monitor.figures import DeviceFigures, ProcessFigures, Readings
from forebay.observe.monitor.live_stacks import live_stacks
from forebay.observe.monitor.machine import MachineFigures
from forebay.snapshot.formats import native
from forebay.snapshot.report.text import report

HOME = "/home/ada/projects/a-rather-long-project-name/src/training"
PACKAGES = "/opt/conda/lib/python3.11/site-packages"
SITES = [
    (f"{HOME}/models/decoder/attention/model.py:10 MultiHeadAttentionWithRotaryEmbedding.forward",),
    (f"{HOME}/models/encoder/attention/model.py:10 MultiHeadAttentionWithRotaryEmbedding.forward",),
    (f"{HOME}/models/encoder/attention/model.py:10 MultiHeadAttentionWithRotaryEmbedding.backward",),
    ("/scratch/ada/models/encoder/attention/model.py:10 MultiHeadAttentionWithRotaryEmbedding.forward",),
    (f"{HOME}/models/encoder/attention/model.py:10 MultiHead", f"{PACKAGES}/transformers/models/gpt2.py:7 take"),
    (f"{HOME}/models/encoder/attention/model.py:10 MultiHeads", f"{PACKAGES}/transformers/other/gpt2.py:7 take"),
]
WIDTHS = pytest.mark.parametrize("width", [60, 80, 130])
_SIZES = re.compile(r"[+-]?[\d.,]+ (?:B|[KMGT]iB)|[\d.,]+ ?%|━+")


def scene(factor: int = 1) -> Scene:
    made = Scene()
    for number, calls in enumerate(SITES, 3):
        made.allocate(number * factor * MIB, made.stack("/home/ada/projects/cli.py:1 main", *calls))
    return made


@pytest.fixture(autouse=True)
def terminal(monkeypatch, width) -> None:
    for name, value in {"COLUMNS": str(width), "FORCE_COLOR": "1", "TTY_COMPATIBLE": "1", "TERM": "xterm"}.items():
        monkeypatch.setenv(name, value)


def check(text: str, width: int) -> list[str]:
    """Return the lines of a text without colors. Raises an error if one is too long."""
    lines = [re.sub(r"\x1b\[[\d;]*m", "", line) for line in text.splitlines()]
    assert [line for line in lines if len(line.rstrip()) > width] == []
    return lines


def check_rows(text: str, width: int) -> None:
    """Raise an error unless there is a row for each site, and all rows differ in more than sizes."""
    rows = [_SIZES.sub("", line).split() for line in check(text, width) if "gpt2.py:" in line or "model.py:" in line]
    assert len(rows) >= len(SITES)
    assert len({*map(tuple, rows)}) == len(rows), rows


def check_folded(text: str, width: int) -> None:
    """Raise an error unless the first column has all labels in full length, in one or several lines."""
    columns = [re.split(r"\s{2,}", line.strip())[0] for line in check(text, width)]
    joined = "".join(columns).replace(" ", "")
    for *_, label in (calls[:1] for calls in SITES):
        assert label.replace(" ", "") in joined
    assert all("model.p" not in column or "model.py:10" in column for column in columns), text  # not inside a name


@WIDTHS
def test_explanation(capsys, tmp_path: Path, width: int) -> None:
    native.write(scene().snapshot(), tmp_path / "a.forebay")
    assert main(["explain", str(tmp_path / "a.forebay")]) == 0
    check_folded(capsys.readouterr().out, width)


@WIDTHS
def test_differences(capsys, tmp_path: Path, width: int) -> None:
    native.write(scene().snapshot(), tmp_path / "a.forebay")
    native.write(scene(2).snapshot(), tmp_path / "b.forebay")
    assert main(["diff", str(tmp_path / "a.forebay"), str(tmp_path / "b.forebay")]) == 0
    check_folded(capsys.readouterr().out, width)


@WIDTHS
def test_ranks(capsys, tmp_path: Path, width: int) -> None:
    native.write(scene().snapshot(), tmp_path / "a.forebay")
    native.write(scene(2).snapshot(), tmp_path / "b.forebay")
    assert main(["ranks", str(tmp_path)]) == 0
    check(capsys.readouterr().out, width)


@WIDTHS
def test_report_of_a_run(capsys, width: int) -> None:
    Console().print(report(scene().snapshot(), width=width))
    check_rows(capsys.readouterr().out, width)


@WIDTHS
def test_top(capsys, width: int) -> None:
    device = DeviceFigures(
        "cuda:0", "NVIDIA H200 (emulated)", True, 1 << 37, 42 * MIB, 64 * MIB, 1, 1, 0, 0, 0, 1, 0, Readings(busy=0.5),
        stacks=live_stacks(scene().snapshot(), 100),
    )  # fmt: skip
    now = with_sites(MachineFigures((ProcessFigures(71234, "train.py --layers 12", 1.0, 1.0, 1, (device,)),), (), {}))
    top_table.print_figures(now, now)
    out = capsys.readouterr().out
    check_rows(out, width)
    assert "train.py" in out
    assert "cuda:0" in out
