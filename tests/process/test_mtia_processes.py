"""forebay.mtia on emulated devices in whole processes: first use, forks, threads, exit."""

from __future__ import annotations

import os
import sys

import pytest
from support.emulated_programs import PROLOGUE, PROLOGUE_WITH_FORK, environment_emulating, run_silently

FORKS = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")
PROC = pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
MTIA = "from forebay import mtia\n"


@PROC
def test_import_starts_no_thread_and_opens_no_file(runner):
    source = """
import os, sys, threading
import numpy  # starts threads of its libraries
def resources():
    return len(os.listdir("/proc/self/task")), len(threading.enumerate()), len(os.listdir("/proc/self/fd"))
before = resources()
import forebay
assert "forebay.mtia" not in sys.modules  # imported at first access
assert forebay.mtia.device_count() == 2
assert resources() == before, (before, resources())
assert not forebay.mtia.is_initialized()
"""
    runner.write(source)
    done = runner.command("-W", "error", "script.py", env=environment_emulating("mtia:2"))
    assert (done.status, done.out, done.err) == (0, "", "")


@PROC
def test_device_queries_open_no_device(runner):
    run_silently(
        runner,
        MTIA
        + """
from forebay.runtime.devices.open_device import open_device_indices
before = thread_counts()
assert mtia.get_device_properties(1)["name"] == "MTIA v2 (emulated)"
assert mtia.get_device_capability(1) == (2, 0)
mtia.seed_all(), mtia.get_rng_state_all(), mtia.synchronize(1), mtia.memory_stats(1), mtia.set_device(1)
assert (open_device_indices("mtia"), thread_counts()) == ([], before)
""",
        env=environment_emulating("mtia:2"),
    )


@FORKS
def test_forked_child_is_rejected_if_the_parent_initialised(runner):
    run_silently(
        runner,
        MTIA
        + """
mtia.init()
tensor, stream = forebay.zeros(3, device="mtia"), mtia.Stream("mtia")
message = "Cannot re-initialize MTIA in forked subprocess. To use MTIA with multiprocessing, you must use the 'spawn' "
def child():
    assert mtia._is_in_bad_fork() and not mtia.is_initialized()
    assert (mtia.memory_allocated(), mtia.memory_stats(), mtia.device_count()) == (0, {}, 2)
    for use in (
        mtia.init, mtia.current_device, mtia.current_stream, mtia.synchronize, mtia.get_rng_state, mtia.initial_seed,
        mtia.get_device_properties, lambda: mtia.set_device(1), lambda: mtia.stream(None),
        lambda: mtia.device(0).__enter__(), lambda: forebay.zeros(1, device="mtia:1"),
    ):
        error = raises(use, forebay.Forked, message + "start method")
        assert "script.py, line" in str(error)
    raises(lambda: tensor.fill_(1), forebay.Forked, "")
    raises(stream.synchronize, forebay.Forked, "")
    assert forebay.zeros(3, device="cpu").tolist() == [0, 0, 0]
assert forked(child) == 0
assert not mtia._is_in_bad_fork() and tensor.tolist() == [0, 0, 0]
""",
        env=environment_emulating("mtia:2"),
    )


@FORKS
def test_forked_child_works_if_the_parent_did_not_initialise(runner):
    run_silently(
        runner,
        MTIA
        + """
assert mtia.is_available()
mtia.manual_seed(4), mtia.memory_stats(), mtia.empty_cache(), mtia.Event()
def child():
    assert (mtia._is_in_bad_fork(), mtia.initial_seed()) == (False, 4)
    assert forebay.full((2,), 7, device="mtia:1").tolist() == [7, 7]
assert forked(child) == 0 and not mtia.is_initialized()
""",
        env=environment_emulating("mtia:2"),
    )


@FORKS
def test_forked_child_may_emulate_without_a_backend(runner):
    run_silently(
        runner,
        MTIA
        + """
raises(mtia.init, AssertionError, "Torch not compiled with MTIA enabled")
def child():
    raises(mtia.current_device, RuntimeError, "Cannot execute getCurrentDevice() without MTIA backend.")
    with forebay.emulate("mtia"):
        assert mtia.current_device() == 0
assert forked(child) == 0
""",
    )


def test_eight_threads_use_devices_streams_and_graphs(runner):
    """Threads switch between two devices, draw random numbers, capture and replay graphs."""
    run_silently(
        runner,
        MTIA
        + """
mtia.manual_seed_all(1)
failures = []
def work(number):
    try:
        for step in range(60):
            with mtia.device(number % 2), mtia.stream(mtia.Stream(f"mtia:{number % 2}")):
                tensor = forebay.full((500,), step, device="mtia")
                assert (tensor.device.index, mtia.current_device()) == (number % 2, number % 2)
                if step % 20 == 7:
                    graph = mtia.MTIAGraph()
                    with capturing:
                        graph.capture_begin((0, 0))
                        tensor.fill_(number)
                        graph.capture_end()
                    graph.replay()
                    assert set(tensor.tolist()) == {number}
                elif step % 5 == 0:
                    with capturing:
                        assert set(tensor.tolist()) == {step}
                forebay.rand(10, device="mtia"), mtia.memory_stats(), mtia.get_rng_state()
            assert mtia.current_device() == 0
    except BaseException:
        failures.append(traceback.format_exc())
capturing = threading.Lock()  # an active capture forbids waits in all threads
threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
for thread in threads: thread.start()
for thread in threads: thread.join(50)
assert not failures, failures[0]
""",
        env=environment_emulating("mtia:2"),
    )


@pytest.mark.parametrize(
    "source",
    [
        "pass",
        "mtia.manual_seed(3)",
        "made = forebay.zeros(1000, device='mtia')",
        "made = forebay.zeros(1000, device='mtia'); made.me = made",
        "stream = mtia.Stream('mtia'); mtia.set_stream(stream); made = forebay.zeros(9, device='mtia')",
        "context = mtia.stream(mtia.Stream('mtia:1')); context.__enter__()",
        "mtia.init(); mtia.record_memory_history(); made = forebay.zeros(9, device='mtia')",
        "mtia.attach_out_of_memory_observer(print)",
        "mtia._lazy_call(lambda: 1 / 0)",
        "graph = mtia.MTIAGraph(); context = mtia.graph(graph); context.__enter__()",
        "del forebay, mtia",
        "import atexit; atexit.register(lambda: mtia.synchronize()); made = forebay.zeros(9, device='mtia')",
    ],
)
def test_exit_is_silent(runner, source):
    runner.write(PROLOGUE + MTIA + source)
    done = runner.command("-W", "error", "script.py", env=environment_emulating("mtia:2"))
    assert (done.status, done.out, done.err) == (0, "", "")


def test_invalid_emulation_in_the_environment(runner):
    runner.write(
        PROLOGUE_WITH_FORK
        + MTIA
        + """
assert (mtia.is_available(), mtia.device_count()) == (False, 0)
for use in (mtia.init, mtia.current_device, mtia.synchronize):
    raises(use, forebay.ForebayError, "environment variable FOREBAY_EMULATE: there is no profile 'nope'")
"""
    )
    done = runner.command("-W", "error", "script.py", env=environment_emulating("mtia@nope"))
    assert (done.status, done.out, done.err) == (0, "", "")
