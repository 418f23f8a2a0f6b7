"""Pinned memory where a process ends or forks, with its background thread and with copies under way."""

from __future__ import annotations

import pytest

BEGIN = """
import gc, os, sys, threading, time
import numpy as np
import forebay

stream = forebay.Stream("host:0")
gate = threading.Event()

def busy():
    stream.queue.call(lambda: gate.wait(30))

def used(nbytes=1000):
    array = forebay.empty_pinned(nbytes, dtype=np.uint8, device="host:0")
    forebay.from_numpy(array).record_stream(stream)
    return array

def stat(name):
    return forebay.memory.host_memory_stats("host:0")[name]
"""
CONFIGURATIONS = ["", "pinned_use_background_threads:True", "pinned_max_cached_size_mb:1"]


def passes(runner, source):
    runner.write(BEGIN + source)
    done = runner.command("-W", "error", "-W", "ignore:.*multi-threaded:DeprecationWarning", "script.py")
    assert (done.status, done.out, done.err) == (0, "", "")


@pytest.mark.parametrize("configuration", CONFIGURATIONS)
@pytest.mark.parametrize(
    "source",
    [
        "kept = used(5 << 20)",
        "busy(); used(5 << 20); gate.set()",
        "sys.kept = used(5 << 20); sys.me = sys.kept; stream.queue.call(lambda: time.sleep(0.2))",
        "busy(); stream.queue.call(gate.clear); kept = [used() for _ in range(99)]; kept.append(kept); gate.set()",
        "class Late:\n    def __del__(self): used(); gc.collect()\nlate = Late()",
    ],
)
def test_leaving_without_a_word(runner, configuration, source):
    passes(
        runner, f"forebay.memory.set_allocator_settings({configuration!r}) if {configuration!r} else None\n{source}\n"
    )


@pytest.mark.parametrize("configuration", CONFIGURATIONS)
def test_a_child_begins_anew(runner, configuration):
    """It drops what its parent had, waiting or not, and has a cache and a thread of its own; the parent goes on."""
    passes(
        runner,
        f"""
if {configuration!r}:
    forebay.memory.set_allocator_settings({configuration!r})
busy()
kept, waiting = used(5 << 20), used(3 << 20)
del waiting
before = forebay.memory.host_memory_stats("host:0")
child = os.fork()
if not child:
    try:
        try:
            forebay.empty_pinned(3, device="host:0")
        except forebay.Forked:
            pass
        forebay.reopen("host:0")
        assert stat("active_requests.current") == 0
        kept[:] = 1
        del kept
        gc.collect()
        stream, gate = forebay.Stream("host:0"), threading.Event()
        busy()
        used()
        gate.set()
        stream.synchronize()
        end = time.monotonic() + 30
        while stat("active_requests.current") and time.monotonic() < end:
            forebay.memory.empty_host_cache("host:0")
        assert stat("num_host_alloc") == 1
        assert stat("active_requests.current") == 0
        os._exit(0)
    except BaseException:
        import traceback
        traceback.print_exc()
        os._exit(1)
assert os.waitpid(child, 0)[1] == 0
assert forebay.memory.host_memory_stats("host:0") == before
gate.set()
del kept
stream.synchronize()
forebay.memory.empty_host_cache("host:0")
assert stat("active_requests.current") == 0
assert stat("allocations.current") == 0
""",
    )
