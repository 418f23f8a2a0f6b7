"""Import and first use of forebay.cuda on emulated devices: threads, queued calls, forked and spawned processes."""

from __future__ import annotations

import json
import os
import sys

import pytest
from support.emulated_programs import PROLOGUE_WITH_FORK, environment_emulating, output_of, run_silently

FORKS = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")
PROC = pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")


# ---- Before the first use


@PROC
@pytest.mark.parametrize("module", ["forebay", "forebay.cuda", "forebay.cuda.memory", "forebay.mps"])
@pytest.mark.parametrize("emulated", [False, True], ids=["bare", "emulated"])
def test_import_starts_no_thread_and_opens_no_file(runner, module, emulated):
    source = f"""
import os, threading
import numpy  # starts threads of its libraries
def resources():
    return len(os.listdir("/proc/self/task")), len(threading.enumerate()), len(os.listdir("/proc/self/fd"))
before = resources()
import {module}
import forebay
assert resources() == before, (before, resources())
from forebay.runtime.base import lazy_init; from forebay.runtime.devices import open_device
assert open_device._opened == {{}}
assert not any(lazy_init.get(kind).done for kind in ("cuda", "mps"))
"""
    runner.write(source)
    done = runner.command("-W", "error", "script.py", env=environment_emulating() if emulated else None)
    assert (done.status, done.out, done.err) == (0, "", "")


@PROC
def test_device_queries_do_not_initialise(runner):
    run_silently(
        runner,
        """
before = thread_counts()
assert (cuda.is_available(), cuda.device_count(), cuda.is_initialized()) == (True, 2, False)
cuda.manual_seed(3), cuda.manual_seed_all(4), cuda.Event(), cuda.memory_allocated(1), cuda.empty_cache()
assert not cuda.is_initialized()
assert cuda.get_device_properties(1).name == "NVIDIA H200 (emulated)"
assert cuda.is_initialized()
assert thread_counts() == before  # threads of queues start with their first work
assert cuda._primary_context_devices() == []
""",
        env=environment_emulating(),
    )


def test_functions_open_only_the_given_device(runner):
    """Call every function that has a parameter `device` with device 1."""
    source = """
import inspect, json
arguments = {"peer_device": 0, "fraction": 0.5, "size": 512}
results = {}
for module in (cuda, cuda.memory, cuda.random):
    for name in sorted(set(module.__all__) | {"_get_rng_state_offset", "_get_generator"}):
        function = getattr(module, name, None)
        try:
            parameters = inspect.signature(function).parameters
        except (TypeError, ValueError):
            continue
        if "device" not in parameters:
            continue
        named = {"device": 1, **{each: arguments[each] for each in parameters if each in arguments}}
        with forebay.emulate("cuda", count=2):
            try:
                function(**named)
            except (TypeError, forebay.ForebayError, ModuleNotFoundError, Warning) as error:
                failure = type(error).__name__
            else:
                failure = ""
            results[f"{module.__name__}.{name}"] = failure, cuda._primary_context_devices()
print(json.dumps(results))
"""
    results = json.loads(output_of(runner, source))
    assert {name: opened for name, (_, opened) in results.items() if 0 in opened} == {}
    successful = {name.rpartition(".")[2] for name, (failure, _) in results.items() if not failure}
    assert successful >= {
        "Stream", "can_device_access_peer", "current_stream", "default_stream", "device", "get_device_capability",
        "get_device_name", "get_device_properties", "get_rng_state", "max_memory_allocated", "mem_get_info",
        "memory_allocated", "memory_reserved", "memory_stats", "memory_summary",
        "set_device", "set_per_process_memory_fraction", "synchronize",
    }  # fmt: skip
    assert len(successful) >= 30


# ---- Queued calls


def test_concurrent_first_use_initialises_once(runner):
    run_silently(
        runner,
        """
ran, finished, failures = [], [], []
barrier = threading.Barrier(9, timeout=20)
cuda._lazy_call(lambda: ran.append(list(finished)))

def work(number):
    try:
        barrier.wait()
        with cuda.device(number % 2):
            finished.append(cuda.current_device())
            assert ran, "continued before the queued call had completed"
            assert forebay.full((3,), number, device=f"cuda:{number % 2}").tolist() == [number] * 3
    except BaseException:
        failures.append(traceback.format_exc())

threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
for thread in threads:
    thread.start()
barrier.wait()
for thread in threads:
    thread.join(20)
assert failures == [], failures[0]
assert ran == [[]]
assert sorted(finished) == [0] * 4 + [1] * 4
""",
        env=environment_emulating(),
    )


def test_other_threads_wait_for_queued_calls(runner):
    run_silently(
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
        env=environment_emulating(),
    )


def test_queued_call_may_use_devices(runner):
    run_silently(
        runner,
        """
seen = []
def queued():
    cuda.init()
    with cuda.stream(cuda.Stream(device=1)):
        seen.append(forebay.full((2,), 5, device="cuda:1").tolist())
    cuda._lazy_call(lambda: seen.append("nested"))
    seen.append(cuda.is_initialized())
cuda._lazy_call(queued)
assert cuda.current_device() == 0
assert seen == [[5, 5], "nested", False], seen
""",
        env=environment_emulating(),
    )


def test_interrupted_queued_call_runs_again_at_next_use(runner):
    """KeyboardInterrupt propagates unchanged, and the next use runs all queued calls again."""
    run_silently(
        runner,
        """
attempts, seen = [], []
cuda._lazy_call(lambda: seen.append("before"))
cuda._lazy_call(lambda: attempts.append(1) or (len(attempts) == 1 and signal.raise_signal(signal.SIGINT)))
cuda._lazy_call(lambda: seen.append("after"))
raises(cuda.init, KeyboardInterrupt, "")
assert not cuda.is_initialized() and not cuda._tls.is_initializing
assert seen == ["before"]
other = threading.Thread(target=cuda.init)  # the lock was released
other.start()
other.join(20)
assert cuda.is_initialized() and seen == ["before", "before", "after"] and len(attempts) == 2
""",
        env=environment_emulating(),
    )


def test_failing_queued_call_raises_at_every_use(runner):
    run_silently(
        runner,
        """
def by_this_function():
    cuda._lazy_call(lambda: {}["nothing"])
by_this_function()
for use in (cuda.init, lambda: forebay.zeros(3, device="cuda:1"), cuda.current_stream):
    error = raises(use, cuda.DeferredCudaCallError, "CUDA call failed lazily at initialization with error: 'nothing'")
    assert isinstance(error.__cause__, KeyError)
    assert "in by_this_function" in str(error)
    assert not cuda.is_initialized() and cuda._primary_context_devices() == []
cuda._queued_calls.clear()
assert cuda.current_device() == 0
""",
        env=environment_emulating(),
    )


# ---- Forked and spawned processes


@FORKS
def test_forked_child_works_if_the_parent_did_not_initialise(runner):
    run_silently(
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
        env=environment_emulating(),
    )


@FORKS
def test_forked_child_is_rejected_if_the_parent_initialised(runner):
    source = """
stream = cuda.Stream()
event = stream.record_event()  # initialised in the line before
def check():
    assert cuda._is_in_bad_fork() and not cuda.is_initialized()
    message = "Cannot re-initialize CUDA in forked subprocess. To use CUDA with multiprocessing, you must use the "
    for use in (cuda.init, cuda.current_device, cuda.current_stream, cuda.Stream, stream.synchronize, event.record,
                lambda: forebay.empty(1, device="cuda"), lambda: cuda.get_device_properties(1), cuda.initial_seed,
                lambda: cuda.set_device(1), lambda: forebay.emulate("cuda")):
        error = raises(use, forebay.Forked, message)
        assert f"The parent process initialised CUDA in {__file__}, line LINE" in str(error), error
    assert (cuda.device_count(), cuda.is_available()) == (2, True)
assert forked(check) == 0
def grandchild():
    assert forked(check) == 0
assert forked(grandchild) == 0
event.synchronize()
assert cuda.current_device() == 0
"""
    line = 1 + (PROLOGUE_WITH_FORK + source).splitlines().index("stream = cuda.Stream()")
    run_silently(runner, source.replace("LINE", str(line)), env=environment_emulating())


@FORKS
def test_forked_child_works_after_the_emulation_of_its_parent(runner):
    """The devices of the parent were closed before the fork."""
    run_silently(
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


def test_spawned_children_emulate_as_the_environment_says(runner):
    source = """
import multiprocessing
import forebay
from forebay import cuda

def work(index):
    cuda.set_device(index)
    with cuda.stream(cuda.Stream()):
        return cuda.get_device_name(), forebay.full((2,), index, device="cuda").tolist(), cuda._is_in_bad_fork()

if __name__ == "__main__":
    cuda.init()  # initialisation in the parent does not affect spawned children
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        found = pool.map_async(work, range(2)).get(40)
    assert found == [("NVIDIA A100-SXM4-80GB (emulated)", [index] * 2, False) for index in range(2)], found
"""
    runner.write(source)
    done = runner.command("-W", "error", "script.py", env=environment_emulating("cuda:2@a100"))
    assert (done.status, done.out, done.err) == (0, "", "")
