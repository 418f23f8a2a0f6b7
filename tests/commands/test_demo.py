"""The command `forebay demo`, and the recordings that it brings along."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from forebay import snapshot
from forebay.commands import demo
from forebay.commands.cli import main

DATA = Path(demo.__file__).with_name("demo_data")


def demonstrate(folder, *options):
    command = [sys.executable, "-m", "forebay", "demo", *options]
    variables = {**os.environ, "COLUMNS": "80"}
    return subprocess.run(command, cwd=folder, env=variables, capture_output=True, text=True, timeout=100, check=False)


def test_demo_shows_the_three_jobs_without_pytorch(tmp_path):
    done = demonstrate(tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    rehearsed, explained = done.stdout.index("1. Rehearse"), done.stdout.index("2. Explain")
    measured = done.stdout.index("3. Measure")
    verdicts = [line.split()[:3] for line in done.stdout[rehearsed:explained].splitlines() if "GiB" in line]
    others = [[name, "fits", "26.96"] for name in ("a100", "h100")]
    assert verdicts == [["t4", "does", "not"], ["rtx_4090", "fits", "with"], *others]
    assert "train_gpt2.py:28 Block.forward requested 1.12 GiB" in done.stdout[explained:measured]
    assert "nearest.py:10" in done.stdout[measured:]
    assert (tmp_path / "forebay-demo/report.html").exists()
    assert max(map(len, done.stdout[:measured].replace(str(DATA), "").splitlines())) <= 80


def test_second_demo_keeps_the_first_report(tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/report.html").write_text("kept")
    done = demonstrate(tmp_path, "--output", "mine")
    assert done.returncode == 0
    assert (tmp_path / "mine/report.html").read_text() == "kept"
    assert (tmp_path / "mine-2/report.html").exists()


def test_folder_that_cannot_be_made_is_an_error_in_one_line(tmp_path, monkeypatch, capfd):
    (tmp_path / "file").touch()
    monkeypatch.chdir(tmp_path)
    assert main(["demo", "--output", "file/below"]) == 2
    assert capfd.readouterr().err == "forebay: error: cannot write file/below/nearest.py: Not a directory\n"


@pytest.mark.parametrize("name", ["fits", "ran_out"])
def test_recordings_name_no_path_of_the_machine_that_made_them(name):
    (found,) = snapshot.load(DATA / f"train_gpt2_{name}.forebay")
    paths = {text for text in found.strings if text.startswith("/")}
    assert {text for text in paths if not text.startswith(("/home/user/", "/usr/lib/python3/"))} == set()
    assert {*found.notes} <= {"allocator_settings", "fine_segments", "external_annotations", "program"}
