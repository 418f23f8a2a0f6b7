"""The results of `forebay fit` as a table for a comment, and as requests of Slurm and Kubernetes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from forebay._base.verdicts import Verdict
from forebay.commands import CommandError, base_commit
from forebay.commands.base_commit import check_commit, results_of_commit
from forebay.commands.cli import main
from forebay.commands.fit_formats import FORMATS, About
from forebay.interop.torch.fit import FitResult, FitTable

GIB = 1 << 30
FAKE = """#!{python}
import json, os, sys
print(json.dumps([{{"profile": "t4", "verdict": "fits", "peak_allocated": 3 << 30, "where": os.getcwd(),
    "arguments": sys.argv[1:], "text": open("train.py").read(), "path": os.environ["PYTHONPATH"]}}]))
"""


def result(card, verdict, peak=6 * GIB, capacity=16 * GIB, **others):
    return FitResult(card, {}, verdict, peak, peak, capacity, {}, text=str(verdict), **others)


def written(name, *results, base=(), count=1):
    class Known:
        text, warnings = "Valid for PyTorch 2.13.0.", ()

    return FORMATS[name](FitTable(results), About(Known(), count, base))


def test_markdown_has_a_row_for_each_card_and_the_change():
    base = [{"profile": "t4", "verdict": "fits", "peak_allocated": 5 * GIB}, {"profile": "l4", "verdict": 3}]
    text = written(
        "markdown",
        result("t4", Verdict.DOES_NOT_FIT, reasons=("A request <b>ran</b> out | at train.py:3.",)),
        result("l4", Verdict.FITS),
        result("a100", Verdict.FITS),
        base=base,
    )
    lines = text.splitlines()
    assert lines[:2] == ["<!-- forebay fit -->", "### The program does not fit on t4"]
    assert {line.count(" | ") for line in lines if line.startswith("|")} == {7}
    assert "| t4 | does not fit | 6.00 GiB | 6.00 GiB | 6.00 GiB | 16.00 GiB | fits, 5.00 GiB | +1.00 GiB |" in lines
    assert "* t4: A request &lt;b&gt;ran&lt;/b&gt; out \\| at train.py:3." in lines
    assert lines[-1] == "<sub>Valid for PyTorch 2.13.0.</sub>"


@pytest.mark.parametrize(
    ("before", "now", "change"),
    [
        (6 * GIB, Verdict.FITS, "none"),
        (7 * GIB, Verdict.FITS, "-1.00 GiB"),
        (9 * GIB, Verdict.DID_NOT_FINISH, "not comparable"),
    ],
)
def test_change_is_that_of_the_peak_if_both_finished(before, now, change):
    base = [{"profile": "t4", "verdict": "fits", "peak_allocated": before}]
    assert f" | {change} |" in written("markdown", result("t4", now), base=base)


def test_smallest_card_that_fits_is_requested_and_a_tight_one_only_without_another():
    tight, fits = result("t4", Verdict.TIGHT), result("a100_pcie_80gb", Verdict.FITS, capacity=80 * GIB)
    assert written("slurm", fits, tight).splitlines()[-1] == "#SBATCH --gres=gpu:a100:1"
    assert written("slurm", tight, result("l4", Verdict.DOES_NOT_FIT), count=2).splitlines() == [
        "# forebay fit: tight on t4, 6.00 GiB of 16.00 GiB in use",
        "# l4: does not fit",
        "# the names of the types are the cluster's: sinfo --format=%G",
        "#SBATCH --gres=gpu:t4:2",
    ]


def test_request_of_kubernetes_selects_the_product():
    text = written("k8s", result("a100", Verdict.FITS), count=4)
    assert "nodeSelector:\n    nvidia.com/gpu.product: NVIDIA-A100-SXM4-80GB\n" in text
    assert text.endswith("limits:\n          nvidia.com/gpu: 4")
    amd = written("k8s", result("mi300x", Verdict.FITS))
    assert "amd.com/gpu: 1" in amd
    assert "nvidia" not in amd


@pytest.mark.parametrize("name", ["slurm", "k8s"])
def test_no_request_is_written_if_no_card_suffices(name):
    text = written(name, result("t4", Verdict.DOES_NOT_FIT), result("l4", Verdict.DID_NOT_FINISH))
    assert text.splitlines() == [
        "# t4: does not fit",
        "# l4: did not finish",
        "# no card of these suffices: no request",
    ]


@pytest.fixture
def repository(tmp_path, monkeypatch):
    """Make a repository with one commit and a change, and an interpreter that runs nothing."""
    folder = tmp_path / "repository"
    (folder / "below").mkdir(parents=True)
    (folder / "below/train.py").write_text("before")
    monkeypatch.chdir(folder)
    identity = ["-c", "user.name=a", "-c", "user.email=a@b"]
    for words in (["init", "-q", "."], ["add", "-A"], [*identity, "commit", "-qm", "one"]):
        subprocess.run(["git", *words], check=True)
    (folder / "below/train.py").write_text("after")
    (folder / "new").mkdir()
    python = tmp_path / "python"
    python.write_text(FAKE.format(python=sys.executable))
    python.chmod(0o700)
    monkeypatch.setattr(base_commit.sys, "executable", str(python))
    return folder


def test_base_runs_in_the_files_of_the_commit(repository, monkeypatch):
    monkeypatch.chdir(repository / "below")
    words = [
        "--base",
        "HEAD",
        "--format=markdown",
        "--cards",
        "t4",
        "--compute",
        f"{repository}/below/train.py",
        "--base",
    ]
    (found,) = results_of_commit("HEAD", words)
    assert found["text"] == "before"
    where = Path(found["where"])
    assert where.name == "below"
    assert not where.exists()
    assert found["arguments"][2:] == ["fit", "--json", "--cards", "t4", "--compute", f"{where}/train.py", "--base"]
    assert found["path"].split(":")[0] == str(where.parent)


def test_program_that_is_new_has_no_results(repository, monkeypatch):
    monkeypatch.chdir(repository / "new")
    assert results_of_commit("HEAD", ["train.py"]) == []


def test_commit_that_is_missing_is_an_error_in_one_line(repository, tmp_path, monkeypatch, capsys):
    for wrong in ("nothing", "--all", ""):
        with pytest.raises(CommandError, match="there is no commit"):
            check_commit(wrong)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CommandError, match="not a git repository"):
        check_commit("HEAD")
    monkeypatch.setenv("PATH", "")
    with pytest.raises(CommandError, match="needs git"):
        check_commit("HEAD")
    assert main(["fit", "--base", "HEAD", "--format", "slurm", "train.py"]) == 2
    assert capsys.readouterr().err.endswith("leave out --json and --format\n")


def test_failure_of_the_base_is_told_with_its_reason(repository, monkeypatch):
    Path(base_commit.sys.executable).write_text("#!/bin/sh\necho 'forebay: error: broken' >&2\nexit 2\n")
    with pytest.raises(CommandError, match=r"^--base HEAD: broken$"):
        results_of_commit("HEAD", ["train.py"])
