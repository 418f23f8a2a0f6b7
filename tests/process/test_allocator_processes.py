"""Memory pools and allocator settings in whole processes: threads, forks, signals, interpreter shutdown."""

from __future__ import annotations

import os

import pytest

SETTINGS = ["", "expandable_segments:True", "max_split_size_mb:20,garbage_collection_threshold:0.5"]
PROLOGUE = """
import gc, os, random, signal, sys, threading, traceback
import forebay
from forebay import memory

memory.set_capacity("64MiB", "cpu")
shared_on_oom, no_split = memory.MemPool(use_on_oom=True), memory.MemPool(no_split=True)
allocator = forebay.default_stream("cpu").opened.allocator

def work(seed, steps, stop=lambda: False):
    rng, held = random.Random(seed), []
    private = memory.MemPool()
    with forebay.Stream("cpu") as stream:
        for step in range(steps):
            if stop():
                break
            try:
                if rng.random() < 0.3:
                    with memory.use_mem_pool(private, "cpu"):
                        block = forebay.allocate(int(2 ** rng.uniform(4, 22)), "cpu")
                else:
                    block = forebay.allocate(int(2 ** rng.uniform(4, 23)), "cpu")
            except forebay.OutOfMemory:
                held.clear()
                continue
            if rng.random() < 0.3:
                block.record_stream(forebay.default_stream("cpu").handle)
            held.append(block)
            if len(held) > 5:
                held.pop(rng.randrange(len(held)))
            if step % 20 == 0:
                memory.empty_cache("cpu")
"""
EPILOGUE = """
shared_on_oom = no_split = None
forebay.synchronize("cpu")
gc.collect()
memory.empty_cache("cpu")
assert allocator.check_invariants() is None
stats = memory.memory_stats("cpu")
assert stats["active.all.current"] == stats["reserved_bytes.all.current"] == 0, stats
assert memory.mem_get_info("cpu") == (64 << 20, 64 << 20)
assert [pool.id for pool in allocator.private] == []
"""


@pytest.fixture(params=SETTINGS, ids=["default", "expandable", "garbage collection"])
def run_silently(runner, request):
    """Return a function that runs a program, which must succeed without output, with each setting."""

    def run(source):
        runner.write(source)
        options = ["-W", "error", "-W", "ignore:.*multi-threaded:DeprecationWarning", "-X", "faulthandler"]
        done = runner.command(*options, "script.py", env={**os.environ, "FOREBAY_ALLOC_CONF": request.param})
        assert (done.status, done.out, done.err) == (0, "", "")

    return run


def test_eight_threads_use_private_pools(run_silently):
    run_silently(PROLOGUE + """
failures = []
def work_and_report(seed):
    try:
        work(seed, 300)
    except BaseException as error:
        traceback.print_exc()
threads = [threading.Thread(target=work_and_report, args=(seed,)) for seed in range(8)]
sys.setswitchinterval(1e-4)
for thread in threads:
    thread.start()
for thread in threads:
    thread.join(50)
""" + EPILOGUE)  # fmt: skip


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")
def test_fork_while_other_threads_allocate(run_silently):
    """The child continues; the parent is unaffected."""
    run_silently(PROLOGUE + """
stop = threading.Event()
threads = [threading.Thread(target=work, args=(seed, 1 << 40, stop.is_set)) for seed in range(2)]
for thread in threads:
    thread.start()
for number in range(12):
    child = os.fork()
    if child == 0:
        signal.alarm(20)
        try:
            work(number, 60)
            assert forebay.default_stream("cpu").opened.allocator.check_invariants() is None
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
stop.set()
for thread in threads:
    thread.join(20)
""" + EPILOGUE)  # fmt: skip


def test_blocks_and_pools_may_outlive_the_interpreter(run_silently):
    """Destructors free blocks after modules are cleared; some blocks are in use on a stream with pending work."""
    run_silently(PROLOGUE + """
import atexit
class Holder:
    def __init__(self, block):
        self.block, self.me = block, self
    def __del__(self):
        self.block.free()
        self.other = allocator.allocate(1000, 0)
stream, gate = forebay.Stream("cpu"), threading.Event()
stream.queue.call(lambda: gate.wait(10))
with memory.use_mem_pool(no_split, "cpu"):
    holders = [Holder(forebay.allocate(n, "cpu")) for n in (100, 3 << 20, 500_000)]
for holder in holders:
    holder.block.record_stream(stream.handle)
sys.kept = [forebay.allocate(3 << 20, "cpu"), shared_on_oom, Holder(forebay.allocate(10, "cpu"))]
atexit.register(gate.set)
""")  # fmt: skip


def test_signal_handler_may_allocate_in_a_pool(run_silently):
    run_silently(PROLOGUE + """
handled = 0
def handler(*_):
    global handled
    handled += 1
    block = forebay.allocate(3 << 20, "cpu")
    block.record_stream(7)
    memory.empty_cache("cpu")
    signal.setitimer(signal.ITIMER_REAL, 0.001)
work(1, 50)
signal.signal(signal.SIGALRM, handler)
signal.setitimer(signal.ITIMER_REAL, 0.001)
seed = 0
while handled < 100:
    seed += 1
    work(seed, 40)
signal.signal(signal.SIGALRM, signal.SIG_IGN)
""" + EPILOGUE)  # fmt: skip
