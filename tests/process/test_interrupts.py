"""Signal handlers that raise, and RecursionErrors, at any instruction: no device memory is lost."""

from __future__ import annotations

import pytest
from support.emulated_programs import BLOCKING_ALARMS, run_silently, with_tests_on_path

PROLOGUE = """
import gc, random
kind, settings = {kind!r}, {settings!r}
forebay.memory.set_allocator_settings(settings)
if kind == "cpu":
    forebay.memory.set_capacity("2GiB", kind)
else:
    emulation = forebay.emulate(kind, memory="8GiB")

def used():
    gc.collect()
    forebay.synchronize(kind)
    forebay.empty(1, device=kind)
    for _ in range(3):
        forebay.memory.empty_cache(kind)
    free, total = forebay.memory.mem_get_info(kind)
    return total - free, forebay.memory.memory_reserved(kind)

before = used()
"""

KINDS = pytest.mark.parametrize(
    ("kind", "settings"),
    [("cuda", ""), ("cuda", "expandable_segments:True"), ("mps", ""), ("mtia", ""), ("cpu", "")],
)


@KINDS
def test_interrupts_lose_no_memory(runner, kind, settings):
    """A timer's handler raises KeyboardInterrupt in the middle of allocations and of `empty_cache`."""
    source = """
from support.interrupts import catch_interrupts
chance, armed, hits = random.Random(3), False, 0

def interrupt(*_):
    global armed
    if armed:
        armed = False
        raise KeyboardInterrupt

def work():
    global armed
    signal.setitimer(signal.ITIMER_REAL, chance.uniform(1e-5, 1e-3), 1e-3)
    armed = True
    while True:
        made = forebay.empty(chance.choice([100, 5 << 20, 30 << 20]), dtype="uint8", device=kind)
        del made
        forebay.memory.empty_cache(kind)

signal.signal(signal.SIGALRM, interrupt)
_signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGALRM})
while hits < 400:
    hits += len(catch_interrupts(work, KeyboardInterrupt))
signal.setitimer(signal.ITIMER_REAL, 0)
assert used() == before, (used(), before)
"""
    run_silently(
        runner, PROLOGUE.format(kind=kind, settings=settings) + source, first=BLOCKING_ALARMS, env=with_tests_on_path()
    )


@KINDS
def test_recursion_errors_lose_no_memory(runner, kind, settings):
    source = """
calls = [
    lambda: forebay.empty(30 << 20, dtype="uint8", device=kind),
    lambda: forebay.empty(100, device=kind),
    lambda: forebay.memory.empty_cache(kind),
    lambda: forebay.empty(3 << 20, dtype="uint8", device=kind).fill_(3),
    lambda: forebay.Stream(device=kind),
    lambda: forebay.synchronize(kind),
]
sys.unraisablehook = lambda _: None  # destructors may fail, too
depth = 0
frame = sys._getframe()
while frame is not None:
    depth, frame = depth + 1, frame.f_back

def at(levels, call):
    return at(levels - 1, call) if levels else call()

failures = 0
for left in range(5, 100):
    for call in calls:
        try:
            at(sys.getrecursionlimit() - depth - left, call)
        except RecursionError:
            failures += 1
        except Exception:  # ctypes reports it as an ArgumentError
            failures += 1
assert failures > 30, failures
assert used() == before, (used(), before)
"""
    run_silently(runner, PROLOGUE.format(kind=kind, settings=settings) + source)
