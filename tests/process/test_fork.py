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

def raises_forked(function, message="cpu was opened before this process was forked"):
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
    raises_forked(state.tolist)

forebay.zeros(4)
assert forked(check) == 0
assert state.tolist() == generator.get_state().tolist()
""")  # fmt: skip


def test_device_use_in_a_forked_child_raises(runner):
    run_silently(runner, """
stream, event = forebay.Stream("cpu"), forebay.Event()
with stream:
    made = forebay.zeros(4)
    event.record()
pinned = forebay.empty_pinned(4)
array = made.numpy()

def check():
    for use in (
        lambda: forebay.zeros(4), lambda: forebay.allocate(4), lambda: forebay.Stream(), forebay.synchronize,
        lambda: forebay.set_device("cpu"), lambda: forebay.set_stream(stream), stream.__enter__,
        stream.query, stream.synchronize, event.query, event.synchronize, event.wait, event.record,
        forebay.default_stream, forebay.current_stream, lambda: stream.queue, lambda: event.record(stream),
        made.numpy, made.tolist, lambda: made.fill_(1), lambda: made.copy_(made[::-1]), made.clone,
        lambda: np.asarray(made), lambda: forebay.from_numpy(np.ones(2)), lambda: forebay.empty_pinned(3),
        forebay.memory.memory_allocated, forebay.memory.empty_cache, forebay.memory.snapshot,
        lambda: forebay.memory.set_capacity("1GiB"),
    ):
        raises_forked(use)
    assert array.tolist() == [0, 0, 0, 0]  # the copy of the child
    assert (made.shape, made.data_ptr() != 0, str(made.device)) == ((4,), True, "cpu")
    assert forebay.current_device() == forebay.device("cpu")
    assert repr(stream).startswith("forebay.Stream device_type=")

assert forked(check) == 0
assert made.tolist() == [0, 0, 0, 0]
""")  # fmt: skip


def test_forked_message_suggests_remedies(runner):
    run_silently(
        runner,
        """
forebay.synchronize("cpu")
def check():
    try:
        forebay.synchronize("cpu")
    except Forked as error:
        assert str(error) == (
            "cpu was opened before this process was forked and cannot be used in the child process: open devices "
            "after the fork or use the 'spawn' start method, or call forebay.reopen('cpu')"
        ), error
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


def test_forked_child_can_reopen_the_device(runner):
    run_silently(runner, """
stream = forebay.Stream("cpu")
forebay.set_stream(stream)
made = forebay.full((3,), 2)
event = stream.record_event()
stream.synchronize()

def check():
    forebay.reopen("cpu")
    forebay.reopen("cpu")  # idempotent
    assert forebay.current_stream() == forebay.default_stream()
    assert forebay.memory.memory_allocated() == 0
    assert forebay.full((3,), 7).tolist() == [7, 7, 7]
    new = forebay.Stream()
    assert new != stream
    with new:
        assert forebay.tensor([1.5]).tolist() == [1.5]
    # Objects from before stay unusable.
    before = "the device was reopened"
    for use in (stream.synchronize, stream.query, event.query, stream.__enter__,
                lambda: forebay.set_stream(stream), lambda: new.wait_stream(stream),
                lambda: new.wait_event(event)):
        raises_forked(use, before)
    forebay.synchronize()

    def grandchild():
        raises_forked(forebay.synchronize)
        forebay.reopen("cpu")
        assert forebay.full((3,), 8).tolist() == [8, 8, 8]
    assert forked(grandchild) == 0
    assert forebay.full((3,), 9).tolist() == [9, 9, 9]

assert forked(check) == 0
forebay.reopen("cpu")  # no effect in the parent
assert made.tolist() == [2, 2, 2]
""")  # fmt: skip


def test_reopen_requires_backend_support(runner):
    run_silently(
        runner,
        """
from forebay import backends
from forebay.testing.fake import FakeDriver, FakePort
del FakePort.abandon
with backends.override_driver(FakeDriver()):
    stream = forebay.Stream("fake:0")
    block = forebay.allocate(1000, "fake:0")
    block.record_stream(stream.handle)
    def check():
        global block
        raises_forked(lambda: forebay.allocate(1, "fake:0"), "the 'spawn' start method")
        raises_forked(lambda: forebay.reopen("fake:0"), "cannot be reopened in a forked process")
        block = None
    assert forked(check) == 0
""",
    )


def test_forked_child_can_exit_entered_streams(runner):
    run_silently(
        runner,
        """
outer, inner = forebay.Stream("cpu"), forebay.Stream("cpu")
def check():
    inner.__exit__(None, None, None)
    forebay.reopen("cpu")
    assert forebay.current_stream() == forebay.default_stream()
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
    raises_forked(lambda: forebay.zeros(3))
    forebay.reopen("cpu")
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

def work(reopen):
    try:
        if reopen:
            forebay.reopen("cpu")
        return forebay.full((2,), 3, device="cpu").tolist()
    except forebay.Forked as error:
        return str(error)

if __name__ == "__main__":
    forebay.synchronize("cpu")
    for method in ("fork", "spawn"):
        with multiprocessing.get_context(method).Pool(1) as pool:
            for reopen in (False, True):
                print(method, pool.apply(work, (reopen,)))
"""
    done = runner.python(source)
    lines = done.out.splitlines()
    assert done.status == 0, done.err
    assert lines[0].startswith("fork cpu was opened before this process was forked and cannot be used in the child")
    assert lines[1:] == ["fork [3, 3]", "spawn [3, 3]", "spawn [3, 3]"]
    assert sys.version_info >= (3, 12) or done.err == ""
