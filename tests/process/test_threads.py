"""Many threads on one device, in child processes because a failure may crash the process."""

from __future__ import annotations

import pytest


@pytest.mark.parametrize("switch", [0.005, 1e-5])
def test_eight_threads_allocate_stream_and_free(runner, switch):
    """Threads check their own values while they share tensors, empty the cache, record history and read statistics."""
    runner.write(f"""
import random, sys, threading, time
import numpy as np
import forebay
sys.setswitchinterval({switch})
forebay.memory.set_capacity("64MiB", "cpu")
shared, failures, ooms = [], [], []

def work(seed):
    rng = random.Random(seed)
    try:
        stream = forebay.Stream("cpu", priority=seed % 2)
        with stream:
            held = []
            for step in range(150):
                n, value = rng.randrange(1, 200_000), rng.randrange(1000)
                try:
                    made = forebay.full((n,), value, dtype=np.int32)
                except forebay.OutOfMemory as error:
                    assert error.capacity == 64 << 20
                    ooms.append(n)
                    held.clear()
                    continue
                held.append((made, value))
                other = rng.choice([forebay.default_stream(), stream, forebay.Stream("cpu")])
                made.record_stream(other)
                if step % 7 == 0:
                    shared.append(made)
                if step % 11 == 0:
                    del shared[:3]
                if step % 29 == 0:
                    forebay.memory.empty_cache()
                if step % 37 == 0:
                    forebay.memory.memory_stats(), forebay.memory.snapshot()
                if step % 53 == 0:
                    forebay.memory.record_history(1000)
                if len(held) > 4:
                    tensor, expected = held.pop(rng.randrange(len(held)))
                    array = tensor.numpy()
                    assert array[0] == array[-1] == expected, (array, expected)
                del made
            for tensor, expected in held:
                copy = tensor.clone()
                assert set(copy.tolist()[::1000]) == {{expected}}
    except BaseException as error:
        import traceback
        traceback.print_exc()
        failures.append(error)

threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
shared.clear()
assert not failures
forebay.synchronize("cpu")
allocator = forebay.default_stream("cpu").opened.allocator
assert allocator.check_invariants() is None
assert forebay.memory.memory_allocated() == 0
forebay.memory.empty_cache()
stats = forebay.memory.memory_stats()
assert stats["active.all.current"] == stats["reserved_bytes.all.current"] == 0
assert forebay.memory.mem_get_info() == (64 << 20, 64 << 20)
assert stats["num_ooms"] == len(ooms)
""")
    done = runner.command("-W", "error", "-X", "faulthandler", "script.py")
    assert (done.status, done.out, done.err) == (0, "", "")


def test_threads_open_a_device_once(runner):
    done = runner.python("""
import sys, threading
import forebay
sys.setswitchinterval(1e-6)
barrier, found = threading.Barrier(16), []
def work():
    barrier.wait()
    found.append((forebay.default_stream("cpu").opened, forebay.Stream("cpu").handle))
threads = [threading.Thread(target=work) for _ in range(16)]
for thread in threads: thread.start()
for thread in threads: thread.join()
assert len({id(opened) for opened, _ in found}) == 1
assert 0 not in {handle for _, handle in found}
""")
    assert (done.status, done.err) == (0, "")


def test_ended_threads_return_their_streams(runner):
    done = runner.python("""
import threading
import forebay
def work():
    forebay.set_stream(forebay.Stream("cpu"))
    assert forebay.zeros(10).tolist() == [0] * 10
for _ in range(50):
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
assert len(forebay.default_stream("cpu").opened.queues) == 2
assert forebay.current_stream() == forebay.default_stream()
""")
    assert (done.status, done.err) == (0, "")


def test_signal_handlers_may_allocate_while_threads_do(runner):
    runner.write("""
import signal, threading
import forebay
forebay.memory.set_capacity("64MiB", "cpu")
count = 0
def handler(*_):
    global count
    count += 1
    forebay.zeros(1000)
    forebay.memory.empty_cache()
    signal.setitimer(signal.ITIMER_REAL, 0.002)
forebay.zeros(1)  # completes imports, which must not run in a signal handler
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
    with forebay.Stream("cpu"):
        forebay.zeros(300_000).tolist()
signal.signal(signal.SIGALRM, signal.SIG_IGN)
stop.set()
thread.join()
forebay.synchronize()
assert forebay.memory.memory_allocated() == 0
assert forebay.default_stream().opened.allocator.check_invariants() is None
""")
    done = runner.command("-W", "error", "-X", "faulthandler", "script.py")
    assert (done.status, done.out, done.err) == (0, "", "")
