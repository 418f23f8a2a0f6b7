"""Many threads on one device; in a child, as what goes wrong there may take the process along."""

from __future__ import annotations

import pytest


@pytest.mark.parametrize("switch", [0.005, 1e-5])
def test_eight_threads_allocate_stream_and_free(runner, switch):
    """Each checks its own numbers; tensors change hands, the cache is emptied, histories start, statistics are read."""
    runner.write(f"""
import random, sys, threading, time
import numpy as np
import forebay
sys.setswitchinterval({switch})
forebay.memory.set_capacity("64MiB", "host:0")
handed, failures, ooms = [], [], []

def work(seed):
    random_ = random.Random(seed)
    try:
        stream = forebay.Stream("host:0", priority=seed % 2)
        with stream:
            held = []
            for step in range(150):
                n, value = random_.randrange(1, 200_000), random_.randrange(1000)
                try:
                    made = forebay.full((n,), value, dtype=np.int32)
                except forebay.OutOfMemory as error:
                    assert error.capacity == 64 << 20
                    ooms.append(n)
                    held.clear()
                    continue
                held.append((made, value))
                other = random_.choice([forebay.default_stream(), stream, forebay.Stream("host:0")])
                made.record_stream(other)
                if step % 7 == 0:
                    handed.append(made)
                if step % 11 == 0:
                    del handed[:3]
                if step % 29 == 0:
                    forebay.memory.empty_cache()
                if step % 37 == 0:
                    forebay.memory.memory_stats(), forebay.memory.snapshot()
                if step % 53 == 0:
                    forebay.memory.record_history(1000)
                if len(held) > 4:
                    tensor, expected = held.pop(random_.randrange(len(held)))
                    array = tensor.numpy()
                    assert array[0] == array[-1] == expected, (array, expected)
                del made
            for tensor, expected in held:
                twin = tensor.clone()
                assert set(twin.tolist()[::1000]) == {{expected}}
    except BaseException as error:
        import traceback
        traceback.print_exc()
        failures.append(error)

threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
handed.clear()
assert not failures
forebay.synchronize("host:0")
allocator = forebay.default_stream("host:0").opened.allocator
assert allocator.broken() is None
assert forebay.memory.memory_allocated() == 0
forebay.memory.empty_cache()
stats = forebay.memory.memory_stats()
assert stats["active.all.current"] == stats["reserved_bytes.all.current"] == 0
assert forebay.memory.mem_get_info() == (64 << 20, 64 << 20)
assert stats["num_ooms"] == len(ooms)
""")
    done = runner.command("-W", "error", "-X", "faulthandler", "script.py")
    assert (done.status, done.out, done.err) == (0, "", "")


def test_many_threads_open_one_device(runner):
    done = runner.python("""
import sys, threading
import forebay
sys.setswitchinterval(1e-6)
barrier, found = threading.Barrier(16), []
def work():
    barrier.wait()
    found.append((forebay.default_stream("host:0").opened, forebay.Stream("host:0").handle))
threads = [threading.Thread(target=work) for _ in range(16)]
for thread in threads: thread.start()
for thread in threads: thread.join()
assert len({id(opened) for opened, _ in found}) == 1
assert 0 not in {handle for _, handle in found}
""")
    assert (done.status, done.err) == (0, "")


def test_threads_that_end_give_their_streams_back(runner):
    done = runner.python("""
import threading
import forebay
def work():
    forebay.set_stream(forebay.Stream("host:0"))
    assert forebay.zeros(10).tolist() == [0] * 10
for _ in range(50):
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
assert len(forebay.default_stream("host:0").opened.queues) == 2
assert forebay.current_stream() == forebay.default_stream()
""")
    assert (done.status, done.err) == (0, "")


def test_signal_handlers_allocate_while_threads_do(runner):
    runner.write("""
import signal, threading
import forebay
forebay.memory.set_capacity("64MiB", "host:0")
count = 0
def handler(*_):
    global count
    count += 1
    forebay.zeros(1000)
    forebay.memory.empty_cache()
    signal.setitimer(signal.ITIMER_REAL, 0.002)
forebay.zeros(1)  # imports what it needs: CPython's imports are not for handlers
signal.signal(signal.SIGALRM, handler)
signal.setitimer(signal.ITIMER_REAL, 0.002)
stop = threading.Event()
def work():
    while not stop.is_set():
        forebay.zeros(100_000)
        forebay.memory.empty_cache()
thread = threading.Thread(target=work)
thread.start()
while count < 100:
    with forebay.Stream("host:0"):
        forebay.zeros(300_000).tolist()
signal.signal(signal.SIGALRM, signal.SIG_IGN)
stop.set()
thread.join()
forebay.synchronize()
assert forebay.memory.memory_allocated() == 0
assert forebay.default_stream().opened.allocator.broken() is None
""")
    done = runner.command("-W", "error", "-X", "faulthandler", "script.py")
    assert (done.status, done.out, done.err) == (0, "", "")
