"""Whole programs with pools and growing segments: threads, forks, signals, the end of the interpreter."""

from __future__ import annotations

import os

import pytest

RULES = ["", "expandable_segments:True", "max_split_size_mb:20,garbage_collection_threshold:0.5"]
POOLS = """
import gc, os, random, signal, sys, threading, traceback
import forebay
from forebay import memory

memory.set_capacity("64MiB", "host:0")
lender, strict = memory.MemPool(use_on_oom=True), memory.MemPool(no_split=True)
allocator = forebay.default_stream("host:0").opened.allocator

def work(seed, steps, stop=lambda: False):
    chance, held = random.Random(seed), []
    private = memory.MemPool()
    with forebay.Stream("host:0") as stream:
        for step in range(steps):
            if stop():
                break
            try:
                if chance.random() < 0.3:
                    with memory.use_mem_pool(private, "host:0"):
                        block = forebay.allocate(int(2 ** chance.uniform(4, 22)), "host:0")
                else:
                    block = forebay.allocate(int(2 ** chance.uniform(4, 23)), "host:0")
            except forebay.OutOfMemory:
                held.clear()
                continue
            if chance.random() < 0.3:
                block.used_on(forebay.default_stream("host:0").handle)
            held.append(block)
            if len(held) > 5:
                held.pop(chance.randrange(len(held)))
            if step % 20 == 0:
                memory.empty_cache("host:0")
"""
ENDING = """
lender = strict = None
forebay.synchronize("host:0")
gc.collect()
memory.empty_cache("host:0")
assert allocator.broken() is None
stats = memory.memory_stats("host:0")
assert stats["active.all.current"] == stats["reserved_bytes.all.current"] == 0, stats
assert memory.mem_get_info("host:0") == (64 << 20, 64 << 20)
assert [pool.id for pool in allocator.private] == []
"""


@pytest.fixture(params=RULES, ids=["segments", "growing", "collected"])
def succeeds(runner, request):
    def succeeds(source):
        runner.write(source)
        options = ["-W", "error", "-W", "ignore:.*multi-threaded:DeprecationWarning", "-X", "faulthandler"]
        done = runner.command(*options, "script.py", env={**os.environ, "FOREBAY_ALLOC_CONF": request.param})
        assert (done.status, done.out, done.err) == (0, "", "")

    return succeeds


def test_eight_threads_with_pools_of_their_own(succeeds):
    succeeds(POOLS + """
failures = []
def guarded(seed):
    try:
        work(seed, 300)
    except BaseException as error:
        traceback.print_exc()
threads = [threading.Thread(target=guarded, args=(seed,)) for seed in range(8)]
sys.setswitchinterval(1e-4)
for thread in threads:
    thread.start()
for thread in threads:
    thread.join(50)
""" + ENDING)  # fmt: skip


@pytest.mark.skipif(not hasattr(os, "fork"), reason="nothing forks here")
def test_forks_while_other_threads_allocate(succeeds):
    """A child goes on once it has opened the device anew; its parent is none the worse."""
    succeeds(POOLS + """
stop = threading.Event()
threads = [threading.Thread(target=work, args=(seed, 1 << 40, stop.is_set)) for seed in range(2)]
for thread in threads:
    thread.start()
for number in range(12):
    child = os.fork()
    if child == 0:
        signal.alarm(20)
        try:
            forebay.reopen("host:0")
            work(number, 60)
            assert forebay.default_stream("host:0").opened.allocator.broken() is None
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
stop.set()
for thread in threads:
    thread.join(20)
""" + ENDING)  # fmt: skip


def test_blocks_and_pools_that_end_with_the_interpreter(succeeds):
    """Freed by destructors when modules have no names left, some used on a stream that still has work."""
    succeeds(POOLS + """
import atexit
class Holder:
    def __init__(self, block):
        self.block, self.me = block, self
    def __del__(self):
        self.block.free()
        self.again = allocator.allocate(1000, 0)
stream, gate = forebay.Stream("host:0"), threading.Event()
stream.queue.call(lambda: gate.wait(10))
with memory.use_mem_pool(strict, "host:0"):
    holders = [Holder(forebay.allocate(n, "host:0")) for n in (100, 3 << 20, 500_000)]
for holder in holders:
    holder.block.used_on(stream.handle)
sys.kept = [forebay.allocate(3 << 20, "host:0"), lender, Holder(forebay.allocate(10, "host:0"))]
atexit.register(gate.set)
""")  # fmt: skip


def test_a_signals_handler_that_allocates_in_a_pool(succeeds):
    succeeds(POOLS + """
handled = 0
def handler(*_):
    global handled
    handled += 1
    block = forebay.allocate(3 << 20, "host:0")
    block.used_on(7)
    memory.empty_cache("host:0")
    signal.setitimer(signal.ITIMER_REAL, 0.001)
work(1, 50)
signal.signal(signal.SIGALRM, handler)
signal.setitimer(signal.ITIMER_REAL, 0.001)
seed = 0
while handled < 100:
    seed += 1
    work(seed, 40)
signal.signal(signal.SIGALRM, signal.SIG_IGN)
""" + ENDING)  # fmt: skip
