"""Pinned memory in processes that exit or fork, with the background thread and with pending copies."""

from __future__ import annotations

import pytest

PROLOGUE = """
import gc, os, sys, threading, time
import numpy as np
import forebay
from forebay.runtime.lifecycle import exit_and_fork

stream = forebay.Stream("cpu")
gate = threading.Event()

def block():
    stream.queue.call(lambda: gate.wait(30))

def used(nbytes=1000):
    array = forebay.empty_pinned(nbytes, dtype=np.uint8, device="cpu")
    forebay.from_numpy(array).record_stream(stream)
    return array

def stat(name):
    return forebay.memory.host_memory_stats("cpu")[name]
"""
CONFIGURATIONS = ["", "pinned_use_background_threads:True", "pinned_max_cached_size_mb:1"]


def run_silently(runner, source):
    runner.write(PROLOGUE + source)
    done = runner.command("-W", "error", "-W", "ignore:.*multi-threaded:DeprecationWarning", "script.py")
    assert (done.status, done.out, done.err) == (0, "", "")


@pytest.mark.parametrize("configuration", CONFIGURATIONS)
@pytest.mark.parametrize(
    "source",
    [
        "kept = used(5 << 20)",
        "block(); used(5 << 20); gate.set()",
        "sys.kept = used(5 << 20); sys.me = sys.kept; stream.queue.call(lambda: time.sleep(0.2))",
        "block(); stream.queue.call(gate.clear); kept = [used() for _ in range(99)]; kept.append(kept); gate.set()",
        "class Late:\n    def __del__(self): used(); gc.collect()\nlate = Late()",
    ],
)
def test_exit_is_silent(runner, configuration, source):
    run_silently(
        runner, f"forebay.memory.set_allocator_settings({configuration!r}) if {configuration!r} else None\n{source}\n"
    )


@pytest.mark.parametrize("configuration", CONFIGURATIONS)
def test_forked_child_starts_with_an_empty_cache(runner, configuration):
    """The child drops the pinned memory of its parent and uses its own cache and thread; the parent is unaffected."""
    run_silently(
        runner,
        f"""
if {configuration!r}:
    forebay.memory.set_allocator_settings({configuration!r})
block()
kept, pending = used(5 << 20), used(3 << 20)
del pending
exit_and_fork.FORK_SECONDS = 0.2
before = forebay.memory.host_memory_stats("cpu")
child = os.fork()
if not child:
    try:
        assert stat("active_requests.current") == 0
        kept[:] = 1
        del kept
        gc.collect()
        stream, gate = forebay.Stream("cpu"), threading.Event()
        block()
        used()
        gate.set()
        stream.synchronize()
        end = time.monotonic() + 30
        while stat("active_requests.current") and time.monotonic() < end:
            forebay.memory.empty_host_cache("cpu")
        assert stat("num_host_alloc") == 1
        assert stat("active_requests.current") == 0
        os._exit(0)
    except BaseException:
        import traceback
        traceback.print_exc()
        os._exit(1)
assert os.waitpid(child, 0)[1] == 0
assert forebay.memory.host_memory_stats("cpu") == before
gate.set()
del kept
stream.synchronize()
forebay.memory.empty_host_cache("cpu")
assert stat("active_requests.current") == 0
assert stat("allocations.current") == 0
""",
    )
