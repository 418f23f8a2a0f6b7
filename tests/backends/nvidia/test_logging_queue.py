"""Times of work that CUPTI reports, on its stand-in."""

from __future__ import annotations

import sys

import pytest
from support.kernel_programs import output_of
from support.perfetto_files import decode

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the software driver is built for Linux")

BEGIN = """
import gc, threading, time
from forebay.spi import ExecutionLog, StridedCopy

LIMIT = 30
cupti = ctypes.CDLL("libcupti.so.13")

def open_port():
    global port, queue, memory
    port = CudaDriver().open(0)
    port.queue()
    queue, memory = port.queue(), port.reserve(4 * MIB)

open_port()
"""


def test_each_piece_of_work_has_its_times():
    program = """
source = Program('extern "C" __global__ void set(int* to) { *to = 3; }', "set.cu")
kernel = load_kernel(queue, source, "set", ["pointer"])
queue.fill(memory, 1, MIB)
log, first = queue.log(100), queue.last_work_number()
before = time.perf_counter_ns()
queue.fill(memory, 1, MIB)
queue.copy(memory + MIB, memory, MIB)
launch(kernel, 1, 1, [memory], queue)
queue.call(lambda: None)
queue.copy_strided(StridedCopy((2, 2), memory, (4, 8), "", 4, memory + MIB, (16, 4)))
graph = queue.begin_capture()
queue.fill(memory, 2, MIB)
queue.copy(memory + MIB, memory, MIB)
queue.end_capture()
captured = queue.last_work_number()
graph.launch(queue)
last = queue.last_work_number()
queue.wait(queue.signal())
after = time.perf_counter_ns()
times = log([*range(first + 1, first + 6), last])
print([0 < begin < end for begin, end in times], last - captured)
flat = [before, *(time for pair in times for time in pair), after]
print(flat == sorted(flat))
print(log([first, captured, last + 1]))
"""
    assert output_of(BEGIN + program) == ["[True, True, True, True, True, True] 1", "True", "[(0, 0), (0, 0), (0, 0)]"]


def test_work_of_other_streams_and_libraries_does_not_change_the_times():
    program = """
other, gate, entered = port.queue(), threading.Event(), threading.Event()
log, others = queue.log(10), other.log(10)
other.call(lambda: entered.set() or gate.wait(LIMIT))
other.fill(memory + MIB, 1, MIB)
print(entered.wait(LIMIT))
queue.fill(memory, 1, MIB)
with port.context.current():
    api.cuMemsetD8Async(memory, 7, MIB, queue.handle)
queue.wait(queue.signal())
(here,) = log([queue.last_work_number()])
(begun, ended), later = others([1, other.last_work_number()])
print(0 < begun < here[0] < here[1], ended, later)
gate.set()
other.wait(other.signal())
first, there = others([1, other.last_work_number()])
print(here[1] < first[1] < there[0] < there[1], first[0] == begun, log([1]) == [here])
"""
    assert output_of(BEGIN + program) == ["True", "True 0 (0, 0)", "True True True"]


def test_logs_keep_their_most_recent_work_and_outlive_the_queue():
    program = """
long, short = queue.log(3), queue.log(1)
for byte in range(5):
    queue.fill(memory, byte, 100)
queue.wait(queue.signal())
before = long(range(7))
print([bool(end) for _, end in before], [bool(end) for _, end in short(range(7))])
queue.close()
port.close()
print(long(range(7)) == before)
for wrong in (0, -1, 2**63):
    open_port()
    try:
        queue.log(wrong)
    except ValueError as error:
        print(error)
"""
    kept = [False, False, False, True, True, True, False]
    assert output_of(BEGIN + program) == [
        f"{kept} {[number == 5 for number in range(7)]}",
        "True",
        *(f"a log must hold at least 1 piece of work, not {wrong}" for wrong in (0, -1, 2**63)),
    ]


def test_nothing_is_traced_without_a_log():
    program = """
print(cupti.softcupti_enabled())
first = queue.log(10)
second = queue.log(5)
print(cupti.softcupti_enabled())
del first
queue.fill(memory, 1, 1)
queue.wait(queue.signal())
print(cupti.softcupti_enabled(), second([queue.last_work_number()])[0][1] > 0)
del second
gc.collect()
print(cupti.softcupti_enabled())
again = queue.log(10)
queue.fill(memory, 1, 1)
queue.wait(queue.signal())
print(again([queue.last_work_number()])[0][1] > 0, again([1]))
"""
    assert output_of(BEGIN + program) == ["0", "9", "9 True", "0", "True [(0, 0)]"]


def test_records_are_received_at_most_once_for_all_times():
    program = """
gate, entered, log = threading.Event(), threading.Event(), queue.log(10)
def flushes(numbers):
    before = cupti.softcupti_flushes()
    ended = [bool(end) for _, end in log(numbers)]
    return ended, cupti.softcupti_flushes() - before

for byte in range(12):
    queue.fill(memory, byte, 100)
queue.wait(queue.signal())
print(flushes([1, 2, 13, 99]))
print(flushes(range(1, 13)))
print(flushes(range(1, 13)))
queue.call(lambda: entered.set() or gate.wait(LIMIT))
queue.fill(memory, 1, 100)
queue.fill(memory, 2, 100)
print(entered.wait(LIMIT), flushes([12, 13, 14, 15]))
gate.set()
queue.wait(queue.signal())
print(flushes([15, 14, 13]), log([]))
"""
    every = [number > 2 for number in range(1, 13)]
    assert output_of(BEGIN + program) == [
        f"{([False] * 4, 0)}",
        f"{(every, 1)}",
        f"{(every, 0)}",
        f"True {([True, False, False, False], 1)}",
        f"{([True] * 3, 1)} []",
    ]


def test_trace_receives_the_records_at_most_once_for_each_stream(tmp_path):
    program = f"""
port.close()
import forebay
from forebay import observe
with observe.trace({str(tmp_path / "trace")!r}, limit=0) as recording:
    numbers, gate = forebay.zeros(1000, device="cuda"), threading.Event()
    forebay.cuda.current_stream().queue.call(lambda: gate.wait(LIMIT))
    for _ in range(20):
        numbers.fill_(3)
    before = cupti.softcupti_flushes()
print(recording.operations, recording.unfinished, cupti.softcupti_flushes() - before < 10)
gate.set()
"""
    assert output_of(BEGIN + program) == ["21 20 True"]


def test_failing_library_is_an_error_of_the_log():
    program = """
for _ in range(2):
    try:
        queue.log(10)
    except DeviceError as error:
        print(error)
queue.fill(memory, 1, 1)
queue.wait(queue.signal())
print(cupti.softcupti_enabled())
"""
    message = "cuda:0: the times of work cannot be logged, as CUPTI returned 39; another profiler may use it"
    assert output_of(BEGIN + program, SOFTCUPTI_ERROR="39") == [message, message, "0"]


def test_queues_have_no_log_without_the_library():
    program = """
import forebay.backends.nvidia.cupti as module
print(isinstance(queue, ExecutionLog))
queue.begin_capture()
print(isinstance(queue, ExecutionLog))
queue.abandon_capture()
module.has_cupti.cache_clear()
module._load = lambda: None
print(isinstance(port.queue(), ExecutionLog), hasattr(port.queue(), "mark"))
"""
    assert output_of(BEGIN + program) == ["True", "True", "False True"]


def test_trace_has_the_times_of_the_device(tmp_path):
    program = f"""
port.close()
import forebay
from forebay import observe
with observe.trace({str(tmp_path / "trace")!r}) as recording:
    numbers = forebay.zeros(1000, device="cuda")
    before = time.perf_counter_ns()
    numbers.fill_(3)
    there = numbers.to(forebay.float64)
    forebay.cuda.synchronize()
    after = time.perf_counter_ns()
print(recording.operations, recording.unfinished)
print(before, after)
"""
    done, clock = output_of(BEGIN + program)
    before, after = map(int, clock.split())
    executed = {each.name: each for each in decode(tmp_path / "trace").executed}
    assert done == "3 0"
    filled, copied = executed["fill_"], executed["copy_"]
    assert before < filled.begin < filled.end < copied.begin < copied.end < after
