"""What a forked child may do with devices that its parent opened. Each child has a limit: it must never hang."""

from __future__ import annotations

import sys

import pytest
from support.forking import FORKED

pytestmark = pytest.mark.skipif(not hasattr(__import__("os"), "fork"), reason="nothing forks here")

BEGIN = """
import gc, os, signal, sys, threading, traceback, warnings
import numpy as np
import forebay
from forebay import Forked

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
stream, event = forebay.Stream("host:0"), forebay.Event()
with stream:
    made = forebay.zeros(4)
    event.record()
pinned = forebay.empty_pinned(4)
lent = made.numpy()

def check():
    for use in (
        lambda: forebay.zeros(4), lambda: forebay.allocate(4), lambda: forebay.Stream(), forebay.synchronize,
        lambda: forebay.set_device("host:0"), lambda: forebay.set_stream(stream), stream.__enter__,
        stream.query, stream.synchronize, event.query, event.synchronize, event.wait, event.record,
        forebay.default_stream, forebay.current_stream, lambda: stream.queue, lambda: event.record(stream),
        made.numpy, made.tolist, lambda: made.fill_(1), lambda: made.copy_(made[::-1]), made.clone,
        lambda: np.asarray(made), lambda: forebay.from_numpy(np.ones(2)), lambda: forebay.empty_pinned(3),
        forebay.memory.memory_allocated, forebay.memory.empty_cache, forebay.memory.snapshot,
        lambda: forebay.memory.set_capacity("1GiB"),
    ):
        told(use)
    assert lent.tolist() == [0, 0, 0, 0]  # the child's own copy
    assert (made.shape, made.data_ptr() != 0, str(made.device)) == ((4,), True, "host:0")
    assert forebay.current_device() == forebay.Device("host:0")
    assert repr(stream).startswith("<forebay.Stream")

assert forked(check) == 0
assert made.tolist() == [0, 0, 0, 0]
""")  # fmt: skip


def test_the_words_are_those_of_the_documentation(runner):
    succeeds(
        runner,
        """
forebay.synchronize("host:0")
def check():
    try:
        forebay.synchronize("host:0")
    except Forked as error:
        assert str(error) == (
            "host:0 was opened before this process was forked, and its queues did not come along: open devices after "
            "the fork, start processes with the 'spawn' method or call forebay.reopen('host:0')"
        ), error
assert forked(check) == 0
""",
    )


def test_a_child_of_a_parent_that_opened_nothing_just_works(runner):
    succeeds(
        runner,
        """
def check():
    assert forebay.full((3,), 2).tolist() == [2, 2, 2]
assert forked(check) == 0
""",
    )


def test_reopening(runner):
    succeeds(runner, """
stream = forebay.Stream("host:0")
forebay.set_stream(stream)
made = forebay.full((3,), 2)
event = stream.record_event()
stream.synchronize()

def check():
    forebay.reopen("host:0")
    forebay.reopen("host:0")  # twice is once
    assert forebay.current_stream() == forebay.default_stream()
    assert forebay.memory.memory_allocated() == 0
    assert forebay.full((3,), 7).tolist() == [7, 7, 7]
    again = forebay.Stream()
    assert again != stream
    with again:
        assert forebay.tensor([1.5]).tolist() == [1.5]
    # What is of before stays unusable, and says so.
    before = "it was reopened since"
    for use in (stream.synchronize, stream.query, event.query, stream.__enter__,
                lambda: forebay.set_stream(stream), lambda: again.wait_stream(stream),
                lambda: again.wait_event(event)):
        told(use, before)
    forebay.synchronize()

    def grandchild():
        told(forebay.synchronize)
        forebay.reopen("host:0")
        assert forebay.full((3,), 8).tolist() == [8, 8, 8]
    assert forked(grandchild) == 0
    assert forebay.full((3,), 9).tolist() == [9, 9, 9]

assert forked(check) == 0
forebay.reopen("host:0")  # in the parent: nothing to do
assert made.tolist() == [2, 2, 2]
""")  # fmt: skip


def test_a_backend_that_cannot_be_reopened(runner):
    succeeds(
        runner,
        """
from forebay import backends
from forebay.testing.fake import FakeDriver, FakePort
del FakePort.abandon
with backends.registered(FakeDriver()):
    stream = forebay.Stream("fake:0")
    block = forebay.allocate(1000, "fake:0")
    block.used_on(stream.handle)
    def check():
        global block
        told(lambda: forebay.allocate(1, "fake:0"), "the 'spawn' start method")
        told(lambda: forebay.reopen("fake:0"), "cannot be opened again")
        block = None
    assert forked(check) == 0
""",
    )


def test_leaving_a_stream_that_was_entered_before(runner):
    succeeds(
        runner,
        """
outer, inner = forebay.Stream("host:0"), forebay.Stream("host:0")
def check():
    inner.__exit__(None, None, None)
    forebay.reopen("host:0")
    assert forebay.current_stream() == forebay.default_stream()
    outer.__exit__(None, None, None)
    assert forebay.current_stream() == forebay.default_stream()
with outer, inner:
    assert forked(check) == 0
    assert forebay.current_stream() == inner
""",
    )


def test_dropping_what_the_parent_made(runner):
    """Blocks that wait for queues, streams, pinned memory: the child drops them without a word."""
    succeeds(
        runner,
        """
stream = forebay.Stream("host:0")
gate = threading.Event()
stream.queue.call(lambda: gate.wait(30))
things = {"pinned": forebay.empty_pinned(100), "stream": forebay.Stream("host:0"), "event": stream.record_event()}
for name in ("given", "kept"):
    things[name] = forebay.zeros(1000)
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
forebay.memory.set_capacity("100MiB", "host:0")
stream = forebay.Stream("host:0")
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
        except forebay.OutOfMemory as error:
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
forebay.synchronize("host:0")
def busy():
    with forebay.Stream("host:0") as stream:
        while not stop.is_set():
            held = [forebay.zeros(n * 1000) for n in range(1, 8)]
            held[0].record_stream(forebay.default_stream())
            del held
            forebay.memory.empty_cache()
threads = [threading.Thread(target=busy) for _ in range(2)]
for thread in threads:
    thread.start()
def check():
    told(lambda: forebay.zeros(3))
    forebay.reopen("host:0")
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


def test_a_child_leaves_by_the_front_door(runner):
    """sys.exit runs exit handlers in the child, too; nothing of the parent's is waited for."""
    succeeds(
        runner,
        """
gate = threading.Event()
stream = forebay.Stream("host:0")
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


def test_multiprocessing(runner):
    source = """
import multiprocessing, sys
import forebay

def work(reopen):
    try:
        if reopen:
            forebay.reopen("host:0")
        return forebay.full((2,), 3, device="host:0").tolist()
    except forebay.Forked as error:
        return str(error)

if __name__ == "__main__":
    forebay.synchronize("host:0")
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
