"""A process with emulated CUDA, MPS and MTIA devices: how it forks and how it ends."""

from __future__ import annotations

import os

import pytest
from support.emulated_programs import BEGIN, emulating, succeeds

FORKS = pytest.mark.skipif(not hasattr(os, "fork"), reason="nothing forks here")
ALL = emulating("cuda:2,mps,mtia")
HEAD = """
from forebay import accelerator, mtia
KINDS = ["cuda", "mps", "mtia"]
"""


def test_the_environment_asks_for_all_of_them(runner):
    succeeds(
        runner,
        HEAD
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
def test_a_child_may_use_the_kinds_that_its_parent_did_not(runner):
    succeeds(
        runner,
        HEAD
        + """
cuda.init(), forebay.zeros(3, device="mps")
def child():
    assert forebay.full((2,), 7, device="mtia").tolist() == [7, 7]
    for kind in ("cuda", "mps"):
        words = f"Cannot re-initialize {kind.upper()} in forked subprocess"
        refused(lambda: forebay.zeros(3, device=kind), forebay.Forked, words)
        refused(lambda: forebay.full((2,), 7, device="mtia").to(kind), forebay.Forked, words)
    assert (cuda.is_initialized(), mtia.is_initialized()) == (False, True)
    forebay.set_device("mtia:0")
    assert accelerator.current_accelerator().type == "mtia"
    accelerator.synchronize()  # what is queued keeps its memory
    assert accelerator.memory_allocated() == 0
assert forked(child) == 0
assert not mtia.is_initialized()
assert forebay.full((2,), 7, device="mtia").to("mps").to("cuda:1").tolist() == [7, 7]
""",
        env=ALL,
    )


@FORKS
def test_the_accelerator_of_a_child_is_still_its_parents(runner):
    """The kind does not change under a program because it forked: what it asks for says why it cannot be had."""
    succeeds(
        runner,
        HEAD
        + """
forebay.set_device("mtia:0")
def child():
    assert accelerator.current_accelerator().type == "mtia"
    assert (accelerator.device_count(), accelerator.memory_allocated()) == (1, 0)
    for use in (accelerator.current_device_index, accelerator.current_stream, accelerator.synchronize):
        refused(use, forebay.Forked, "Cannot re-initialize MTIA in forked subprocess")
    forebay.set_device("host:0")
    assert accelerator.current_device_index() == 0
assert forked(child) == 0
""",
        env=ALL,
    )


@FORKS
@pytest.mark.parametrize("kind", ["cuda", "mps", "mtia"])
def test_a_child_ends_while_its_parents_queues_work(runner, kind):
    succeeds(
        runner,
        HEAD
        + f"""
kind = {kind!r}
"""
        + """
gate, streams = threading.Event(), [forebay.Stream(each) for each in KINDS]
for stream in streams:
    begun = threading.Event()  # CPython 3.11 hangs in a fork while another thread is only about to enter it
    stream.queue.call(lambda begun=begun: (begun.set(), gate.wait(20)))
    assert begun.wait(20)
def child():
    refused(streams[KINDS.index(kind)].query, forebay.Forked, "")
pid = os.fork()
if pid == 0:
    signal.alarm(20)
    child()
    sys.exit(0)  # by the front door
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
def test_it_leaves_without_a_word(runner, source):
    runner.write(BEGIN + HEAD + source)
    done = runner.command("-W", "error", "script.py", env=ALL)
    assert (done.status, done.out, done.err) == (0, "", "")


def test_queued_work_of_each_kind_is_done_at_exit(runner):
    runner.write(
        BEGIN
        + HEAD
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
