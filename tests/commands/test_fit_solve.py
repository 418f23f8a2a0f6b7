"""Questions of `forebay fit --solve`. Instead of runs, a function of the program's arguments states its bytes."""

from __future__ import annotations

import argparse
import json

import pytest
from support.json_schemas import check

from forebay import profiles
from forebay._base.outside_memory import outside_memory
from forebay._base.verdicts import Verdict
from forebay.commands import CommandError
from forebay.commands.cli import main
from forebay.commands.fit_solve import arguments_with, parse_prices, parse_question
from forebay.interop.torch.fit import FitResult, shared_runs
from forebay.interop.torch.fit.tasks import Shared

GIB = 1 << 30
MIB = 1 << 20


def needed(values):
    """Return the bytes in blocks: a model, and activations of each sequence."""
    return 2 * GIB + int(values["batch"]) * int(values.get("length", 1024)) * 200 * 1024


@pytest.fixture
def tasks(monkeypatch):
    """Replace the runs; returns their tasks."""
    given = []

    def run(task, cancel, watch, others, need, template):
        given.append(task)
        words = dict(zip(task.script[1::2], task.script[2::2], strict=True))
        values = {name.removeprefix("--"): value for name, value in words.items()}
        capacity = profiles.load(task.profile).properties["total_memory"]
        nbytes = needed(values)
        if int(values["batch"]) > 400:
            verdict = Verdict.DID_NOT_FINISH
        elif nbytes + task.outside.high <= capacity:
            verdict = Verdict.FITS
        else:
            verdict = Verdict.TIGHT if nbytes + task.outside.low <= capacity else Verdict.DOES_NOT_FIT
        found = FitResult(
            task.profile, task.parameters, verdict, nbytes, nbytes, capacity, {}, text=str(verdict),
            message="IndexError: 1", outside=task.outside,
        )  # fmt: skip
        return found, Shared({}, {})

    monkeypatch.setattr(shared_runs, "run_shared", run)
    monkeypatch.setattr("forebay.commands.fit.need_torch", lambda arguments: None)
    return given


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "train.py"
    path.write_text("")
    return str(path)


def brute_force(card, most, **given):
    capacity = profiles.load(card).properties["total_memory"] - outside_memory(card, None, None).high
    return max((each for each in range(1, most + 1) if needed({"batch": each, **given}) <= capacity), default=None)


def test_largest_value_of_each_card_is_that_of_brute_force(tasks, script, capsys):
    question = ["--cards", "t4,rtx_4090,a100", "--solve", "batch=1..390"]
    assert main(["fit", "--json", *question, script, "--batch", "8"]) == 0
    found = json.loads(capsys.readouterr().out)
    check("fit-solve", found)
    assert {each["profile"]: each["largest"] for each in found} == {
        card: brute_force(card, 390) for card in ("t4", "rtx_4090", "a100")
    }
    assert all(len(each["values"]) <= 4 for each in found), found
    assert all(each.script[1:] == ("--batch", str(each.parameters["batch"])) for each in tasks)


def test_each_listed_value_has_an_answer(tasks, script, capsys):
    options = ["--solve", "batch=1..390", "--solve", "length=512,2048"]
    assert main(["fit", "--json", "--cards", "t4,l4", *options, script]) == 0
    found = {
        (each["profile"], each["given"]["length"]): each["largest"] for each in json.loads(capsys.readouterr().out)
    }
    assert found == {
        (card, length): brute_force(card, 390, length=length) for card in ("t4", "l4") for length in ("512", "2048")
    }


def test_table_says_why_no_larger_value_is_the_answer(tasks, script, capsys):
    assert main(["fit", "--cards", "t4,h100", "--solve", "batch=1..30", script]) == 0
    printed = capsys.readouterr().out
    assert "the end of the range" in printed  # on the H100
    assert "1 to" not in printed


def test_no_value_fits(tasks, script, capsys):
    assert main(["fit", "--cards", "t4", "--solve", "batch=300..390", script]) == 1
    assert "none" in capsys.readouterr().out


def test_value_with_which_the_program_does_not_finish_is_no_answer(tasks, script, capsys):
    assert main(["fit", "--cards", "h200", "--solve", "batch=401..500", script]) == 4
    assert "IndexError: 1" in capsys.readouterr().out
    assert main(["fit", "--json", "--cards", "t4,h200", "--solve", "batch=60..900", script]) == 0
    found = {each["profile"]: each for each in json.loads(capsys.readouterr().out)}
    assert found["t4"]["largest"] == brute_force("t4", 400)
    assert found["h200"]["largest"] == 400
    assert found["h200"]["why"] == "401 did not finish"
    assert "IndexError: 1" in found["h200"]["remark"]


def test_smallest_card_is_found(tasks, script, capsys):
    assert main(["fit", "--json", "--solve", "card", script, "--batch", "100"]) == 0  # 21.5 GiB
    answer = json.loads(capsys.readouterr().out)
    check("fit-solve-card", answer)
    found = answer["card"]
    memory = {name: profiles.load(name).properties["total_memory"] for name in profiles.names("cuda")}
    outside = {name: outside_memory(name, None, None).high for name in memory}
    assert memory[found] == min(
        memory[name] for name in memory if memory[name] - outside[name] >= needed({"batch": 100})
    )


def test_cheapest_card_is_found(tasks, script, capsys):
    prices = "h100=2.5,l40s=0.9,a100=1.1,t4=0.2"
    assert main(["fit", "--solve", "card", "--prices", prices, script, "--batch", "100"]) == 0
    assert "The cheapest of 4 cards on which it fits is l40s (0.9)" in capsys.readouterr().out


@pytest.mark.parametrize(
    "options",
    [
        ["--solve", "card", "--solve", "batch=1..2"],
        ["--solve", "length=1,2"],
        ["--solve", "a=1..2", "--solve", "b=1..2"],
    ],
)
def test_questions_that_are_none_are_refused(tasks, script, capsys, options):
    assert main(["fit", *options, script]) == 2
    assert "--solve" in capsys.readouterr().err
    assert not tasks


@pytest.mark.parametrize("text", ["batch", "batch=", "=1..2", "batch=9..1", "1=2"])
def test_text_that_is_no_question_is_refused(text):
    with pytest.raises(argparse.ArgumentTypeError, match=r"is not NAME|is above"):
        parse_question(text)


def test_prices_are_read():
    assert parse_prices("t4=0.35, l4=1") == {"t4": 0.35, "l4": 1.0}
    with pytest.raises(argparse.ArgumentTypeError):
        parse_prices("t4")


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (["--lr", "1"], ["--lr", "1", "--batch_size", "8"]),
        (["--batch_size", "4", "x"], ["--batch_size", "8", "x"]),
        (["--batch-size=4"], ["--batch-size=8"]),
        (["data.batch={batch_size}"], ["data.batch=8"]),
    ],
)
def test_value_becomes_an_argument_of_the_program(before, after):
    assert arguments_with(before, {"batch_size": 8}) == tuple(after)


def test_option_without_a_value_is_refused():
    with pytest.raises(CommandError, match="--batch has no value"):
        arguments_with(["--batch"], {"batch": 8})
