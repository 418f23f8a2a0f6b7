"""Emulations that come and go: what they leave, who starts and ends them, and exit with their work queued."""

from __future__ import annotations

import os
import sys

import pytest
from support.emulated_programs import emulating, said_by, succeeds


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux lists threads and files in /proc")
def test_two_hundred_emulations_leave_nothing(runner):
    succeeds(
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

def held():
    gc.collect()
    resident = int(open("/proc/self/statm").read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return resident, started(), len(os.listdir("/proc/self/fd")), len(open("/proc/self/maps").readlines())

import warnings
warnings.simplefilter("ignore", ResourceWarning)  # of the two files above
for _ in range(20):
    one_round()
before = held()
for _ in range(200):
    one_round()
after = held()
assert after[1:3] == before[1:3], (before, after)
assert after[0] - before[0] < 4 << 20, (before, after)
assert after[3] - before[3] < 20, (before, after)
""",
    )


def test_emulations_of_several_threads(runner):
    """One at a time has the kind: who comes second hears of it, and no end takes another's devices away."""
    succeeds(
        runner,
        """
failures, rounds, refusals = [], [], []
def work(number):
    try:
        for _ in range(30):
            try:
                with forebay.emulate("cuda", count=2):
                    made = forebay.full((2,), number, device="cuda:1")
                    rounds.append(made.tolist() == [number] * 2)
            except (forebay.WrongState, forebay.ForebayError) as error:  # another thread's came or went meanwhile
                refusals.append(error)
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


def test_started_in_one_thread_used_and_stopped_in_others(runner):
    succeeds(
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
            refused(each.submit(cuda.current_device).result, forebay.ForebayError, "forebay.emulate('cuda')")
        with forebay.emulate("cuda"):
            assert two.submit(cuda.current_device).result(20) == 0  # what was current went with its devices
""",
    )


def test_the_first_to_begin_may_end_first(runner):
    succeeds(
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


HELD = """
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


@pytest.mark.parametrize("source", [HELD, COPIES, DROPPED], ids=["held", "copies", "dropped"])
def test_exit_with_work_queued(runner, source):
    head = """
gate = threading.Event()
streams = [cuda.Stream(device=index) for index in range(2)]
made = forebay.empty(1_000_000, device="cuda:1")
"""
    assert said_by(runner, head + source, env=emulating()) == "done"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="nothing forks here")
def test_a_child_forked_in_a_capture_leaves_the_emulation_without_a_word(runner):
    succeeds(
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
signal.signal(signal.SIGINT, signal.default_int_handler)  # which a job in the background does not have
gate, emulation = threading.Event(), forebay.emulate("cuda", count=2)
held = [forebay.zeros(3, device=f"cuda:{index}") for index in range(2)]
cuda.current_stream(0).queue.call(gate.wait)
threading.Timer(0.2, os.kill, [os.getpid(), signal.SIGINT]).start()
refused(emulation.stop, KeyboardInterrupt, "")
"""


def test_ctrl_c_at_the_end_of_an_emulation(runner):
    """It is the end of all its devices all the same, and the next emulation waits for nothing of them."""
    succeeds(
        runner,
        INTERRUPTED
        + """
for made in held:
    refused(made.tolist, forebay.WrongState, "emulation")
with forebay.emulate("cuda", count=2):
    assert forebay.full((2,), 5, device="cuda:1").tolist() == [5, 5]
gate.set()
""",
    )


def test_exit_with_the_work_of_an_emulation_that_has_ended(runner):
    source = """
late = forebay.zeros(3, device="host")  # another device's end is no end of this one's work
import atexit
atexit.register(gate.set)
"""
    written = INTERRUPTED.replace(
        "threading.Timer", 'cuda.current_stream(0).queue.call(lambda: os.write(1, b"done"))\nthreading.Timer'
    )
    assert said_by(runner, written + source) == "done"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="nothing forks here")
def test_a_child_of_a_parent_that_holds_memory_of_an_ended_emulation(runner):
    succeeds(
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
