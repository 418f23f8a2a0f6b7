"""The part `workspaces` of `dev.py gpu`: its catalogue, and calls that hang, crash or spoil CUDA, without PyTorch."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import time
from collections import Counter
from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="calls run in forks")

SECONDS = 20  # for calls that end at once


def made(function):
    """Return the builder of a call of a function."""
    return lambda kit: function


class Tensor:
    """Nothing that a test returns is one."""


@pytest.fixture
def gpu(root, monkeypatch):
    """The modules of tools/gpu."""
    monkeypatch.syspath_prepend(root / "tools")
    from gpu import call_memory, operator_calls, part, workspaces

    yield SimpleNamespace(call_memory=call_memory, calls=operator_calls, part=part, workspaces=workspaces)
    for name in [name for name in sys.modules if name == "gpu" or name.startswith("gpu.")]:
        del sys.modules[name]


@pytest.fixture
def catalogue(gpu):
    return gpu.calls.catalogue()


@pytest.fixture
def torch():
    fake = MagicMock(name="torch")
    fake.Tensor = Tensor
    fake.cuda.is_available.return_value = False
    return fake


@pytest.fixture
def run(gpu, torch, tmp_path):
    """Run functions as calls, by their names. Return the measurements and what is in the files."""

    def run(seconds=SECONDS, **functions):
        calls = [gpu.calls.Call("family", name, made(each)) for name, each in functions.items()]
        job = gpu.part.Job(tmp_path, time.monotonic() + seconds)
        found = gpu.workspaces.run_calls(job, torch, calls)
        content = json.loads((tmp_path / gpu.workspaces.FILE).read_text())
        outcome = json.loads((tmp_path / gpu.part.RESULT).read_text())
        return SimpleNamespace(
            records={each["operator"]: each for each in content["calls"]}, outcome=outcome, content=content, found=found
        )

    return run


def test_each_call_has_a_name_of_its_own(catalogue):
    names = Counter(call.name for call in catalogue)
    assert [name for name, count in names.items() if count > 1] == []


def test_calls_are_plain_data(gpu, catalogue):
    for call in catalogue:
        assert json.loads(json.dumps(call.all_parameters())) is not None
        assert json.loads(json.dumps(dict(call.flags))) is not None
    assert len(catalogue) > 1000
    assert len(gpu.calls.catalogue(quick=True)) < len(catalogue) / 4


@pytest.mark.parametrize("share", [0.1, 0.3, 0.5, 0.9])
def test_same_share_of_each_family_is_done_wherever_the_calls_stop(catalogue, share):
    calls = [each for each in catalogue if each.family != "first uses"]
    total, done = (Counter(each.family for each in part) for part in (calls, calls[: int(share * len(calls))]))
    for family, count in total.items():
        assert abs(done[family] - share * count) <= 1.5, family


def test_few_calls_let_cudnn_measure_algorithms(catalogue):
    assert 10 <= sum(bool(call.flags.get("benchmark")) for call in catalogue) <= 25


def test_calls_are_recorded_with_parameters_and_defaults(gpu, torch, tmp_path):
    def build(kit, rows, dtype="float32"):
        return lambda: None

    call = gpu.calls.Call("family", "operator", build, {"rows": 3}, {"deterministic": True})
    gpu.workspaces.run_calls(gpu.part.Job(tmp_path, time.monotonic() + SECONDS), torch, [call])
    (row,) = json.loads((tmp_path / gpu.workspaces.FILE).read_text())["calls"]
    assert row["parameters"] == {"dtype": "float32", "rows": 3}
    assert row["flags"] == {"deterministic": True}
    assert row["name"] == "operator rows=3 flag deterministic=True"
    assert row["first"] == {"rows": [], "peak": 0}
    assert row["second"] is None


def test_errors_are_recorded_and_later_calls_run(run):
    def refuse():
        raise RuntimeError("not supported\nwith a second line")

    result = run(refused=refuse, works=lambda: None)
    assert result.records["refused"]["error"] == "RuntimeError: not supported"
    assert "first" in result.records["works"]
    assert result.outcome["status"] == "ok"
    assert result.outcome["detail"] == "rehearsal on the CPU, which records no memory: 2 of 2 calls, 1 errors"
    assert "| family | 2 of 2 | 0 | 0 bytes | 1 |" in result.outcome["lines"]


def test_call_that_ends_its_process_is_recorded_and_later_calls_run(run):
    result = run(before=lambda: None, dies=lambda: os.kill(os.getpid(), signal.SIGKILL), exits=lambda: os._exit(3),
                 after=lambda: None)  # fmt: skip
    assert result.records["dies"]["error"] == "in first: its process ended with signal 9"
    assert result.records["exits"]["error"] == "in first: its process ended with status 3"
    assert all("first" in result.records[name] for name in ("before", "after"))
    assert result.outcome["status"] == "ok"
    assert "* dies: in first: its process ended with signal 9" in result.outcome["lines"]


def test_call_that_hangs_is_stopped_and_later_calls_run(gpu, run, monkeypatch):
    monkeypatch.setattr(gpu.workspaces, "CALL_SECONDS", 0.2)
    monkeypatch.setattr(gpu.workspaces, "_SAVED_EVERY", 0.1)
    result = run(hangs=signal.pause, after=lambda: None)
    assert result.records["hangs"]["error"].startswith("in first: no progress for 0 s, stopped")
    assert "first" in result.records["after"]


def test_call_that_prints_megabytes_does_not_disturb(run, capfd):
    result = run(prints=lambda: sys.stdout.write("x" * 4_000_000) and None, after=lambda: None)
    assert "first" in result.records["after"]


def test_error_of_cuda_that_stays_ends_the_process_but_not_the_part(run, torch):
    torch.cuda.is_available.return_value = True
    torch.cuda.current_device.return_value = 0
    torch.cuda.memory._snapshot.return_value = {"device_traces": [[]], "segments": []}
    torch.cuda.max_memory_allocated.return_value = torch.cuda.memory_allocated.return_value = 0

    def spoil():
        torch.cuda.synchronize.side_effect = RuntimeError("CUDA error: device-side assert triggered")
        torch.cuda.synchronize()

    result = run(spoils=spoil, after=lambda: None)
    assert result.records["spoils"]["error"] == "RuntimeError: CUDA error: device-side assert triggered"
    assert result.records["spoils"]["lost"] == "RuntimeError: CUDA error: device-side assert triggered"
    assert result.records["after"]["first"]["rows"] == []


def test_part_ends_before_its_deadline_with_complete_files(gpu, run, monkeypatch):
    monkeypatch.setattr(gpu.workspaces, "_MARGIN", 0.1)
    started = time.monotonic()
    result = run(seconds=1, works=lambda: None, hangs=signal.pause, never=lambda: None)
    assert time.monotonic() - started < 5
    assert [*result.records] == ["works"]
    assert result.outcome["status"] == "incomplete"


def test_part_fails_if_no_process_starts(run, torch):
    torch.cuda.is_available.side_effect = SystemExit
    result = run(never=lambda: None)
    assert result.outcome["status"] == "failed"
    assert "3 processes ended before their first call, the last one with status 1" in result.outcome["detail"]
    assert result.records == {}


TRACE = [
    {"action": "segment_alloc", "addr": 0, "size": 2 << 20, "stream": 0},
    {"action": "alloc", "addr": 0, "size": 100, "stream": 0},
    {"action": "alloc", "addr": 512, "size": 3000, "stream": 7},
    {"action": "free_requested", "addr": 4096, "size": 50, "stream": 0},
    {"action": "free_requested", "addr": 512, "size": 3000, "stream": 7},
    {"action": "free_completed", "addr": 512, "size": 3000, "stream": 7},
    {"action": "alloc", "addr": 512, "size": 10, "stream": 0},
    {"action": "snapshot", "addr": 0, "size": 0, "stream": 0},
]
ROWS = [100, [3000, 1], None, -2, 10]


def test_rows_are_sizes_and_numbers_of_what_is_freed(gpu):
    assert gpu.call_memory.rows_of(TRACE) == ROWS
    assert gpu.call_memory.sizes_of(ROWS) == [100, 3000, 10]
    assert gpu.call_memory.temporaries_of(ROWS) == [3000]
    assert gpu.call_memory.peak_of(ROWS) == 3100


def test_blocks_that_are_not_the_rounded_request_are_listed(gpu):
    blocks = [
        {"address": 0, "size": 512, "state": "active_allocated"},
        {"address": 512, "size": 1024, "state": "active_allocated"},
    ]
    assert gpu.call_memory.differing_blocks(TRACE, [{"blocks": blocks}]) == {"3": 1024}


def test_flags_are_restored_also_after_an_error(gpu, torch):
    torch.backends.cudnn.benchmark, torch.backends.cudnn.enabled = "before", "as well"
    torch.are_deterministic_algorithms_enabled.return_value = False
    with contextlib.suppress(KeyError), gpu.call_memory.flags(torch, {"benchmark": True, "cudnn": False}):
        assert (torch.backends.cudnn.benchmark, torch.backends.cudnn.enabled) == (True, False)
        raise KeyError
    assert (torch.backends.cudnn.benchmark, torch.backends.cudnn.enabled) == ("before", "as well")
    torch.use_deterministic_algorithms.assert_called_with(False)


def test_unknown_flag_is_refused(gpu, torch):
    with pytest.raises(ValueError, match="unknown flag 'fast'"), gpu.call_memory.flags(torch, {"fast": True}):
        pass
