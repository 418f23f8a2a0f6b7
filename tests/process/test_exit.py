"""Process exit with open devices. Every child process has a time limit; most must exit without output."""

from __future__ import annotations

import re
import time

import pytest

from forebay.runtime.lifecycle.exit_and_fork import EXIT_SECONDS

PROLOGUE = """
import atexit, gc, os, signal, sys, threading, time
import numpy as np
import forebay
stream = forebay.Stream("cpu")
"""


def run(runner, source, *, warnings="error"):
    runner.write(PROLOGUE + source)
    return runner.command("-W", warnings, "script.py")


@pytest.mark.parametrize(
    "source",
    [
        "pass",
        "made = forebay.zeros(1000)",
        "made = forebay.zeros(1000); made.me = made",
        "made = forebay.zeros(1000); made.record_stream(stream)",
        "made = forebay.zeros(1000); array = made.numpy(); view = memoryview(made)",
        "pinned = forebay.empty_pinned(1000)",
        "threading.kept = forebay.empty_pinned(1000)",  # deleted when the names of most modules are gone
        (
            "pool = threading.kept = forebay.memory.MemPool(); use = forebay.memory.use_mem_pool(pool, 'cpu'); "
            "use.__enter__(); made = forebay.zeros(1000); del pool, use"
        ),
        "block = forebay.allocate(1000); block.record_stream(stream.handle); sys.block = block",
        "forebay.set_stream(stream)",
        "stream.__enter__()",
        "stream.queue.call(lambda: time.sleep(0.2)); event = stream.record_event()",
        "forebay.memory.record_history(); made = forebay.zeros(10)",
        "sys.exit(0)",
        "os._exit(0)",
        "del forebay, stream; gc.collect()",
        "del sys.modules['forebay'], sys.modules['forebay.runtime.streams.stream']",
        "sys.modules['forebay.runtime.streams.stream'].__dict__.clear()",
        "threading.Thread(target=lambda: forebay.zeros(10).tolist()).start()",
        "threading.Thread(target=lambda: (time.sleep(0.2), forebay.zeros(10).tolist())).start()",
        "threading.Thread(target=sys.exit).start()",
        "keep = [forebay.Stream() for _ in range(20)]; [s.queue.call(int) for s in keep]",
        "class Late:\n    def __del__(self): made.numpy(); stream.query()\nmade = forebay.zeros(3); late = Late()",
    ],
)
def test_exit_is_silent(runner, source):
    done = run(runner, source)
    assert (done.status, done.out, done.err) == (0, "", "")


EMULATED = "forebay.emulate('cuda', count=2)\npool = forebay.cuda.MemPool()\n"
FOREVER = """
def forever():
    while True:
        made = forebay.zeros(1000, device="cuda")
        made.fill_(1)
        del made
"""


@pytest.mark.parametrize(
    "source",
    [
        "with forebay.cuda.use_mem_pool(pool): made = forebay.zeros(1000, device='cuda')",
        "context = forebay.cuda.use_mem_pool(pool); context.__enter__(); made = forebay.zeros(1000, device='cuda')",
        "with forebay.cuda.use_mem_pool(pool): forebay.zeros(1000, device='cuda'); sys.exit()",
        "sys.kept = pool",
        "gc.disable(); kept = [pool]; kept.append(kept); del pool, kept",
        "atexit.register(pool.snapshot)",
        (
            "graph = forebay.cuda.CUDAGraph()\n"
            "with forebay.cuda.graph(graph, pool=pool.id): forebay.zeros(9, device='cuda')"
        ),
        "made = [forebay.zeros(9, device=f'cuda:{at}') for at in range(2)]; made[0].copy_(made[1], non_blocking=True)",
        "kept = [forebay.cuda.Stream() for _ in range(40)]; events = [each.record_event() for each in kept]",
        "forebay.cuda.memory._record_memory_history(); made = forebay.zeros(9, device='cuda')",
        f"{FOREVER}\nfor _ in range(4): threading.Thread(target=forever, daemon=True).start()\ntime.sleep(0.1)",
        f"import _thread\n{FOREVER}\nfor _ in range(4): _thread.start_new_thread(forever, ())\ntime.sleep(0.1)",
    ],
)
def test_exit_with_emulated_devices_in_use_is_silent(runner, source):
    done = run(runner, EMULATED + source)
    assert (done.status, done.out, done.err) == (0, "", "")


def test_error_of_a_daemon_thread_before_the_exit_is_reported(runner):
    done = run(
        runner,
        "thread = threading.Thread(target=lambda: forebay.zeros(-1), daemon=True)\nthread.start()\nthread.join()",
    )
    assert done.status == 0
    assert "Exception in thread" in done.err


@pytest.mark.parametrize("device", ["cpu", "cuda:0"])
@pytest.mark.parametrize(
    "source",
    [
        "graph.replay()",
        "stream = forebay.Stream(device); stream.__enter__(); graph.replay()",
        "graph.replay(); graph.me = graph",
        "graph.replay(); atexit.register(graph.reset)",
        "class Late:\n    def __del__(self): graph.reset()\ngraph.replay(); late = Late()",
        "other = Graph(); capturing.__enter__(); other.capture_begin(); made.fill_(2)",
    ],
)
def test_exit_with_a_graph_is_silent(runner, device, source):
    done = run(
        runner,
        f"""
if {device!r} != "cpu":
    forebay.emulate("cuda")
from forebay.runtime.graphs.graph import Graph
device = {device!r}
made = forebay.zeros(1000, device=device)
capturing, graph = forebay.Stream(device), Graph()
with capturing:
    graph.capture_begin()
    made.fill_(1)
    graph.capture_end()
"""
        + source,
    )
    assert (done.status, done.out, done.err) == (0, "", "")


def test_queued_work_completes_at_exit(runner):
    done = run(
        runner,
        """
made = forebay.zeros(1 << 22)
for i in range(50):
    made.fill_(i + 0.5)
stream.queue.call(lambda: time.sleep(0.3))
stream.queue.call(lambda: print("done", flush=True))
forebay.default_stream().queue.call(lambda: print("default", flush=True))
""",
    )
    assert (done.status, sorted(done.out.split()), done.err) == (0, ["default", "done"], "")


def test_later_exit_handlers_run_first_and_may_use_devices(runner):
    done = run(
        runner,
        """
atexit.register(lambda: print("later", forebay.full((2,), 3).tolist(), flush=True))
stream.queue.call(lambda: print("queued", flush=True))
""",
    )
    assert (done.status, done.err) == (0, "")
    assert sorted(done.out.splitlines()) == ["later [3, 3]", "queued"]


def test_earlier_exit_handlers_run_after_queues_are_closed(runner):
    runner.write("""
import atexit
def early():
    try:
        forebay.zeros(3).fill_(2)
    except forebay.WrongState as error:
        print(error)
    print(made.numpy().tolist())
atexit.register(early)
import forebay
made = forebay.full((2,), 7)
""")
    done = runner.command("-W", "error", "script.py")
    assert (done.status, done.err) == (0, "")
    assert done.out == "cpu: queue 0 was closed\n[7, 7]\n"


def test_unreported_failure_of_work_warns_at_exit(runner):
    done = run(runner, "stream.queue.call(lambda: 1 / 0)", warnings="default")
    assert done.status == 0
    assert "ForebayWarning" in done.err
    assert "ZeroDivisionError: division by zero; no wait reported it before the queue was closed" in done.err


@pytest.mark.parametrize(
    ("endless", "seconds"),
    [("time.sleep(1000)", None), ("[0 for _ in iter(int, 1)]", 0.75), ("threading.Event().wait()", 0.75)],
)
def test_endless_work_is_dropped_at_exit(runner, endless, seconds):
    start = time.monotonic()
    done = run(runner, f"""
from forebay.runtime.lifecycle import exit_and_fork
exit_and_fork.EXIT_SECONDS = {seconds} or exit_and_fork.EXIT_SECONDS
made = forebay.zeros(1000)
made.record_stream(stream)
stream.queue.call(lambda: {endless})
stream.queue.call(lambda: print("never"))
made.fill_(1.5)
other = forebay.Stream()
other.wait_stream(stream)
forebay.current_stream().queue.call(lambda: print("on the default stream", flush=True))
""", warnings="default")  # fmt: skip
    elapsed = time.monotonic() - start
    assert (done.status, done.out) == (0, "on the default stream\n")
    limit = seconds or EXIT_SECONDS
    message = f"work of (1 queue|2 queues) was not done {limit:g} s after the program's end, and was dropped"
    assert re.search(f"ForebayWarning: {message}", done.err)
    assert "Traceback" not in done.err
    assert limit <= elapsed < limit + 10


def test_exit_after_an_exception_completes_work(runner):
    done = run(
        runner,
        """
stream.queue.call(lambda: print("done", flush=True))
made = forebay.zeros(10)
raise SystemExit(3)
""",
    )
    assert (done.status, done.out, done.err) == (3, "done\n", "")


def test_out_of_memory_traceback_has_the_message(runner):
    done = run(runner, "forebay.memory.set_capacity('16MiB')\nmade = forebay.zeros(1 << 23)\n")
    assert done.status == 1
    assert "forebay.OutOfMemory: cpu out of memory. Tried to allocate 32.00 MiB" in done.err


def test_signal_ends_the_process(runner):
    done = run(
        runner,
        """
made = forebay.zeros(1 << 20)
made.fill_(1.5)
os.kill(os.getpid(), signal.SIGTERM)
time.sleep(30)
""",
    )
    assert done.status == -15


def test_ctrl_c_interrupts_a_wait(runner):
    done = run(
        runner,
        """
signal.signal(signal.SIGINT, signal.default_int_handler)  # background jobs ignore the signal
gate = threading.Event()
stream.queue.call(gate.wait)
threading.Timer(0.2, os.kill, [os.getpid(), signal.SIGINT]).start()
try:
    stream.synchronize()
except KeyboardInterrupt:
    print("interrupted", flush=True)
gate.set()
stream.synchronize()
""",
    )
    assert (done.status, done.out, done.err) == (0, "interrupted\n", "")


def test_daemon_threads_may_use_devices_during_exit(runner):
    """Daemon threads use streams and memory while the interpreter exits; their WrongState errors are expected."""
    done = run(
        runner,
        """
def busy():
    with forebay.Stream():
        while True:
            try:
                made = forebay.zeros(1000)
                made.fill_(1.5)
                made.record_stream(forebay.default_stream())
            except forebay.WrongState:  # closed
                pass
            time.sleep(0.001)
for _ in range(3):
    threading.Thread(target=busy, daemon=True).start()
time.sleep(0.2)
""",
    )
    assert (done.status, done.out, done.err) == (0, "", "")


def test_threads_start_with_the_first_queued_work(runner):
    done = runner.python("""
import threading
from pathlib import Path
import forebay
from forebay.runtime.devices import open_device
assert not open_device._opened
assert threading.active_count() == 1
import forebay.testing
forebay.device("cpu"), forebay.current_device(), forebay.device_count("cpu"), forebay.why_not("cuda")
assert not open_device._opened
forebay.allocate(1)
stream = forebay.Stream()
names = lambda: [path.read_text().strip() for path in Path("/proc/self/task").glob("*/comm")]
assert names().count("forebay") == 0
stream.queue.call(int)
stream.synchronize()
assert names().count("forebay") == 1
""")
    assert (done.status, done.err) == (0, "")
