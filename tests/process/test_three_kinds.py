"""Forks and exit of a process with emulated CUDA, MPS and MTIA devices."""

from __future__ import annotations

import os

import pytest
from support.emulated_programs import PROLOGUE, environment_emulating, run_silently

FORKS = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")
ALL = environment_emulating("cuda:2,mps,mtia")
KINDS_PROLOGUE = """
from forebay import accelerator, mtia
KINDS = ["cuda", "mps", "mtia"]
"""


def test_environment_emulates_three_kinds(runner):
    run_silently(
        runner,
        KINDS_PROLOGUE
        + """
assert [forebay.device_count(kind) for kind in KINDS] == [2, 1, 1]
assert [forebay.why_not(kind) for kind in KINDS] == ["", "", ""]
assert [forebay.full((2,), 7, device=kind).tolist() for kind in KINDS] == [[7, 7]] * 3
assert (accelerator.current_accelerator().type, accelerator.device_count()) == ("cuda", 2)
forebay.set_device("mtia:0")
assert (accelerator.current_accelerator().type, accelerator.device_count()) == ("mtia", 1)
""",
        env=ALL,
    )


@FORKS
def test_forked_child_may_use_kinds_that_its_parent_did_not(runner):
    run_silently(
        runner,
        KINDS_PROLOGUE
        + """
cuda.init(), forebay.zeros(3, device="mps")
def child():
    assert forebay.full((2,), 7, device="mtia").tolist() == [7, 7]
    for kind in ("cuda", "mps"):
        message = f"Cannot re-initialize {kind.upper()} in forked subprocess"
        raises(lambda: forebay.zeros(3, device=kind), forebay.Forked, message)
        raises(lambda: forebay.full((2,), 7, device="mtia").to(kind), forebay.Forked, message)
    assert (cuda.is_initialized(), mtia.is_initialized()) == (False, True)
    forebay.set_device("mtia:0")
    assert accelerator.current_accelerator().type == "mtia"
    accelerator.synchronize()  # pending work holds memory
    assert accelerator.memory_allocated() == 0
assert forked(child) == 0
assert not mtia.is_initialized()
assert forebay.full((2,), 7, device="mtia").to("mps").to("cuda:1").tolist() == [7, 7]
""",
        env=ALL,
    )


@FORKS
def test_forked_child_inherits_the_current_accelerator(runner):
    """The current kind does not change in the child; its use raises Forked."""
    run_silently(
        runner,
        KINDS_PROLOGUE
        + """
forebay.set_device("mtia:0")
def child():
    assert accelerator.current_accelerator().type == "mtia"
    assert (accelerator.device_count(), accelerator.memory_allocated()) == (1, 0)
    for use in (accelerator.current_device_index, accelerator.current_stream, accelerator.synchronize):
        raises(use, forebay.Forked, "Cannot re-initialize MTIA in forked subprocess")
    forebay.set_device("cpu")
    assert accelerator.current_device_index() == 0
assert forked(child) == 0
""",
        env=ALL,
    )


@FORKS
@pytest.mark.parametrize("kind", ["cuda", "mps", "mtia"])
def test_forked_child_exits_while_queues_of_its_parent_work(runner, kind):
    run_silently(
        runner,
        KINDS_PROLOGUE
        + f"""
kind = {kind!r}
"""
        + """
gate, streams = threading.Event(), [forebay.Stream(each) for each in KINDS]
for stream in streams:
    started = threading.Event()  # CPython 3.11 hangs in a fork while another thread is about to enter the interpreter
    stream.queue.call(lambda started=started: (started.set(), gate.wait(20)))
    assert started.wait(20)
def child():
    raises(streams[KINDS.index(kind)].query, forebay.Forked, "")
pid = os.fork()
if pid == 0:
    signal.alarm(20)
    child()
    sys.exit(0)
assert os.waitpid(pid, 0)[1] == 0
gate.set()
for stream in streams:
    stream.synchronize()
""",
        env=ALL,
    )


@pytest.mark.parametrize(
    "source",
    [
        "made = [forebay.zeros(1000, device=kind) for kind in KINDS]",
        "made = [forebay.zeros(1000, device=kind) for kind in KINDS]; made.append(made)",
        "streams = [forebay.Stream(kind) for kind in KINDS]; [stream.__enter__() for stream in streams]",
        "a, b = forebay.Stream('cuda'), forebay.Stream('mtia'); b.wait_event(a.record_event())",
        "forebay.full((9,), 7, device='cuda:1').to('mps').to('mtia')",
        "emulation = forebay.emulate('mtia', count=2); made = forebay.zeros(9, device='mtia:1')",
        "for kind in KINDS: threading.Thread(target=lambda: forebay.zeros(10, device=kind).tolist()).start()",
    ],
)
def test_exit_is_silent(runner, source):
    runner.write(PROLOGUE + KINDS_PROLOGUE + source)
    done = runner.command("-W", "error", "script.py", env=ALL)
    assert (done.status, done.out, done.err) == (0, "", "")


def test_queued_work_of_each_kind_completes_at_exit(runner):
    runner.write(
        PROLOGUE
        + KINDS_PROLOGUE
        + """
gate = threading.Event()
for kind in KINDS:
    stream = forebay.Stream(kind)
    stream.queue.call(lambda: gate.wait(20))
    stream.queue.call(lambda kind=kind: print(kind, flush=True))
threading.Timer(0, gate.set).start()
"""
    )
    done = runner.command("-W", "error", "script.py", env=ALL)
    assert (done.status, sorted(done.out.split()), done.err) == (0, ["cuda", "mps", "mtia"], "")
