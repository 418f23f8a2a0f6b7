"""Which cards a program runs on, and results of others from these runs. Each run is a process of its own."""

from __future__ import annotations

from dataclasses import replace
from textwrap import dedent

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed", exc_type=ImportError)

from forebay._base.verdicts import Verdict
from forebay.interop.torch.fit import shared_runs, tasks
from forebay.interop.torch.fit.questions import run_tasks
from forebay.interop.torch.fit.tasks import FitTask, run_task

LIMIT = 120  # seconds of a run, which takes about five
MIB = 1 << 20
TRAIN = """
    import torch

    model = torch.nn.Sequential(torch.nn.Linear(1024, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 8)).cuda()
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(2):
        loss = model(torch.ones(4096, 1024, device="cuda")).square().mean()
        loss.backward()
        optimizer.step()
"""


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Run a program on some cards. Return the results, and the cards on which it ran."""
    cards = []

    def noted(task, *args, **keywords):
        cards.append(task.profile)
        return run_shared(task, *args, **keywords)

    run_shared = tasks.run_shared
    monkeypatch.setattr(shared_runs, "run_shared", noted)

    def run(source, profiles, mode="shapes", **options):
        path = tmp_path / "program.py"
        path.write_text(dedent(source))
        folder = str(tmp_path)
        given = [FitTask(each, mode, script=(str(path),), folder=folder, timeout=LIMIT, **options) for each in profiles]
        return run_tasks(given), sorted(cards), given

    return run


def without_time(found):
    return replace(found, seconds=0.0)


def test_cards_with_the_same_answers_share_a_run(run):
    found, cards, given = run(TRAIN, ["t4", "a100", "h100"])
    assert cards == ["a100"]  # the one with most memory
    own = [run_task(each) for each in given]
    assert [*map(without_time, found)] == [*map(without_time, own)]
    assert found[0].peak_allocated < found[2].peak_allocated  # the workspace of cuBLAS
    assert [each.profile for each in found] == ["t4", "a100", "h100"]


def test_card_whose_memory_runs_out_is_run_and_another_run_tells_its_need(run):
    source = """
        import torch

        held = [torch.empty(3 << 30, dtype=torch.uint8, device="cuda") for _ in range(6)]
        print("end", file=open("end.txt", "w"))
    """
    found, cards, given = run(source, ["t4", "h100", "h200", "l40s"])
    assert cards == ["h200", "t4"]
    assert [each.verdict for each in found] == [Verdict.DOES_NOT_FIT, *[Verdict.FITS] * 3]
    own = run_task(given[0])
    assert without_time(found[0]) == without_time(own)
    assert found[0].needed == 18 << 30


def test_error_before_the_first_question_is_found_once(run):
    found, cards, _ = run("{}['key']", ["t4", "h100", "h200"])
    assert len(cards) == 1
    assert {(each.verdict, each.message) for each in found} == {(Verdict.DID_NOT_FINISH, "KeyError: 'key'")}


def test_program_that_asks_for_the_name_runs_on_each_card(run):
    source = "import torch; torch.ones(len(torch.cuda.get_device_name()) * 512, device='cuda')"
    found, cards, _ = run(source, ["h100", "a100", "h200"])
    assert cards == ["a100", "h100", "h200"]
    assert len({each.peak_allocated for each in found}) > 1


def test_processes_that_share_a_card_and_values_are_not_shared(run):
    source = """
        import subprocess, sys, torch

        x = torch.ones(1 << 18, device="cuda")
        if len(sys.argv) == 1:
            subprocess.run([sys.executable, __file__, "child"], check=True)
    """
    _, cards, _ = run(source, ["h100", "h200"])
    assert cards == ["h100", "h200"]


def test_run_with_values_answers_for_its_card_only(run):
    _, cards, _ = run("import torch; torch.ones(1, device='cuda')", ["h100", "h200"], mode="compute")
    assert cards == ["h100", "h200"]
