"""The command `forebay fit`: its table, its status and its errors. The runs are replaced by results."""

from __future__ import annotations

import json

import pytest

from forebay.cli import main
from forebay.interop.torch.fit import FitResult, questions

GIB = 1 << 30


@pytest.fixture
def tasks(monkeypatch):
    given = []

    def run(task):
        given.append(task)
        fits = task.profile == "h100"
        return FitResult(
            task.profile, {}, fits, 30 * GIB, 30 * GIB, (80 if fits else 24) * GIB, {"activations": 20 * GIB},
            "" if fits else "CUDA out of memory. Tried to allocate", None if fits else 30 * GIB,
        )  # fmt: skip

    monkeypatch.setattr(questions, "run_task", run)
    return given


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "train.py"
    path.write_text("")
    return str(path)


def test_table_has_a_row_for_each_card(tasks, script, capsys):
    assert main(["fit", "--cards", "rtx_4090,h100", script, "--steps", "2"]) == 0
    assert [(each.profile, each.mode, each.script) for each in sorted(tasks, key=lambda each: each.profile)] == [
        (name, "shapes", (script, "--steps", "2")) for name in ("h100", "rtx_4090")
    ]
    output = capsys.readouterr().out
    assert "30.00 GiB" in output
    assert "fits" in output


def test_status_is_1_if_it_fits_on_no_card(tasks, script, capsys):
    assert main(["fit", "--cards", "rtx_4090", "--compute", "--jobs", "1", "--json", script]) == 1
    (found,) = json.loads(capsys.readouterr().out)
    assert (found["verdict"], found["needed"]) == ("out of memory", 30 * GIB)
    assert tasks[0].mode == "compute"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["fit"], "no script to run"),
        (["fit", "missing.py"], "there is no such file"),
        (["fit", "--cards", "rtx_4091", "SCRIPT"], "there is no profile 'rtx_4091'"),
    ],
)
def test_errors_are_one_line(arguments, message, script, capsys):
    assert main([script if each == "SCRIPT" else each for each in arguments]) == 2
    assert message in capsys.readouterr().err
