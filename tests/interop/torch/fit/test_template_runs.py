"""Runs that begin from the template of a program's process: they answer as processes of their own do."""

from __future__ import annotations

import os
import sys
import tempfile
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from textwrap import dedent

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed", exc_type=ImportError)

from forebay._base.verdicts import Verdict
from forebay.interop.torch.fit.questions import run_tasks
from forebay.interop.torch.fit.tasks import FitTask, run_task
from forebay.interop.torch.fit.template_runs import Template

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="templates are forked processes of Linux")

LIMIT = 120  # seconds of a run, which takes about five
GIB = 1 << 30
ASK = """
    import torch

    held = torch.empty(torch.cuda.get_device_capability()[0], 1 << 20, device="cuda")
"""
TRAIN = """
    import torch

    model = torch.nn.Sequential(torch.nn.Linear(4096, 4096), torch.nn.ReLU(), torch.nn.Linear(4096, 64)).cuda()
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(2):
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = model(torch.ones(250_000, 4096, device="cuda")).float().square().mean()
        loss.backward()
        optimizer.step()
"""


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Run a program on some cards. Return the results, how many runs began from a template, and the tasks."""
    started = []
    (tmp_path / "temporary").mkdir()
    (tmp_path / "work").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))

    def noted(self, request):
        started.append(request)
        return start(self, request)

    start = Template._start
    monkeypatch.setattr(Template, "_start", noted)

    def run(source, profiles, **options):
        path = tmp_path / "work" / "program.py"
        path.write_text(dedent(source))
        options = {"script": (str(path),), "timeout": LIMIT, **options}
        given = [FitTask(each, "shapes", folder=str(tmp_path / "work"), **options) for each in profiles]
        found = run_tasks(given)
        assert [*(tmp_path / "temporary").iterdir()] == []
        return found, len(started), given

    return run


def without_time(found):
    return replace(found, seconds=0.0)


def check_against_own_runs(found, given):
    for mine, task in zip(found, given, strict=True):
        own = run_task(task)
        assert without_time(mine) == without_time(own), (mine.profile, mine.message, own.message)


def test_runs_from_a_template_are_those_of_own_processes(run):
    cards = ["t4", "v100", "a100", "rtx_3070"]  # two run out of memory
    found, copies, given = run(TRAIN, cards)
    assert copies >= 2
    assert {Verdict.FITS, Verdict.DOES_NOT_FIT} <= {each.verdict for each in found}
    check_against_own_runs(found, given)


def test_run_from_a_template_sees_the_card_of_its_own(run):
    source = """
        import os, torch

        index = torch.cuda.current_device()
        found = torch.cuda.get_device_properties(index)
        free, total = torch.cuda.mem_get_info()
        card = found.name.split()[1].lower()  # of a name such as "NVIDIA A10 (emulated)"
        assert os.environ["FOREBAY_EMULATE"].startswith(f"cuda:1@{card}+"), found.name
        assert total == found.total_memory > free
        held = torch.empty(free // 3, dtype=torch.uint8, device="cuda")
        held_too = torch.empty(found.multi_processor_count << 20, dtype=torch.uint8, device="cuda")
    """
    found, copies, given = run(source, ["t4", "a10", "h200"])
    assert copies == 2
    assert [each.verdict for each in found] == [Verdict.FITS] * 3, found[0].message
    check_against_own_runs(found, given)


def test_run_from_a_template_goes_on_where_the_program_was(run):
    source = """
        import random

        random.seed(3)
        data = open(__file__, "rb")
        data.read(20)
        print("begin")
        import torch

        size = random.randrange(1 << 20) + sum(data.read())
        print("end")
        torch.empty(size, torch.cuda.get_device_capability()[0], device="cuda")
    """
    found, copies, given = run(source, ["t4", "a100", "h100"])
    assert copies == 2
    check_against_own_runs(found, given)


def test_run_from_a_template_has_a_time_limit(run):
    source = """
        import time, torch

        held = torch.empty(1 << 20, device="cuda")
        if torch.cuda.get_device_capability()[0] < 8:
            while True:
                time.sleep(0.01)
    """
    found, copies, _ = run(source, ["t4", "h100"], timeout=45)
    assert copies == 1
    assert [each.verdict for each in found] == [Verdict.DID_NOT_FINISH, Verdict.FITS]
    assert found[0].message == "the run took longer than 45 s"


@pytest.mark.parametrize(
    "end", ["raise KeyError('end')", "print('why'); raise SystemExit(3)", "os._exit(4)", "os.kill(os.getpid(), 9)",
            "os.execv('/bin/sh', ['sh', '-c', 'exit 5'])"],
)  # fmt: skip
def test_end_of_a_run_from_a_template_is_that_of_the_program(run, end):
    source = f"""
        import os, torch

        held = torch.empty(1 << 20, device="cuda")
        if torch.cuda.get_device_capability()[0] < 8:
            {end}
    """
    found, copies, given = run(source, ["t4", "h100"])
    assert copies == 1
    assert found[0].verdict is Verdict.DID_NOT_FINISH
    check_against_own_runs(found, given)


def test_last_line_that_was_printed_before_is_known(run):
    source = """
        print("why", flush=True)
        import sys, torch

        if torch.cuda.get_device_capability()[0] < 8:
            sys.exit(3)
    """
    found, copies, _ = run(source, ["t4", "h100"])
    assert copies == 1
    assert found[0].message == "exit status 3: why"


def test_process_that_a_run_from_a_template_starts_counts(run):
    source = """
        import subprocess, sys, torch

        held = torch.empty(1 << 20, device="cuda")
        if torch.cuda.get_device_capability()[0] < 8:
            child = "import torch; torch.empty(3 << 20, device='cuda')"
            subprocess.run([sys.executable, "-c", child], check=True)
    """
    found, copies, given = run(source, ["t4", "h100"])
    assert copies == 1
    assert found[0].processes == 2
    check_against_own_runs(found, given)


@pytest.mark.parametrize("when", ["first", "other"])
def test_run_after_one_that_has_changed_files_is_a_process_of_its_own(run, when):
    source = f"""
        import os, torch

        major = torch.cuda.get_device_capability()[0]
        size = 1 << 20 if os.path.exists("state") else 2 << 20  # the a100, with most memory, is first
        if major == {8 if when == "first" else 9}:
            open("state", "w").close()
        torch.empty(size, major, device="cuda")
    """
    found, copies, given = run(source, ["t4", "a100", "h100"])
    assert copies == (0 if when == "first" else 1)
    check_against_own_runs(found, given)


@pytest.mark.parametrize(
    "before",
    [
        "import threading; threading.Thread(target=threading.Event().wait, daemon=True).start()",
        "import subprocess; child = subprocess.Popen(['sleep', '60'])",
        "import signal; signal.signal(signal.SIGALRM, signal.SIG_IGN); signal.alarm(100)",
        "file = open('log', 'w')",
        "import mmap; shared = mmap.mmap(-1, 4096)",
        "import socket; pair = socket.socketpair()",
        "import os; ends = os.pipe()",
    ],
)
def test_no_template_is_offered_of_a_process_that_cannot_be_copied(run, before):
    end = "\nif 'child' in globals():\n    child.kill()"
    found, copies, _ = run(before + dedent(ASK) + end, ["t4", "h100"])
    assert copies == 0
    assert [each.verdict for each in found] == [Verdict.FITS] * 2


def test_template_ends_with_its_command(run):
    found, copies, given = run(ASK, ["t4", "a100", "h100"])
    assert copies == 2
    assert [each.verdict for each in found] == [Verdict.FITS] * 3
    program, left = os.fsencode(given[0].script[0]), []
    for each in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):  # it has ended
            left += [each] if program in each.read_bytes() else []
    assert left == []


def test_function_runs_from_a_template(run, tmp_path):
    from forebay.interop.torch import will_it_fit

    found = will_it_fit(allocate_by_capability, ["t4", "h100"], timeout=LIMIT)
    assert [each.peak_allocated for each in found] == [7 << 20, 9 << 20]


def allocate_by_capability():
    import torch

    torch.empty(torch.cuda.get_device_capability()[0] << 20, dtype=torch.uint8, device="cuda")
