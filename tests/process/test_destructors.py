"""Signal handlers that raise in destructors: nothing is lost, and each exception arrives in the program."""

from __future__ import annotations

import pytest
from support.emulated_programs import BLOCKING_ALARMS, run_silently, with_tests_on_path

PROLOGUE = """
import gc, random
from functools import partial
from support.interrupts import count_points, reaches_caller
from forebay.errors import ForebayWarning
from forebay.runtime.allocator.uncached import UncachedBlock
from forebay.runtime.devices.current import opened_for

kind, settings = {kind!r}, {settings!r}
forebay.memory.set_allocator_settings(settings)
if kind == "cpu":
    forebay.memory.set_capacity("4GiB", kind)
else:
    emulation = forebay.emulate(kind, memory="8GiB")
opened = opened_for(kind)
kept, swallowed = [], []
sys.unraisablehook = swallowed.append  # no Python function, which could be interrupted

def state():
    "Counts that every dropped object returns to what they were."
    allocator, pinned = opened.allocator, opened.pinned
    assert allocator.check_invariants() is None, allocator.check_invariants()
    assert pinned.check_invariants() is None, pinned.check_invariants()
    free, total = opened.port.memory_info()
    active = pinned.stats()["active_bytes.current"]
    return total - free, forebay.memory.memory_reserved(kind), active, [pool.users for pool in allocator.private]
"""

# Each defines `make`, which returns objects, and `clean`, after which `state` is what it was.
SCENES = {
    "MemPool": """
def make():
    pool = forebay.memory.MemPool(use_on_oom=True)
    with forebay.memory.use_mem_pool(pool, kind):
        blocks = [forebay.allocate(3 << 20, kind), forebay.allocate(1000, kind)]
    return [pool]

def clean(): pass  # nothing else releases the memory
""",
    "MemPool of a derived class": """
class Derived(forebay.memory.MemPool):
    def __del__(self):  # without that of the base class, which has none in PyTorch
        pass

def make():
    pool = Derived()
    with forebay.memory.use_mem_pool(pool, kind):
        blocks = [forebay.allocate(3 << 20, kind), forebay.allocate(1000, kind)]
    return [pool]

def clean(): pass
""",
    "PinnedBlock": """
side = forebay.Stream(kind)

def make():
    blocks = [opened.pinned.allocate(nbytes) for nbytes in (1000, 70_000, 5000)]
    blocks[1].record_stream(side.queue)
    return blocks

def clean():
    side.synchronize()
    opened.pinned.process_pending_frees()
""",
    "UncachedBlock": """
def make():
    return [UncachedBlock(opened.allocator, 5 << 20, opened.default_queue.handle) for _ in range(2)]

def clean(): pass
""",
    "Stream": """
def make():
    return [forebay.Stream(kind) for _ in range(2)]

def clean():
    streams = [forebay.Stream(kind) for _ in range(4)]
    if opened.stream_pool is None:
        assert len({stream.handle for stream in streams}) == 4 and len(opened.queues) <= 5, opened.queues
""",
    "Peak": """
def make():
    peak = forebay.memory.peak(kind)
    peak.__enter__()
    return [peak]

def clean(): pass
""",
}
GRAPHS = {
    "Graph": """
side, called, graphs = cuda.Stream(), [], 0
weights = forebay.ones(1000, device="cuda")

def make():
    global graphs
    graph = cuda.CUDAGraph()
    graph.register_destroy_callback(partial(called.append, 1), synchronize_before_release=True)
    with cuda.graph(graph, stream=side):
        made = forebay.ones(3 << 20, device="cuda")
        weights.fill_(2)
    graph.replay()
    graphs += 1
    return [graph]

def clean():
    assert len(called) == graphs, (called, graphs)
    cuda.synchronize()
    cuda.memory.empty_cache()
""",
    "Graph that is being captured": """
side = cuda.Stream()

def make():
    graph = cuda.CUDAGraph()
    with cuda.stream(side):
        graph.capture_begin()
        made = forebay.ones(3 << 20, device="cuda")
    return [graph]

def clean():
    assert side.queue.capture is None and opened.allocator.capturing.maps == [{}], side.queue.capture
    cuda.synchronize()
    cuda.memory.empty_cache()
""",
}
CASES = [
    *((scene, kind, "") for scene in SCENES for kind in ("cuda", "mps", "mtia", "cpu")),
    *((scene, "cuda", "expandable_segments:True") for scene in ("MemPool", "PinnedBlock")),
    ("PinnedBlock", "cuda", "pinned_max_cached_size_mb:0"),
    *((scene, "cuda", "") for scene in GRAPHS),
]
each_case = pytest.mark.parametrize(("scene", "kind", "settings"), CASES)


def run(runner, source, scene, kind, settings):
    program = PROLOGUE.format(kind=kind, settings=settings) + (SCENES | GRAPHS)[scene] + source
    run_silently(runner, program, first=BLOCKING_ALARMS, env=with_tests_on_path())


TIMER = """
chance, left, busy, raised, caught, hits = random.Random(3), 0, False, [], {}, 0

def interrupt(*_):
    global left, busy
    if left and not busy:
        busy = True  # the next signal may come in the handler
        left -= 1
        error = ERROR()
        raised.append(error)
        busy = False
        raise error

def note(error):
    while error is not None:
        if isinstance(error, ERROR):
            caught[id(error)] = error
        error.__traceback__, error = None, error.__context__

def collect(objects, levels=8):
    "Drop objects. An exception may also arrive while the last one is noted, and the next level catches it."
    global left
    try:
        if levels:
            collect(objects, levels - 1)
        else:
            left = 1
            while objects:
                objects.pop()
            left = 0
            for _ in range(9):  # late exceptions arrive at the end of an iteration
                pass
    except ERROR as error:
        note(error)

def note_swallowed():
    "Note the exceptions that came in the destructor of the program, which are for Python to report."
    while swallowed:
        unraisable = swallowed.pop()
        destructor = unraisable.object
        assert getattr(destructor, "__module__", "") == "__main__", (destructor, repr(unraisable.exc_value))
        note(unraisable.exc_value)

class Alarm(Exception):  # not an OSError, as which ports take a TimeoutError
    pass

ERROR = KeyboardInterrupt
for _ in range(3):
    collect(make())
    clean()
before = state()
gc.disable()  # no destructor of another object is interrupted
signal.signal(signal.SIGALRM, interrupt)
for ERROR in (KeyboardInterrupt, Alarm):
    end = hits + 100
    while hits < end:
        objects = make()
        _signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGALRM})
        signal.setitimer(signal.ITIMER_REAL, chance.uniform(2e-6, 3e-4), chance.uniform(1e-5, 1e-4))
        collect(objects)
        left = 0
        signal.setitimer(signal.ITIMER_REAL, 0)
        _signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGALRM})
        note_swallowed()
        objects.clear()
        hits += bool(raised) or chance.random() < 0.1  # a destructor that takes no time is not interrupted
        clean()
    assert len(caught) == len(raised), (len(caught), len(raised))
    caught.clear(), raised.clear()
assert state() == before, (state(), before)
"""


@pytest.mark.parametrize(("scene", "kind", "settings"), [case for case in CASES if case[1] != "mtia"])  # as "cuda"
@pytest.mark.slow
def test_timers_that_interrupt_destructors_lose_nothing(runner, scene, kind, settings):
    run(runner, TIMER, scene, kind, settings)


POINTS = """
def drop():
    while objects:
        objects.pop()

objects = make()
drop()
clean()
before = state()
objects = make()
count = count_points(drop, "src/forebay")
clean()
assert count or scene not in {"MemPool", "Graph", "PinnedBlock", "UncachedBlock"}, count
for number in range(1, count + 1):
    objects = make()
    assert reaches_caller(drop, "src/forebay", number), number
    drop()
    clean()
    assert state() == before, (number, state(), before)
assert swallowed == [], repr(swallowed[0].exc_value)
"""


@each_case
def test_interrupt_at_each_point_of_a_destructor_loses_nothing(runner, scene, kind, settings):
    run(runner, f"scene = {scene!r}\n" + POINTS, scene, kind, settings)


RECURSION = """
depth, frame = 0, sys._getframe()
while frame is not None:
    depth, frame = depth + 1, frame.f_back

def at(levels, objects):
    if levels:
        return at(levels - 1, objects)
    objects.clear()

drop = lambda: None
objects = make()
objects.clear()
clean()
before = state()
for free in range(5, 60):
    objects = make()
    try:
        at(sys.getrecursionlimit() - depth - free, objects)
    except RecursionError:
        assert free < 10
    objects.clear()
    clean()
    assert state() == before, (free, state(), before)
assert swallowed == [], repr(swallowed[0].exc_value)
assert sys.getrecursionlimit() == 1000
"""


@each_case
def test_destructors_close_to_the_limit_of_recursion_lose_nothing(runner, scene, kind, settings):
    run(runner, RECURSION, scene, kind, settings)
