"""Starting and stopping emulations: leaks, threads, interrupts, forks, exit with queued work."""

from __future__ import annotations

import os
import sys

import pytest
from support.emulated_programs import environment_emulating, output_of, run_silently


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_repeated_emulations_leak_nothing(runner):
    run_silently(
        runner,
        """
import gc

def one_round():
    with forebay.emulate("cuda", count=2):
        for device in (0, 1):
            with cuda.device(device), cuda.stream(cuda.Stream()):
                made = forebay.empty(1 << 18, device=f"cuda:{device}").uniform_()
                made.copy_(made.flatten().clone())
                cuda.Event().record()
        cuda.synchronize()

def resources():
    gc.collect()
    resident = int(open("/proc/self/statm").read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return resident, thread_counts(), len(os.listdir("/proc/self/fd")), len(open("/proc/self/maps").readlines())

import warnings
warnings.simplefilter("ignore", ResourceWarning)  # for the files opened above
for _ in range(20):
    one_round()
before = resources()
for _ in range(200):
    one_round()
after = resources()
assert after[1:3] == before[1:3], (before, after)
assert after[0] - before[0] < 4 << 20, (before, after)
assert after[3] - before[3] < 20, (before, after)
""",
    )


def test_concurrent_emulations_are_exclusive(runner):
    """Only one thread can emulate a kind at a time, and stopping affects no emulation of another thread."""
    run_silently(
        runner,
        """
failures, rounds, rejections = [], [], []
def work(number):
    try:
        for _ in range(30):
            try:
                with forebay.emulate("cuda", count=2):
                    made = forebay.full((2,), number, device="cuda:1")
                    rounds.append(made.tolist() == [number] * 2)
            except (forebay.WrongState, forebay.ForebayError) as error:  # from another thread's emulation
                rejections.append(error)
    except BaseException:
        failures.append(traceback.format_exc())
threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join(50)
    assert not thread.is_alive()
assert failures == [], failures[0]
assert rounds and all(rounds)
assert cuda.device_count() == 0 and not cuda.is_initialized()
with forebay.emulate("cuda", count=3):
    assert cuda.device_count() == 3 and forebay.zeros(1, device="cuda:2").tolist() == [0]
""",
    )


def test_emulation_may_be_stopped_by_another_thread(runner):
    run_silently(
        runner,
        """
from concurrent.futures import ThreadPoolExecutor
for _ in range(3):
    with ThreadPoolExecutor(1) as one, ThreadPoolExecutor(1) as two, ThreadPoolExecutor(1) as three:
        emulation = one.submit(forebay.emulate, "cuda", 2).result(20)
        two.submit(cuda.set_device, 1).result(20)
        assert two.submit(cuda.current_device).result(20) == 1
        assert one.submit(cuda.current_device).result(20) == 0
        three.submit(emulation.stop).result(20)
        for each in (one, two, three):
            raises(each.submit(cuda.current_device).result, forebay.ForebayError, "forebay.emulate('cuda')")
        with forebay.emulate("cuda"):
            assert two.submit(cuda.current_device).result(20) == 0  # the current device was reset
""",
    )


def test_nested_emulations_may_stop_in_any_order(runner):
    run_silently(
        runner,
        """
first = forebay.emulate("cuda", 2)
second = forebay.emulate("cuda", 3)
made = forebay.full((2,), 5, device="cuda:2")
first.stop()
assert cuda.device_count() == 3 and made.tolist() == [5, 5]
second.stop()
assert cuda.device_count() == 0
""",
    )


BLOCKED = """
for stream in streams:
    stream.queue.call(gate.wait)
streams[0].queue.call(lambda: os.write(1, b"done"))
import atexit
atexit.register(gate.set)
"""
COPIES = """
made.copy_(made[::2].clone().expand(2, 500_000).reshape(1_000_000))
os.write(1, b"done")
"""
DROPPED = """
streams[1].wait_stream(streams[0])
streams[0].queue.call(int)
streams[1].queue.call(lambda: os.write(1, b"done"))
del streams, made
"""


@pytest.mark.parametrize("source", [BLOCKED, COPIES, DROPPED], ids=["blocked", "copies", "dropped"])
def test_queued_work_completes_at_exit(runner, source):
    prologue = """
gate = threading.Event()
streams = [cuda.Stream(device=index) for index in range(2)]
made = forebay.empty(1_000_000, device="cuda:1")
"""
    assert output_of(runner, prologue + source, env=environment_emulating()) == "done"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")
def test_child_forked_during_a_capture_can_stop_the_emulation(runner):
    run_silently(
        runner,
        """
with forebay.emulate("cuda") as emulation:
    made, graph = forebay.zeros(3, device="cuda"), cuda.CUDAGraph()
    with cuda.stream(cuda.Stream()):
        graph.capture_begin()
        made.fill_(4)
        assert forked(emulation.stop) == 0
        graph.capture_end()
    graph.replay()
    assert made.tolist() == [4, 4, 4]
""",
    )


INTERRUPTED = """
signal.signal(signal.SIGINT, signal.default_int_handler)  # background jobs ignore the signal
gate, emulation = threading.Event(), forebay.emulate("cuda", count=2)
held = [forebay.zeros(3, device=f"cuda:{index}") for index in range(2)]
cuda.current_stream(0).queue.call(gate.wait)
threading.Timer(0.2, os.kill, [os.getpid(), signal.SIGINT]).start()
raises(emulation.stop, KeyboardInterrupt, "")
"""


def test_interrupted_stop_retires_all_devices(runner):
    """KeyboardInterrupt in `stop` still retires all devices, and the next emulation does not wait for them."""
    run_silently(
        runner,
        INTERRUPTED
        + """
for made in held:
    raises(made.tolist, forebay.WrongState, "emulation")
with forebay.emulate("cuda", count=2):
    assert forebay.full((2,), 5, device="cuda:1").tolist() == [5, 5]
gate.set()
""",
    )


def test_work_of_a_stopped_emulation_completes_at_exit(runner):
    source = """
late = forebay.zeros(3, device="cpu")  # work of other devices must not be affected
import atexit
atexit.register(gate.set)
"""
    interrupted = INTERRUPTED.replace(
        "threading.Timer", 'cuda.current_stream(0).queue.call(lambda: os.write(1, b"done"))\nthreading.Timer'
    )
    assert output_of(runner, interrupted + source) == "done"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")
def test_forked_child_can_emulate_with_memory_of_a_stopped_emulation(runner):
    run_silently(
        runner,
        """
with forebay.emulate("cuda"):
    held = forebay.full((3,), 1, device="cuda")
def check():
    global held
    with forebay.emulate("cuda"):
        assert forebay.full((3,), 2, device="cuda").tolist() == [2, 2, 2]
    del held
    with forebay.emulate("cuda"):
        assert forebay.full((3,), 2, device="cuda").tolist() == [2, 2, 2]
assert forked(check) == 0
check()
""",
    )


@pytest.mark.parametrize("settings", ["", "expandable_segments:True"])
@pytest.mark.parametrize("kind", ["cuda", "mps"])
def test_threads_work_while_emulations_end(runner, kind, settings):
    """Each operation returns the right values or raises. No thread uses unmapped memory, or the wrong stream."""
    run_silently(
        runner,
        f"""
import random, time
kind, stop, wrong, unexpected, done = {kind!r}, threading.Event(), [], [], []
forebay.memory.set_allocator_settings({settings!r})
"""
        """
allowed = (forebay.WrongState, forebay.OutOfMemory)

def work(seed):
    chance, kept = random.Random(seed), []
    while not stop.is_set():
        value = chance.randrange(1, 200)
        try:
            with forebay.Stream(kind) as stream:
                made = forebay.full((chance.choice([100, 1 << 20]),), value, dtype="uint8", device=kind)
                kept.append(made.clone())
                if chance.random() < 0.3:
                    kept[-1].record_stream(forebay.default_stream(kind))
                if not (kept[-1].cpu().numpy() == value).all():
                    wrong.append(value)
                done.append(1)
            if len(kept) > 10:
                kept.clear()
            if chance.random() < 0.1:
                forebay.memory.empty_cache(kind)
        except allowed:
            kept.clear()
        except forebay.ForebayError as error:
            reasons = ("backend", "driver", "Metal needs macOS")  # without the emulation
            if forebay.device_count(kind) == 0 or any(reason in str(error) for reason in reasons):
                time.sleep(0.0005)
            else:
                unexpected.append(error)

threads = [threading.Thread(target=work, args=(seed,)) for seed in range(3)]
for thread in threads:
    thread.start()
chance = random.Random(0)
end = time.monotonic() + 3
while time.monotonic() < end:
    emulation = forebay.emulate(kind, memory="4GiB" if kind == "mps" else "64MiB")
    time.sleep(chance.random() * 0.02)
    emulation.stop()
stop.set()
for thread in threads:
    thread.join(20)
assert done
assert (wrong, unexpected) == ([], []), (wrong[:3], unexpected[:3])
""",
    )


def test_emulation_with_invalid_settings_ends_after_pinning(runner):
    """Pinning memory opens the port without the device, whose settings cannot be parsed."""
    run_silently(
        runner,
        """
emulation = forebay.emulate("cuda")
raises(lambda: forebay.empty(1, pin_memory=True), ValueError, "foo")
emulation.stop()
assert forebay.device_count("cuda") == 0
""",
        env={**os.environ, "FOREBAY_ALLOC_CONF": "foo:bar"},
    )
