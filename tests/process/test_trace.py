"""Traces and processes: programs that end without a word, fork, or are run by `forebay run`."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.forking import FORKED
from support.perfetto_files import decoded

HEAD = """
import os, signal, sys, threading, traceback
import forebay
from forebay.observe import Trace, trace
"""


@pytest.mark.parametrize(
    ("end", "status"),
    [("", 0), ("sys.exit(3)", 3), ("raise ZeroDivisionError", 1)],
    ids=["the last line", "an exit", "an error"],
)
def test_a_trace_that_nobody_stops_is_written_when_the_program_ends(runner, tmp_path, end, status):
    done = runner.python(f"{HEAD}\nTrace('made.pftrace').start()\nforebay.zeros(10)\n{end}")
    assert done.status == status
    assert len(decoded(tmp_path / "made.pftrace").executed) == 1
    assert "Warning" not in done.err


def test_one_that_cannot_be_written_then_says_why(runner):
    source = "\nos.mkdir('gone'); Trace('gone/made.pftrace').start(); os.rmdir('gone')"
    done = runner.python(HEAD + source)
    assert done.status == 0
    assert done.err.count("made.pftrace could not be written when the program ended: ") == 1


def test_work_that_never_ends_is_told_as_not_done(runner, tmp_path):
    source = """
from forebay.runtime.lifecycle import exit_and_fork as lifecycle
lifecycle.EXIT_SECONDS = 0.05
stream = forebay.Stream("host:0")
Trace("made.pftrace", limit=0.05).start()
with stream:
    tensor = forebay.empty(10)
    tensor.fill_(0)
    stream.queue.call(lambda: threading.Event().wait(30))
    tensor.fill_(0)
"""
    done = runner.python(HEAD + source)
    assert done.status == 0
    assert "work of 1 queue was not done" in done.err
    found = decoded(tmp_path / "made.pftrace")
    assert (found.recording["operations"], found.recording["not done"]) == (2, 1)


def test_a_child_writes_nothing_and_has_nothing_of_its_parent(runner, tmp_path):
    source = (
        FORKED
        + """
def check():
    from forebay.runtime.base import observers as listening
    assert listening.tracer is None
    forebay.reopen("host:0")
    with trace("child.pftrace") as its:
        forebay.zeros(10)
    assert (its.operations, its.lost) == (1, 0)
    made.stop()
    assert not os.path.exists("made.pftrace")

made = Trace("made.pftrace")
made.start()
forebay.zeros(10)
assert forked(check) == 0
forebay.zeros(10)
made.stop()
"""
    )
    done = runner.python(HEAD + source)
    assert (done.status, done.err) == (0, "")
    assert len(decoded(tmp_path / "made.pftrace").executed) == 2
    assert len(decoded(tmp_path / "child.pftrace").executed) == 1


def test_a_child_can_trace_though_a_thread_of_its_parent_was_beginning_to(runner, tmp_path):
    source = (
        FORKED
        + """
from forebay.mps import profiler
from forebay.observe.tracing import profiler_session as profiling
forebay.emulate("mps")
held, done = threading.Event(), threading.Event()

def hold():
    with profiling.changing:
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
    done = runner.python(HEAD + source)
    assert (done.status, done.err) == (0, "")
    assert len(list(tmp_path.glob("forebay-trace-*.pftrace"))) == 1


def test_a_child_that_leaves_by_itself_leaves_the_file_to_its_parent(runner, tmp_path):
    source = """
with trace("made.pftrace"):
    forebay.zeros(10)
    if os.fork() == 0:
        sys.exit(0)
    assert os.wait()[1] == 0
    assert not os.path.exists("made.pftrace")
"""
    done = runner.python(HEAD + source)
    assert (done.status, done.err) == (0, "")
    assert len(decoded(tmp_path / "made.pftrace").executed) == 1


def test_the_cuda_profiler_that_nobody_stops_is_written(runner, tmp_path):
    source = "import forebay, forebay.cuda as cuda\ncuda.profiler.start()\nforebay.zeros(10, device='cuda')"
    environment = {"FOREBAY_TRACE": "made.pftrace", "FOREBAY_EMULATE": "cuda", "PATH": "/bin"}
    done = runner.python(source, env=environment)
    assert (done.status, done.err) == (0, "")
    assert [each.name for each in decoded(tmp_path / "made.pftrace").executed] == ["fill_"]


# forebay run --trace


def test_a_whole_program_is_traced(runner, tmp_path):
    source = "import os, forebay\nforebay.zeros(10, device='cuda')\nos.mkdir('there'); os.chdir('there')"
    done = runner.forebay(source, options=("--emulate", "cuda", "--trace", "made.pftrace"))
    assert done.status == 0
    assert f"trace     {tmp_path / 'made.pftrace'}\n" in done.err
    (execution,) = decoded(tmp_path / "made.pftrace").executed
    assert (Path(execution.file).name, execution.line) == ("script.py", 2)


def test_a_place_where_no_trace_can_be_is_told_before_the_program_runs(runner):
    done = runner.forebay("print('ran')", options=("--trace", "no/folder/made.pftrace"))
    assert (done.status, done.out) == (2, "")
    assert done.err.startswith("forebay: error: cannot write a trace to ")
    assert done.err.count("\n") == 1
