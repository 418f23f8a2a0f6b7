"""What a forked child may do with devices that its parent opened. Each child has a limit: it must never hang."""

from __future__ import annotations

import sys

import pytest
from forking import FORKED

pytestmark = pytest.mark.skipif(not hasattr(__import__("os"), "fork"), reason="nothing forks here")

BEGIN = """
import gc, os, signal, sys, threading, traceback, warnings
import numpy as np
import penstock
from penstock import Forked

def told(use, words="host:0 was opened before this process was forked"):
    try:
        use()
    except Forked as error:
        assert words in str(error), error
    else:
        raise AssertionError("it was not refused")
"""
HEAD = BEGIN + FORKED


def succeeds(runner, source):
    runner.write(HEAD + source)
    # Python 3.12 and later warn of any fork beside threads: the children here are about just that
    done = runner.command("-W", "error", "-W", "ignore:.*multi-threaded:DeprecationWarning", "script.py")
    assert (done.status, done.out, done.err) == (0, "", "")


def test_everything_that_needs_the_device_says_so(runner):
    succeeds(runner, """
stream, event = penstock.Stream("host:0"), penstock.Event()
with stream:
    made = penstock.zeros(4)
    event.record()
pinned = penstock.empty_pinned(4)
lent = made.numpy()

def check():
    for use in (
        lambda: penstock.zeros(4), lambda: penstock.allocate(4), lambda: penstock.Stream(), penstock.synchronize,
        lambda: penstock.set_device("host:0"), lambda: penstock.set_stream(stream), stream.__enter__,
        stream.query, stream.synchronize, event.query, event.synchronize, event.wait, event.record,
        penstock.default_stream, penstock.current_stream, lambda: stream.queue, lambda: event.record(stream),
        made.numpy, made.tolist, lambda: made.fill_(1), lambda: made.copy_(made[::-1]), made.clone,
        lambda: np.asarray(made), lambda: penstock.from_numpy(np.ones(2)), lambda: penstock.empty_pinned(3),
        penstock.memory.memory_allocated, penstock.memory.empty_cache, penstock.memory.snapshot,
        lambda: penstock.memory.set_capacity("1GiB"),
    ):
        told(use)
    assert lent.tolist() == [0, 0, 0, 0]  # the child's own copy
    assert (made.shape, made.data_ptr() != 0, str(made.device)) == ((4,), True, "host:0")
    assert penstock.current_device() == penstock.Device("host:0")
    assert repr(stream).startswith("<penstock.Stream")

assert forked(check) == 0
assert made.tolist() == [0, 0, 0, 0]
""")  # fmt: skip


def test_the_words_are_those_of_the_documentation(runner):
    succeeds(
        runner,
        """
penstock.synchronize("host:0")
def check():
    try:
        penstock.synchronize("host:0")
    except Forked as error:
        assert str(error) == (
            "host:0 was opened before this process was forked, and its queues did not come along: open devices after "
            "the fork, start processes with the 'spawn' method or call penstock.reopen('host:0')"
        ), error
assert forked(check) == 0
""",
    )


def test_a_child_of_a_parent_that_opened_nothing_just_works(runner):
    succeeds(
        runner,
        """
def check():
    assert penstock.full((3,), 2).tolist() == [2, 2, 2]
assert forked(check) == 0
""",
    )


def test_reopening(runner):
    succeeds(runner, """
stream = penstock.Stream("host:0")
penstock.set_stream(stream)
made = penstock.full((3,), 2)
event = stream.record_event()
stream.synchronize()

def check():
    penstock.reopen("host:0")
    penstock.reopen("host:0")  # twice is once
    assert penstock.current_stream() == penstock.default_stream()
    assert penstock.memory.memory_allocated() == 0
    assert penstock.full((3,), 7).tolist() == [7, 7, 7]
    again = penstock.Stream()
    assert again != stream
    with again:
        assert penstock.tensor([1.5]).tolist() == [1.5]
    # What is of before stays unusable, and says so.
    before = "it was reopened since"
    for use in (stream.synchronize, stream.query, event.query, stream.__enter__,
                lambda: penstock.set_stream(stream), lambda: again.wait_stream(stream),
                lambda: again.wait_event(event)):
        told(use, before)
    penstock.synchronize()

    def grandchild():
        told(penstock.synchronize)
        penstock.reopen("host:0")
        assert penstock.full((3,), 8).tolist() == [8, 8, 8]
    assert forked(grandchild) == 0
    assert penstock.full((3,), 9).tolist() == [9, 9, 9]

assert forked(check) == 0
penstock.reopen("host:0")  # in the parent: nothing to do
assert made.tolist() == [2, 2, 2]
""")  # fmt: skip


def test_a_backend_that_cannot_be_reopened(runner):
    succeeds(
        runner,
        """
from penstock import backends
from penstock.testing.fake import FakeDriver, FakePort
del FakePort.abandon
with backends.registered(FakeDriver()):
    stream = penstock.Stream("fake:0")
    block = penstock.allocate(1000, "fake:0")
    block.used_on(stream.handle)
    def check():
        global block
        told(lambda: penstock.allocate(1, "fake:0"), "the 'spawn' start method")
        told(lambda: penstock.reopen("fake:0"), "cannot be opened again")
        block = None
    assert forked(check) == 0
""",
    )


def test_leaving_a_stream_that_was_entered_before(runner):
    succeeds(
        runner,
        """
outer, inner = penstock.Stream("host:0"), penstock.Stream("host:0")
def check():
    inner.__exit__(None, None, None)
    penstock.reopen("host:0")
    assert penstock.current_stream() == penstock.default_stream()
    outer.__exit__(None, None, None)
    assert penstock.current_stream() == penstock.default_stream()
with outer, inner:
    assert forked(check) == 0
    assert penstock.current_stream() == inner
""",
    )


def test_dropping_what_the_parent_made(runner):
    """Blocks that wait for queues, streams, pinned memory: the child drops them without a word."""
    succeeds(
        runner,
        """
stream = penstock.Stream("host:0")
gate = threading.Event()
stream.queue.call(lambda: gate.wait(30))
things = {"pinned": penstock.empty_pinned(100), "stream": penstock.Stream("host:0"), "event": stream.record_event()}
for name in ("given", "kept"):
    things[name] = penstock.zeros(1000)
    things[name].record_stream(stream)
del things["given"]
def check():
    things.clear()
    gc.collect()
assert forked(check) == 0
gate.set()
""",
    )


def test_the_pool_goes_on_in_the_child_with_memory_of_its_own(runner):
    """NumPy's handler holds an allocator and knows of no fork."""
    succeeds(
        runner,
        """
penstock.memory.set_capacity("100MiB", "host:0")
stream = penstock.Stream("host:0")
allocator = stream.opened.allocator
kept = allocator.allocate(30 << 20, 0)
cached = allocator.allocate(10 << 20, 0)
waiting = allocator.allocate(5 << 20, 0)
gate = threading.Event()
stream.queue.call(lambda: gate.wait(30))
waiting.used_on(stream.handle)
address = cached.address
del cached, waiting

def check():
    global kept
    import ctypes
    assert allocator.allocate(10 << 20, 0).address == address
    for _ in range(3):
        fresh = allocator.allocate(60 << 20, 0)
        ctypes.memset(fresh.address, 1, fresh.size)
        try:
            allocator.allocate(60 << 20, 0)
        except penstock.OutOfMemory as error:
            assert error.capacity == 100 << 20
        else:
            raise AssertionError("the limit is gone")
        del fresh
        allocator.empty()
    ctypes.memset(kept.address, 1, kept.size)
    kept = None
    allocator.empty()
    assert allocator.broken() is None
assert forked(check) == 0
gate.set()
allocator.empty()
assert allocator.broken() is None
""",
    )


def test_while_another_thread_allocates(runner):
    succeeds(
        runner,
        """
stop = threading.Event()
penstock.synchronize("host:0")
def busy():
    with penstock.Stream("host:0") as stream:
        while not stop.is_set():
            held = [penstock.zeros(n * 1000) for n in range(1, 8)]
            held[0].record_stream(penstock.default_stream())
            del held
            penstock.memory.empty_cache()
threads = [threading.Thread(target=busy) for _ in range(2)]
for thread in threads:
    thread.start()
def check():
    told(lambda: penstock.zeros(3))
    penstock.reopen("host:0")
    for _ in range(20):
        assert penstock.full((1000,), 3).tolist() == [3] * 1000
    sys.stdout.flush()
for _ in range(30):
    assert forked(check) == 0
stop.set()
for thread in threads:
    thread.join()
penstock.synchronize()
assert penstock.memory.memory_allocated() == 0
""",
    )


def test_a_child_leaves_by_the_front_door(runner):
    """sys.exit runs exit handlers in the child, too; nothing of the parent's is waited for."""
    succeeds(
        runner,
        """
gate = threading.Event()
stream = penstock.Stream("host:0")
stream.queue.call(lambda: gate.wait(30))
made = penstock.zeros(10)
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


def test_multiprocessing(runner):
    source = """
import multiprocessing, sys
import penstock

def work(reopen):
    try:
        if reopen:
            penstock.reopen("host:0")
        return penstock.full((2,), 3, device="host:0").tolist()
    except penstock.Forked as error:
        return str(error)

if __name__ == "__main__":
    penstock.synchronize("host:0")
    for method in ("fork", "spawn"):
        with multiprocessing.get_context(method).Pool(1) as pool:
            for reopen in (False, True):
                print(method, pool.apply(work, (reopen,)))
"""
    done = runner.python(source)
    lines = done.out.splitlines()
    assert done.status == 0, done.err
    assert lines[0].startswith(
        "fork host:0 was opened before this process was forked, and its queues did not come along"
    )
    assert lines[1:] == ["fork [3, 3]", "spawn [3, 3]", "spawn [3, 3]"]
    assert sys.version_info >= (3, 12) or done.err == ""
