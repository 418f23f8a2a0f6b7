"""What importing and first using forebay.cuda does to a process, and what a process does to that. Emulated devices."""

from __future__ import annotations

import json
import os
import sys

import pytest
from support.emulated_programs import HEAD, emulating, said_by, succeeds

FORKS = pytest.mark.skipif(not hasattr(os, "fork"), reason="nothing forks here")
PROC = pytest.mark.skipif(sys.platform != "linux", reason="only Linux lists threads and files in /proc")


# ---- Nothing before it


@PROC
@pytest.mark.parametrize("module", ["forebay", "forebay.cuda", "forebay.cuda.memory", "forebay.mps"])
@pytest.mark.parametrize("emulated", [False, True], ids=["bare", "emulated"])
def test_importing_starts_and_opens_nothing(runner, module, emulated):
    source = f"""
import os, threading
import numpy  # whose libraries start threads
def seen():
    return len(os.listdir("/proc/self/task")), len(threading.enumerate()), len(os.listdir("/proc/self/fd"))
before = seen()
import {module}
import forebay
assert seen() == before, (before, seen())
from forebay.runtime.base import lazy_init as initialisation; from forebay.runtime.devices import open_device
assert open_device._opened == {{}}
assert not any(initialisation.of(kind).done for kind in ("cuda", "mps"))
"""
    runner.write(source)
    done = runner.command("-W", "error", "script.py", env=emulating() if emulated else None)
    assert (done.status, done.out, done.err) == (0, "", "")


@PROC
def test_asking_what_there_is_initialises_nothing(runner):
    succeeds(
        runner,
        """
before = started()
assert (cuda.is_available(), cuda.device_count(), cuda.is_initialized()) == (True, 2, False)
cuda.manual_seed(3), cuda.manual_seed_all(4), cuda.Event(), cuda.memory_allocated(1), cuda.empty_cache()
assert not cuda.is_initialized()
assert cuda.get_device_properties(1).name == "NVIDIA H200 (emulated)"
assert cuda.is_initialized()
assert started() == before  # queues' threads start with their first work
assert cuda._primary_context_devices() == []
""",
        env=emulating(),
    )


def test_questions_about_one_device_open_no_other(runner):
    """Every name that takes a device is asked about device 1."""
    source = """
import inspect, json
further = {"peer_device": 0, "fraction": 0.5, "size": 512}
asked = {}
for module in (cuda, cuda.memory, cuda.random):
    for name in sorted(set(module.__all__) | {"_get_rng_state_offset", "_get_generator"}):
        ask = getattr(module, name, None)
        try:
            parameters = inspect.signature(ask).parameters
        except (TypeError, ValueError):
            continue
        if "device" not in parameters:
            continue
        wanted = {"device": 1, **{each: further[each] for each in parameters if each in further}}
        with forebay.emulate("cuda", count=2):
            try:
                ask(**wanted)
            except (TypeError, forebay.ForebayError, ModuleNotFoundError, Warning) as error:
                how = type(error).__name__
            else:
                how = ""
            asked[f"{module.__name__}.{name}"] = how, cuda._primary_context_devices()
print(json.dumps(asked))
"""
    asked = json.loads(said_by(runner, source))
    assert {name: opened for name, (_, opened) in asked.items() if 0 in opened} == {}
    answered = {name.rpartition(".")[2] for name, (how, _) in asked.items() if not how}
    assert answered >= {
        "Stream", "can_device_access_peer", "current_stream", "default_stream", "device", "get_device_capability",
        "get_device_name", "get_device_properties", "get_rng_state", "max_memory_allocated", "mem_get_info",
        "memory_allocated", "memory_reserved", "memory_stats", "memory_summary",
        "set_device", "set_per_process_memory_fraction", "synchronize",
    }  # fmt: skip
    assert len(answered) >= 30


# ---- Once


def test_eight_threads_at_once(runner):
    succeeds(
        runner,
        """
ran, finished, failures = [], [], []
barrier = threading.Barrier(9, timeout=20)
cuda._lazy_call(lambda: ran.append(list(finished)))

def use(number):
    try:
        barrier.wait()
        with cuda.device(number % 2):
            finished.append(cuda.current_device())
            assert ran, "it went on before the queued call was done"
            assert forebay.full((3,), number, device=f"cuda:{number % 2}").tolist() == [number] * 3
    except BaseException:
        failures.append(traceback.format_exc())

threads = [threading.Thread(target=use, args=(number,)) for number in range(8)]
for thread in threads:
    thread.start()
barrier.wait()
for thread in threads:
    thread.join(20)
assert failures == [], failures[0]
assert ran == [[]]
assert sorted(finished) == [0] * 4 + [1] * 4
""",
        env=emulating(),
    )


def test_other_threads_wait_for_the_queued_calls(runner):
    succeeds(
        runner,
        """
inside, go_on, order = threading.Event(), threading.Event(), []
def queued():
    inside.set()
    assert go_on.wait(20)
    order.append("queued call")
cuda._lazy_call(queued)
first = threading.Thread(target=lambda: (cuda.init(), order.append("first")))
first.start()
assert inside.wait(20)
assert not cuda.is_initialized()
second = threading.Thread(target=lambda: (cuda.current_device(), order.append("second")))
second.start()
go_on.set()
first.join(20), second.join(20)
assert order[0] == "queued call" and sorted(order[1:]) == ["first", "second"], order
""",
        env=emulating(),
    )


def test_a_queued_call_may_do_everything(runner):
    succeeds(
        runner,
        """
seen = []
def queued():
    cuda.init()
    with cuda.stream(cuda.Stream(device=1)):
        seen.append(forebay.full((2,), 5, device="cuda:1").tolist())
    cuda._lazy_call(lambda: seen.append("within"))
    seen.append(cuda.is_initialized())
cuda._lazy_call(queued)
assert cuda.current_device() == 0
assert seen == [[5, 5], "within", False], seen
""",
        env=emulating(),
    )


def test_ctrl_c_in_a_queued_call(runner):
    """It is that, not a call's failure; nothing is half done, and the next use begins again."""
    succeeds(
        runner,
        """
attempts, seen = [], []
cuda._lazy_call(lambda: seen.append("before"))
cuda._lazy_call(lambda: attempts.append(1) or (len(attempts) == 1 and signal.raise_signal(signal.SIGINT)))
cuda._lazy_call(lambda: seen.append("behind"))
refused(cuda.init, KeyboardInterrupt, "")
assert not cuda.is_initialized() and not cuda._tls.is_initializing
assert seen == ["before"]
other = threading.Thread(target=cuda.init)  # the lock was given back
other.start()
other.join(20)
assert cuda.is_initialized() and seen == ["before", "before", "behind"] and len(attempts) == 2
""",
        env=emulating(),
    )


def test_a_queued_call_that_fails_does_so_each_time(runner):
    succeeds(
        runner,
        """
def by_this_function():
    cuda._lazy_call(lambda: {}["nothing"])
by_this_function()
for use in (cuda.init, lambda: forebay.zeros(3, device="cuda:1"), cuda.current_stream):
    error = refused(use, cuda.DeferredCudaCallError, "CUDA call failed lazily at initialization with error: 'nothing'")
    assert isinstance(error.__cause__, KeyError)
    assert "in by_this_function" in str(error)
    assert not cuda.is_initialized() and cuda._primary_context_devices() == []
cuda._queued_calls.clear()
assert cuda.current_device() == 0
""",
        env=emulating(),
    )


# ---- Other processes


@FORKS
def test_a_child_of_a_parent_that_only_asked(runner):
    succeeds(
        runner,
        """
cuda.manual_seed_all(9)
assert cuda.device_count() == 2
def check():
    assert not cuda._is_in_bad_fork()
    assert forebay.full((3,), 2, device="cuda:1").tolist() == [2, 2, 2]
    assert cuda.initial_seed() == 9
assert forked(check) == 0
assert not cuda.is_initialized()
assert forebay.full((3,), 4, device="cuda:0").tolist() == [4, 4, 4]
assert cuda.initial_seed() == 9
""",
        env=emulating(),
    )


@FORKS
def test_a_child_of_a_parent_that_used_it(runner):
    source = """
stream = cuda.Stream()
event = stream.record_event()  # HERE is not where it was initialised
def check():
    assert cuda._is_in_bad_fork() and not cuda.is_initialized()
    words = "Cannot re-initialize CUDA in forked subprocess. To use CUDA with multiprocessing, you must use the 'spawn'"
    for use in (cuda.init, cuda.current_device, cuda.current_stream, cuda.Stream, stream.synchronize, event.record,
                lambda: forebay.empty(1, device="cuda"), lambda: cuda.get_device_properties(1), cuda.initial_seed,
                lambda: cuda.set_device(1), lambda: forebay.emulate("cuda")):
        error = refused(use, forebay.Forked, words)
        assert f"The parent process initialised CUDA in {__file__}, line LINE" in str(error), error
    assert (cuda.device_count(), cuda.is_available()) == (2, True)
assert forked(check) == 0
def grandchild():
    assert forked(check) == 0
assert forked(grandchild) == 0
event.synchronize()
assert cuda.current_device() == 0
"""
    line = 1 + (HEAD + source).splitlines().index("stream = cuda.Stream()")
    succeeds(runner, source.replace("LINE", str(line)), env=emulating())


@FORKS
def test_a_child_of_a_parent_whose_emulation_has_ended(runner):
    """The parent's devices are gone, so nothing of them is in the child's way."""
    succeeds(
        runner,
        """
with forebay.emulate("cuda"):
    forebay.full((3,), 1, device="cuda").tolist()
def check():
    with forebay.emulate("cuda", count=2):
        assert forebay.full((3,), 2, device="cuda:1").tolist() == [2, 2, 2]
assert forked(check) == 0
check()
""",
    )


def test_spawned_children_see_what_the_environment_says(runner):
    source = """
import multiprocessing
import forebay
from forebay import cuda

def work(index):
    cuda.set_device(index)
    with cuda.stream(cuda.Stream()):
        return cuda.get_device_name(), forebay.full((2,), index, device="cuda").tolist(), cuda._is_in_bad_fork()

if __name__ == "__main__":
    cuda.init()  # a parent that uses it is in no spawned child's way
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        found = pool.map_async(work, range(2)).get(40)
    assert found == [("NVIDIA A100-SXM4-80GB (emulated)", [index] * 2, False) for index in range(2)], found
"""
    runner.write(source)
    done = runner.command("-W", "error", "script.py", env=emulating("cuda:2@a100"))
    assert (done.status, done.out, done.err) == (0, "", "")
