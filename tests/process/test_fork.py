"""Forked children of processes with open devices. Each child has a time limit, as it must never hang."""

from __future__ import annotations

import sys

import pytest
from support.forking import FORKED

pytestmark = pytest.mark.skipif(not hasattr(__import__("os"), "fork"), reason="needs os.fork")

PROLOGUE = """
import gc, os, signal, sys, threading, traceback, warnings
import numpy as np
import forebay
from forebay import Forked
from forebay.runtime.lifecycle import exit_and_fork

def raises_forked(function, message="fake:0 was opened before this process was forked"):
    try:
        function()
    except Forked as error:
        assert message in str(error), error
    else:
        raise AssertionError("did not raise Forked")
"""
PROLOGUE_WITH_FORK = PROLOGUE + FORKED


def run_silently(runner, source):
    runner.write(PROLOGUE_WITH_FORK + source)
    # Python 3.12 and later warn about forks of multi-threaded processes, which these programs test
    done = runner.command("-W", "error", "-W", "ignore:.*multi-threaded:DeprecationWarning", "script.py")
    assert (done.status, done.out, done.err) == (0, "", "")


def test_states_of_generators_work_in_a_forked_child(runner):
    run_silently(runner, """
generator = forebay.Generator("cuda").manual_seed(3)
state = generator.get_state()

def check():
    other = forebay.Generator("cuda")
    other.set_state(state)  # read before the CPU device was opened
    assert other.initial_seed() == 3
    other.set_state(other.get_state())
    assert state.tolist() == other.get_state().tolist()

forebay.zeros(4)
assert forked(check) == 0
assert state.tolist() == generator.get_state().tolist()
""")  # fmt: skip


FAKE = """
from forebay import backends
from forebay.testing.fake import FakeDriver, FakePort
del FakePort.after_fork_in_child
driver = backends.override_driver(FakeDriver())
driver.__enter__()
"""


def test_use_of_a_device_that_does_not_survive_the_fork_raises(runner):
    run_silently(runner, FAKE + """
forebay.set_device("fake:0")
stream, event = forebay.Stream("fake:0"), forebay.Event()
with stream:
    made = forebay.zeros(4, device="fake:0")
    event.record()
block = forebay.allocate(1000, "fake:0")
block.record_stream(stream.handle)

def check():
    global block
    for use in (
        lambda: forebay.zeros(4, device="fake:0"), lambda: forebay.allocate(4), lambda: forebay.Stream(),
        forebay.synchronize, lambda: forebay.set_device("fake:0"), lambda: forebay.set_stream(stream),
        stream.__enter__, stream.query, stream.synchronize, event.query, event.synchronize, event.record,
        forebay.default_stream, forebay.current_stream, lambda: stream.queue, lambda: event.record(stream),
        lambda: made.fill_(1), made.clone, forebay.memory.memory_allocated, forebay.memory.empty_cache,
        forebay.memory.snapshot, lambda: forebay.memory.set_capacity("1GiB"),
    ):
        raises_forked(use, "Cannot re-initialize FAKE in forked subprocess")
    assert (made.shape, made.data_ptr() != 0, str(made.device)) == ((4,), True, "fake:0")
    assert repr(stream).startswith("forebay.Stream device_type=")
    block = None

assert forked(check) == 0
""")  # fmt: skip


def test_message_of_a_device_whose_kind_was_not_initialised(runner):
    run_silently(
        runner,
        FAKE
        + """
forebay.synchronize("fake:0")
def check():
    from forebay.runtime.base import lazy_init
    lazy_init.get("fake").bad_fork = False
    try:
        forebay.synchronize("fake:0")
    except Forked as error:
        assert str(error) == (
            "fake:0 was opened before this process was forked and cannot be used in the child process: open devices "
            "after the fork or use the 'spawn' start method"
        ), error
    else:
        raise AssertionError("did not raise Forked")
assert forked(check) == 0
""",
    )


def test_forked_child_works_if_the_parent_opened_no_device(runner):
    run_silently(
        runner,
        """
def check():
    assert forebay.full((3,), 2).tolist() == [2, 2, 2]
assert forked(check) == 0
""",
    )


def test_forked_child_continues_to_use_the_cpu_device(runner):
    """Tensors, streams and events of the parent work in the child, and changes there are the child's own."""
    run_silently(runner, """
stream, event = forebay.Stream("cpu"), forebay.Event()
with stream:
    made = forebay.full((3,), 2)
    event.record()
forebay.set_stream(stream)
pinned = forebay.empty_pinned(4)
pinned[:] = 5
shared = forebay.from_numpy(np.ones(2))
allocated = forebay.memory.memory_allocated("cpu")

def check():
    assert forebay.current_stream() == stream
    assert event.query() and stream.query()
    event.synchronize()
    assert made.tolist() == [2, 2, 2] and pinned.tolist() == [5, 5, 5, 5] and shared.tolist() == [1, 1]
    assert forebay.memory.memory_allocated("cpu") == allocated
    made.fill_(7)
    made.copy_(made[:1].clone())
    assert made.tolist() == [7, 7, 7]
    new = forebay.Stream()
    assert new != stream
    new.wait_event(event)
    with new:
        assert forebay.tensor([1.5]).tolist() == [1.5]
        event.record()
    new.wait_stream(stream)
    forebay.synchronize("cpu")
    assert forebay.empty_pinned(3).shape == (3,)
    shared.fill_(3)

    def grandchild():
        assert made.tolist() == [7, 7, 7]
        made.fill_(8)
        assert forebay.full((3,), 8).tolist() == made.tolist()
        assert event.query()
    assert forked(grandchild) == 0
    assert made.tolist() == [7, 7, 7]
    assert len(forebay.memory.snapshot("cpu").segments)
    forebay.memory.empty_cache("cpu")
    assert stream.opened.allocator.check_invariants() is None

assert forked(check) == 0
assert made.tolist() == [2, 2, 2] and shared.tolist() == [1, 1]
""")  # fmt: skip


def test_queued_work_completes_before_the_fork(runner):
    run_silently(runner, """
stream = forebay.Stream("cpu")
made = [forebay.zeros(1 << 20) for _ in range(20)]
def check():
    assert all(each[-1].item() == n for n, each in enumerate(made))
for _ in range(3):
    for each in made:
        each.zero_()
    stream.wait_stream(forebay.current_stream())
    with stream:
        for n, each in enumerate(made):
            each.fill_(n)
    assert forked(check) == 0
    forebay.current_stream().wait_stream(stream)
""")  # fmt: skip


def test_forked_child_reports_work_that_was_still_pending(runner):
    run_silently(runner, """
exit_and_fork.FORK_SECONDS = 0.01
stream, gate = forebay.Stream("cpu"), threading.Event()
made = forebay.zeros(4)
stream.queue.call(lambda: gate.wait(30))
with stream:
    made.fill_(1)
event = stream.record_event()

def check():
    assert event.query()
    try:
        stream.synchronize()
    except forebay.DeviceError as error:
        assert "was pending when this process was forked, and is not done in it: synchronize" in str(error)
    else:
        raise AssertionError("lost work was not reported")
    assert made.tolist() == [0, 0, 0, 0]
    with stream:
        made.fill_(2)
    stream.synchronize()
    assert made.tolist() == [2, 2, 2, 2]

assert forked(check) == 0
gate.set()
stream.synchronize()
assert made.tolist() == [1, 1, 1, 1]
""")  # fmt: skip


def test_queued_function_can_fork(runner):
    """The fork does not wait for the function itself, and the child can use the device until it exits."""
    run_silently(runner, """
stream, statuses, made = forebay.Stream("cpu"), [], forebay.full((3,), 4)
forebay.synchronize("cpu")
def check():
    assert made.tolist() == [4, 4, 4]
    assert forebay.zeros(3).tolist() == [0, 0, 0]
stream.queue.call(lambda: statuses.append(forked(check)))
stream.synchronize()
assert statuses == [0]
""")  # fmt: skip


def test_forked_child_can_exit_entered_streams(runner):
    run_silently(
        runner,
        """
outer, inner = forebay.Stream("cpu"), forebay.Stream("cpu")
def check():
    assert forebay.current_stream() == inner
    inner.__exit__(None, None, None)
    assert forebay.current_stream() == outer
    outer.__exit__(None, None, None)
    assert forebay.current_stream() == forebay.default_stream()
with outer, inner:
    assert forked(check) == 0
    assert forebay.current_stream() == inner
""",
    )


def test_forked_child_can_delete_objects_of_its_parent(runner):
    """The child deletes streams, events, pinned memory and blocks with a pending free."""
    run_silently(
        runner,
        """
exit_and_fork.FORK_SECONDS = 0.2  # for work that waits for the gate
stream = forebay.Stream("cpu")
gate = threading.Event()
stream.queue.call(lambda: gate.wait(30))
objects = {"pinned": forebay.empty_pinned(100), "stream": forebay.Stream("cpu"), "event": stream.record_event()}
for name in ("pending", "kept"):
    objects[name] = forebay.zeros(1000)
    objects[name].record_stream(stream)
del objects["pending"]
def check():
    objects.clear()
    gc.collect()
assert forked(check) == 0
gate.set()
""",
    )


def test_allocator_keeps_working_in_a_forked_child(runner):
    """The NumPy hook keeps using its allocator in the child."""
    run_silently(
        runner,
        """
exit_and_fork.FORK_SECONDS = 0.2  # for work that waits for the gate
forebay.memory.set_capacity("100MiB", "cpu")
stream = forebay.Stream("cpu")
allocator = stream.opened.allocator
kept = allocator.allocate(30 << 20, 0)
cached = allocator.allocate(10 << 20, 0)
pending = allocator.allocate(5 << 20, 0)
gate = threading.Event()
stream.queue.call(lambda: gate.wait(30))
pending.record_stream(stream.handle)
address = cached.address
del cached, pending

def check():
    global kept
    import ctypes
    assert allocator.allocate(10 << 20, 0).address == address
    for _ in range(3):
        block = allocator.allocate(60 << 20, 0)
        ctypes.memset(block.address, 1, block.size)
        try:
            allocator.allocate(60 << 20, 0)
        except forebay.OutOfMemory as error:
            assert error.capacity == 100 << 20
        else:
            raise AssertionError("the limit no longer holds")
        del block
        allocator.empty()
    ctypes.memset(kept.address, 1, kept.size)
    kept = None
    allocator.empty()
    assert allocator.check_invariants() is None
assert forked(check) == 0
gate.set()
allocator.empty()
assert allocator.check_invariants() is None
""",
    )


def test_fork_while_other_threads_allocate(runner):
    run_silently(
        runner,
        """
stop = threading.Event()
forebay.synchronize("cpu")
def busy():
    with forebay.Stream("cpu") as stream:
        while not stop.is_set():
            held = [forebay.zeros(n * 1000) for n in range(1, 8)]
            held[0].record_stream(forebay.default_stream())
            del held
            forebay.memory.empty_cache()
threads = [threading.Thread(target=busy) for _ in range(2)]
for thread in threads:
    thread.start()
def check():
    for _ in range(20):
        assert forebay.full((1000,), 3).tolist() == [3] * 1000
    sys.stdout.flush()
for _ in range(30):
    assert forked(check) == 0
stop.set()
for thread in threads:
    thread.join()
forebay.synchronize()
assert forebay.memory.memory_allocated() == 0
""",
    )


def test_forked_child_exits_normally(runner):
    """sys.exit runs exit handlers in the child, which must not wait for work of the parent."""
    run_silently(
        runner,
        """
gate = threading.Event()
stream = forebay.Stream("cpu")
stream.queue.call(lambda: gate.wait(30))
made = forebay.zeros(10)
made.record_stream(stream)
sys.stdout.flush()
child = os.fork()
if child == 0:
    signal.alarm(20)
    sys.exit(0)
assert os.waitpid(child, 0)[1] == 0
gate.set()
""",
    )


def test_multiprocessing_start_methods(runner):
    source = """
import multiprocessing, sys
import forebay

made = None

def work(n):
    mine = forebay.full((2,), n, device="cpu").tolist()
    return mine if made is None else [a + b for a, b in zip(mine, made.tolist())]

if __name__ == "__main__":
    made = forebay.full((2,), 10, device="cpu")
    for method in ("fork", "spawn"):
        with multiprocessing.get_context(method).Pool(2) as pool:
            print(method, pool.map(work, range(3)))
"""
    done = runner.python(source)
    assert (done.status, done.out.splitlines()) == (
        0,
        ["fork [[10, 10], [11, 11], [12, 12]]", "spawn [[0, 0], [1, 1], [2, 2]]"],
    ), done.err
    assert sys.version_info >= (3, 12) or done.err == ""
