"""Traces in processes that exit, fork, or run under `forebay run`."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.forking import FORKED
from support.perfetto_files import decode

PROLOGUE = """
import os, signal, sys, threading, traceback
import forebay
from forebay.observe import Trace, trace
"""


@pytest.mark.parametrize(
    ("end", "status"),
    [("", 0), ("sys.exit(3)", 3), ("raise ZeroDivisionError", 1)],
    ids=["end of program", "exit", "error"],
)
def test_running_trace_is_written_at_exit(runner, tmp_path, end, status):
    done = runner.python(f"{PROLOGUE}\nTrace('made.pftrace').start()\nforebay.zeros(10)\n{end}")
    assert done.status == status
    assert len(decode(tmp_path / "made.pftrace").executed) == 1
    assert "Warning" not in done.err


def test_unwritable_trace_warns_at_exit(runner):
    source = "\nos.mkdir('gone'); Trace('gone/made.pftrace').start(); os.rmdir('gone')"
    done = runner.python(PROLOGUE + source)
    assert done.status == 0
    assert done.err.count("made.pftrace could not be written when the program ended: ") == 1


def test_endless_work_is_reported_as_not_done(runner, tmp_path):
    source = """
from forebay.runtime.lifecycle import exit_and_fork
exit_and_fork.EXIT_SECONDS = 0.05
stream = forebay.Stream("cpu")
Trace("made.pftrace", limit=0.05).start()
with stream:
    tensor = forebay.empty(10)
    tensor.fill_(0)
    stream.queue.call(lambda: threading.Event().wait(30))
    tensor.fill_(0)
"""
    done = runner.python(PROLOGUE + source)
    assert done.status == 0
    assert "work of 1 queue was not done" in done.err
    found = decode(tmp_path / "made.pftrace")
    assert (found.recording["operations"], found.recording["not done"]) == (2, 1)


def test_forked_child_does_not_inherit_the_trace(runner, tmp_path):
    source = (
        FORKED
        + """
def check():
    from forebay.runtime.base import observers
    assert observers.tracer is None
    with trace("child.pftrace") as child_trace:
        forebay.zeros(10)
    assert (child_trace.operations, child_trace.lost) == (1, 0)
    running.stop()
    assert not os.path.exists("made.pftrace")

running = Trace("made.pftrace")
running.start()
forebay.zeros(10)
assert forked(check) == 0
forebay.zeros(10)
running.stop()
"""
    )
    done = runner.python(PROLOGUE + source)
    assert (done.status, done.err) == (0, "")
    assert len(decode(tmp_path / "made.pftrace").executed) == 2
    assert len(decode(tmp_path / "child.pftrace").executed) == 1


def test_forked_child_can_trace_despite_lock_held_in_parent(runner, tmp_path):
    source = (
        FORKED
        + """
from forebay.mps import profiler
from forebay.observe.tracing import profiler_session
forebay.emulate("mps")
held, done = threading.Event(), threading.Event()

def hold():
    with profiler_session.lock:
        held.set()
        done.wait(20)

def check():
    signal.alarm(20)
    with profiler.profile():
        pass

other = threading.Thread(target=hold)
other.start()
assert held.wait(20)
try:
    assert forked(check) == 0
finally:
    done.set()
    other.join(20)
"""
    )
    done = runner.python(PROLOGUE + source)
    assert (done.status, done.err) == (0, "")
    assert len(list(tmp_path.glob("forebay-trace-*.pftrace"))) == 1


def test_exiting_child_does_not_write_the_trace_of_its_parent(runner, tmp_path):
    source = """
with trace("made.pftrace"):
    forebay.zeros(10)
    if os.fork() == 0:
        sys.exit(0)
    assert os.wait()[1] == 0
    assert not os.path.exists("made.pftrace")
"""
    done = runner.python(PROLOGUE + source)
    assert (done.status, done.err) == (0, "")
    assert len(decode(tmp_path / "made.pftrace").executed) == 1


def test_running_cuda_profiler_is_written_at_exit(runner, tmp_path):
    source = "import forebay, forebay.cuda as cuda\ncuda.profiler.start()\nforebay.zeros(10, device='cuda')"
    environment = {"FOREBAY_TRACE": "made.pftrace", "FOREBAY_EMULATE": "cuda", "PATH": "/bin"}
    done = runner.python(source, env=environment)
    assert (done.status, done.err) == (0, "")
    assert [each.name for each in decode(tmp_path / "made.pftrace").executed] == ["fill_"]


# forebay run --trace


def test_run_traces_the_whole_program(runner, tmp_path):
    source = "import os, forebay\nforebay.zeros(10, device='cuda')\nos.mkdir('folder'); os.chdir('folder')"
    done = runner.forebay(source, options=("--emulate", "cuda", "--compute", "--trace", "made.pftrace"))
    assert done.status == 0
    assert f"trace     {tmp_path / 'made.pftrace'}\n" in done.err
    (execution,) = decode(tmp_path / "made.pftrace").executed
    assert (Path(execution.file).name, execution.line) == ("script.py", 2)


def test_unwritable_trace_path_is_rejected_before_the_program_runs(runner):
    done = runner.forebay("print('ran')", options=("--trace", "no/folder/made.pftrace"))
    assert (done.status, done.out) == (2, "")
    assert done.err.startswith("forebay: error: cannot write a trace to ")
    assert done.err.count("\n") == 1
