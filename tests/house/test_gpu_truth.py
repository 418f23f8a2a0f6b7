"""The part truth of `dev.py gpu`: workloads that fail, hang or cannot run, its budget, and its files at all times."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from runpy import run_path
from textwrap import dedent
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.beside import TORCH, needs_torch

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="processes are watched in /proc, as on GPU machines")

TOOLS = Path(__file__).parents[2] / "tools"
LIMIT = 100  # seconds
PROGRAM = """
import os, signal, sys, time
import torch._dynamo  # as all workloads do
from gpu import truth
from gpu.part import execute
from gpu.workloads import all_workloads
from gpu.workloads.workload import WORKLOADS, workload

listed = all_workloads.load()
quick = {each.name for each in all_workloads.load(quick=True)}
WORKLOADS.clear()

@workload("good")
def good(setting):
    x = torch.ones(3, device=setting.device)
    return lambda: x.sum()

@workload("raises")
def raises(setting):
    raise ValueError("no | such\\nthing")

@workload("crashes")
def crashes(setting):
    os.kill(os.getpid(), signal.SIGSEGV)

@workload("hangs")
def hangs(setting):
    print(os.getpid(), flush=True)
    time.sleep(1000)

@workload("infinite")
def infinite(setting):
    return lambda: torch.tensor(float("nan"))

@workload("loud")
def loud(setting):
    for _ in range(100):
        print("word " * 10000)
    return lambda: torch.ones(())

@workload("missing", packages=("no_such_module",))
def missing(setting):
    raise AssertionError

@workload("gpu_only", needs_gpu="the CPU has none")
def gpu_only(setting):
    raise AssertionError

truth._IMPORTED = ()
truth._REHEARSED_SECONDS = 3.0
"""


@pytest.fixture
def tools(root, monkeypatch):
    """Make the modules of tools/gpu importable for this test."""
    monkeypatch.syspath_prepend(root / "tools")
    yield root / "tools"
    for name in [name for name in sys.modules if name in ("gpu", "steps") or name.startswith("gpu.")]:
        del sys.modules[name]


def program(names, more=""):
    chosen = f"all_workloads.load = lambda quick=False: [WORKLOADS[name] for name in {names}]"
    return f"{PROGRAM}\n{dedent(more)}\n{chosen}\nexecute(truth.measure)\n"


def command(folder, seconds, names, more=""):
    return [str(TORCH), "-c", program(names, more), str(folder), str(seconds)]


def environment(root):
    return {**os.environ, "PYTHONPATH": str(root / "tools"), "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}


def run(root, folder, names, seconds=LIMIT - 10, more=""):
    """Run workloads on the CPU; return the outcome and the results."""
    subprocess.run(
        command(folder, seconds, names, more), env=environment(root), check=True, timeout=LIMIT, capture_output=True
    )
    return [json.loads((folder / name).read_text()) for name in ("result.json", "truth.json")]


@needs_torch
def test_workloads_that_fail_leave_the_others(root, tmp_path):
    names = ["raises", "crashes", "hangs", "infinite", "loud", "missing", "gpu_only", "good"]
    outcome, truth = run(root, tmp_path, names)
    rows = truth["workloads"]
    assert list(rows) == names
    assert rows["good"]["losses"] == [3.0, 3.0, 3.0]
    assert {name: row.get("detail", "") for name, row in rows.items() if row["status"] == "failed"} == {
        "raises": "ValueError: no | such",
        "crashes": rows["crashes"]["detail"],
        "hangs": rows["hangs"]["detail"],
        "infinite": "a loss is nan",
    }
    assert rows["crashes"]["detail"].startswith("ended by SIGSEGV")
    assert rows["hangs"]["detail"].startswith("stopped after 3 s")
    assert rows["missing"] == {"status": "not run", "detail": "no_such_module is not installed"}
    assert rows["gpu_only"] == {"status": "not run", "detail": "the CPU has none"}
    assert outcome["status"] == "failed"
    assert outcome["detail"].startswith("2 of 8 workloads, 4 failed, 2 not run, rehearsed on the CPU")
    assert "| raises | failed: ValueError: no \\| such |  |  |  |  |  |" in outcome["lines"]
    assert truth["rehearsal"] is True


@needs_torch
def test_time_that_ends_is_no_failure(root, tmp_path):
    outcome, truth = run(
        root,
        tmp_path,
        ["good", "hangs", "loud"],
        more="truth._RESERVE = 80.0; truth._REHEARSED_SECONDS = 90.0",
        seconds=95,
    )
    assert outcome["status"] == "incomplete"
    assert list(truth["workloads"]) == ["good"]
    assert truth["complete"] is False


@needs_torch
def test_card_that_cannot_be_described_is_measured(root, tmp_path):
    """The description fails in a fork and afresh; here there is no card, so the workloads run on the CPU."""
    more = """
    from gpu.workloads import children
    children.describe_card = int  # int() refuses the path
    """
    outcome, truth = run(root, tmp_path, ["good"], more=more)
    assert outcome["status"] == "ok"
    assert "TypeError: int() argument must be" in truth["card_problem"]
    assert truth["workloads"]["good"]["status"] == "ok"


@needs_torch
def test_killed_run_leaves_complete_files_and_no_process(root, tmp_path):
    more = "truth._REHEARSED_SECONDS = 90.0"
    process = subprocess.Popen(
        command(tmp_path, LIMIT, ["good", "hangs"], more), env=environment(root), stderr=subprocess.DEVNULL
    )
    try:
        log = tmp_path / "workloads" / "hangs.log"
        number = awaited(lambda: log.exists() and log.read_text().strip())
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait(10)
    assert list(json.loads((tmp_path / "truth.json").read_text())["workloads"]) == ["good"]
    assert json.loads((tmp_path / "result.json").read_text())["detail"].startswith("1 of 2 workloads")
    assert awaited(lambda: not is_running(number))


def awaited(condition):
    """Return the value of a condition once it is true. Another process has no clock that a test could advance."""
    for _ in range(LIMIT * 10):
        if found := condition():
            return found
        time.sleep(0.1)
    raise AssertionError("it did not become true in time")


def is_running(number):
    try:
        status = Path(f"/proc/{number}/stat").read_text()
    except OSError:
        return False
    return status.rpartition(")")[2].split()[0] != "Z"


@needs_torch
def test_workloads_of_plain_pytorch_run_on_the_cpu(root, tmp_path):
    names = ["graph_index_add", "attention_math", "own_gpt_generate"]
    more = """
    assert len(listed) >= 24
    assert quick < {each.name for each in listed}
    WORKLOADS.update((each.name, each) for each in listed)
    truth._REHEARSED_SECONDS = 60.0
    """
    outcome, truth = run(root, tmp_path, names, more=more)
    assert outcome["status"] == "ok"
    assert all(len(truth["workloads"][name]["losses"]) == 3 for name in names)


@needs_torch
def test_outcome_says_that_pytorch_is_missing(root, tmp_path):
    hide = (
        "from importlib import util; find = util.find_spec; util.find_spec = lambda n: n != 'torch' and find(n) or None"
    )
    text = f"{hide}\nfrom gpu import truth\nfrom gpu.part import execute\nexecute(truth.measure)"
    subprocess.run([sys.executable, "-c", text, str(tmp_path), "10"], env=environment(root), check=True, timeout=LIMIT)
    assert json.loads((tmp_path / "result.json").read_text())["detail"] == "PyTorch is not installed"


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_fresh_process_reports_how_it_ended(tools, tmp_path, method):
    from gpu.part import write_json
    from gpu.workloads.fresh_process import FreshProcesses

    processes = FreshProcesses(tmp_path)
    processes.method = method
    assert processes.start("a", write_json, tmp_path / "a.json", [1], seconds=60.0).problem() == ""
    assert json.loads((tmp_path / "a.json").read_text()) == [1]
    assert processes.start("b", os.abort, seconds=60.0).problem().startswith("ended by SIGABRT")
    assert (
        processes.start("c", int, "x", seconds=60.0).problem().startswith("ended with 1: ValueError: invalid literal")
    )
    assert processes.start("d", time.sleep, 60.0, seconds=1.0).problem().startswith("stopped after 1 s")
    assert processes.start("e", os._exit, 7, seconds=60.0).problem() == "ended with 7: no output"


def test_refused_fork_is_repeated_afresh(tools, tmp_path):
    """A driver that this process has opened refuses its forks."""
    from gpu import truth

    assert truth._is_about_forks("RuntimeError: Cannot re-initialize CUDA in forked subprocess. To use CUDA with")
    assert truth._is_about_forks("AcceleratorError: CUDA error: initialization error")
    assert not truth._is_about_forks("OutOfMemoryError: CUDA out of memory")


SIZES = st.lists(st.sampled_from([0, 4, 512, 1 << 40]), max_size=60)


@given(sizes=SIZES, times=st.integers(1, 5))
def test_sequence_is_decoded_as_it_was_encoded(sizes, times):
    sequences = SimpleNamespace(**run_path(str(TOOLS / "gpu/workloads/sequences.py")))
    repeated = [*sizes, *sizes * times, 7]
    assert sequences.decoded(sequences.encoded(repeated)) == repeated


def test_repeated_sequence_is_short(tools):
    from gpu.workloads.sequences import encoded

    assert encoded([4, 512, 8, 512, 8, 512, 8, 16]) == [4, [3, 512, 8], 16]
    assert encoded([1] * 1000) == [[1000, 1]]
    assert len(str(encoded(list(range(200)) * 50))) < 1100


@pytest.mark.parametrize("items", [[-1], [1.5], ["4"], [[2]], [[-1, 4]], [[2, [3, 4]]], [True], [[10**9, 4]], [None]])
def test_malformed_sequence_is_refused(tools, items):
    from gpu.workloads.sequences import decoded

    with pytest.raises(ValueError, match="size"):
        decoded(items)
