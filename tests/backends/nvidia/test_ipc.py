"""Memory and events that NVIDIA's GPUs share between processes, on the software driver."""

from __future__ import annotations

import os
import sys

import pytest
from support.software_driver import lines_of

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the software driver is built for Linux")

BEGIN = """
import ctypes, os, subprocess, sys, threading, time
from forebay import DeviceError, Unsupported, WrongState
from forebay.backends.nvidia.driver import CudaDriver
from forebay.spi import Shares

soft = ctypes.CDLL("libcuda.so.1")
TYPES = "contexts streams events device pinned managed registered imported mapped reservations chunks".split()
MIB, LIMIT = 1 << 20, 60

def live():
    return {name: count for name in TYPES if (count := soft.softcuda_live(name.encode()))}

OWNER = '''
import sys, threading
from forebay.backends.nvidia.driver import CudaDriver
port, gate = CudaDriver().open(0), threading.Event()
port.queue()
queue = port.queue()
address = port.reserve(4 << 20)
queue.fill(address, 5, 4 << 20)
queue.wait(queue.signal())
mark = port.make_mark()
queue.call(gate.wait)
word = mark.record(queue)
handle, offset = port.share(address + 100)
print(handle.hex(), offset, mark.handle.hex(), word, flush=True)
for line in sys.stdin:
    if line.strip() == "reach":
        gate.set()
        queue.wait(queue.signal())
    print("done", flush=True)
'''

class Owner:
    "Another process with 4 MiB of fives at offset 100, and a recorded event."
    def __init__(self):
        self.process = subprocess.Popen([sys.executable, "-c", OWNER], text=True,
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        handle, offset, mark, word = self.process.stdout.readline().split()
        self.handle, self.offset = bytes.fromhex(handle), int(offset)
        self.mark, self.word = bytes.fromhex(mark), int(word)
    def reach(self):
        self.process.stdin.write("reach\\n")
        self.process.stdin.flush()
        assert self.process.stdout.readline() == "done\\n"
    def kill(self):
        self.process.kill()
        self.process.wait(LIMIT)

def new_queue(port):
    port.queue()  # the default stream, which waits for others
    return port.queue()

def wait_until(condition):
    end = time.monotonic() + LIMIT
    while not condition():
        assert time.monotonic() < end, "timeout"
        time.sleep(0.001)
"""


def output_of(program: str, **variables: str) -> list[str]:
    return lines_of(BEGIN + program, **{"SOFTCUDA_MACHINE": f"ipc-{os.getpid()}", **variables})


def test_memory_of_another_process_is_mapped_and_closed():
    program = """
owner, port = Owner(), CudaDriver().open(0)
print(isinstance(port, Shares), owner.offset)
first, second = port.open_shared(owner.handle), port.open_shared(bytearray(owner.handle))
print(first == second, first[1] // MIB, live()["imported"])
queue, host = new_queue(port), ctypes.create_string_buffer(200)
queue.copy(ctypes.addressof(host), first[0] + owner.offset, 200)
queue.wait(queue.signal())
print(host.raw == b"\\5" * 200)
port.close_shared(first[0])
print(live()["imported"])
port.close_shared(first[0])
print("imported" in live())
try:
    port.close_shared(first[0])
except DeviceError as error:
    print(error.code, error.__notes__[-1].partition(" ")[2])
port.open_shared(owner.handle)
port.close()
print(live())
owner.kill()
"""
    assert output_of(program) == [
        "True 100",
        "True 4 1",
        "True",
        "1",
        "False",
        "1 is not the address of memory that `open_shared` returned",
        "{}",
    ]


def test_memory_of_another_gpu_is_accessible():
    program = """
owner, port = Owner(), CudaDriver().open(1)
address, nbytes = port.open_shared(owner.handle)
queue, own = new_queue(port), port.reserve(2 * MIB)
queue.copy(own, address, 2 * MIB)
queue.wait(queue.signal())
port.close()
owner.kill()
print(live())
"""
    assert output_of(program) == ["{}"]


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ("owner.kill()", 400),
        ("handle = bytes(64)", 1),
        ("handle = handle[:-1]", 400),
        ("handle = None", 400),
        ("handle = port.share(port.reserve(2 * MIB))[0]", 201),
    ],
    ids=["ended process", "no handle", "too short", "not bytes", "own handle"],
)
def test_bad_handle_is_one_error(change, code):
    program = f"""
owner, port = Owner(), CudaDriver().open(0)
handle = owner.handle
{change}
try:
    port.open_shared(handle)
except DeviceError as error:
    print(error.code, error.device, error.call != "")
port.close()
owner.kill()
print(live())
"""
    assert output_of(program) == [f"{code} cuda:0 True", "{}"]


def test_expandable_and_unknown_memory_is_not_shared():
    program = """
port = CudaDriver().open(0)
space = port.reserve_space(4 * MIB, 2 * MIB)
try:
    port.share(space)
except Unsupported as error:
    print(error.ability)
for address in (4096, port.reserve_managed(2 * MIB), port.pin(4096)):
    try:
        port.share(address)
    except DeviceError as error:
        print(error.code)
port.close()
"""
    assert output_of(program) == ["Growable", "1", "1", "1"]


def test_handle_of_freed_memory_is_not_reused():
    program = """
port = CudaDriver().open(0)
first = port.reserve(2 * MIB)
handle = port.share(first)[0]
port.release(first)
second = port.reserve(2 * MIB)
print(first == second, port.share(second)[0] == handle)
"""
    assert output_of(program)[0].endswith("False")


def test_stream_waits_for_the_event_of_another_process_without_blocking_host_or_streams():
    program = """
owner, port = Owner(), CudaDriver().open(0)
queue, values = new_queue(port), []
mark = port.open_mark(owner.mark)
print(mark.last() == owner.word, mark.reached(owner.word))
for _ in range(3):
    mark.wait_for(queue, owner.word)
queue.call(lambda: values.append("waited"))
others = [port.queue() for _ in range(8)]
for other in others:
    other.call(lambda: values.append("other"))
    other.wait(other.signal())
print(values == ["other"] * 8, queue.idle())
owner.reach()
queue.wait(queue.signal())
print(values[8:], mark.reached(owner.word))
mark.wait(owner.word)
port.close()
print(live())
owner.kill()
"""
    assert output_of(program) == ["True False", "True False", "['waited'] True", "{}"]


def test_killed_process_fails_the_streams_that_wait_for_it_once():
    program = """
owner, port = Owner(), CudaDriver().open(0)
queues = new_queue(port), port.queue()
mark = port.open_mark(owner.mark)
for queue in queues:
    mark.wait_for(queue, owner.word)
owner.kill()
for queue in queues:
    for _ in range(2):
        try:
            queue.wait(queue.signal())
            print("no failure")
        except DeviceError as error:
            print(error.code, str(error).partition("failed: ")[2])
try:
    mark.wait(owner.word)
except DeviceError as error:
    print(error.code)
port.close()
print(live())
"""
    failed = "130 it waited for an event of another process, which ended before it reached the event"
    assert output_of(program) == [failed, "no failure"] * 2 + ["130", "{}"]


def test_queue_that_waits_for_another_process_can_be_closed():
    program = """
owner, port = Owner(), CudaDriver().open(0)
queue = new_queue(port)
port.open_mark(owner.mark).wait_for(queue, owner.word)
print(queue.close(timeout=0.1))
port.close()
print(live(), threading.active_count())
owner.kill()
"""
    assert output_of(program) == ["False", "{} 2"]


def test_external_stream_that_waited_for_another_process_leaves_nothing():
    program = """
from cuda.bindings import driver as api
owner, port = Owner(), CudaDriver().open(0)
with port.context.current():
    theirs = api.cuStreamCreate(1)[1]
port.queue()
queue = port.external_queue(int(theirs))
port.open_mark(owner.mark).wait_for(queue, owner.word)
print(live()["pinned"])
owner.reach()
queue.wait(queue.signal())
api.cuStreamDestroy(theirs)
port.close()
print(live())
owner.kill()
"""
    assert output_of(program) == ["1", "{}"]


def test_record_that_fails_leaves_no_event_to_wait_for():
    program = """
port = CudaDriver().open(0)
queue, mark = new_queue(port), port.make_mark()
soft.softcuda_fail(b"cuLaunchHostFunc", ctypes.c_uint64(0), 999, 0)
try:
    mark.record(queue)
except DeviceError as error:
    print(error.code)
mark.wait(mark.last())
mark.wait_for(queue, mark.last())
queue.wait(queue.signal())
port.close()
print(live())
"""
    assert output_of(program) == ["999", "{}"]


def test_every_driver_call_of_a_transfer_fails_once():
    program = """
owner = Owner()
def transfer(port, queues):
    queues.append(queue := new_queue(port))
    port.share(port.reserve(2 * MIB))
    address, nbytes = port.open_shared(owner.handle)
    own = port.make_mark()
    own.wait_for(queue, own.record(queue))
    mark = port.open_mark(owner.mark)
    mark.wait_for(queue, owner.word)
    queue.fill(address, 7, nbytes)
    queue.close(timeout=0)
    port.close_shared(address)

def run(fault):
    port, queues = None, []
    if fault is not None:
        soft.softcuda_fail(b"", ctypes.c_uint64(fault), 999, 0)
    try:
        port = CudaDriver().open(0)
        transfer(port, queues)
        return True
    except DeviceError as error:
        assert error.code == 999, error
        return False
    finally:
        soft.softcuda_clear_faults()
        for queue in queues:
            queue.close(timeout=0)  # the event that it waits for is never reached
        if port is not None:
            port.close()
        assert not live(), (fault, live())

run(None)
before = soft.softcuda_calls(b"")
run(None)
calls = soft.softcuda_calls(b"") - before
survived = sum(run(number) for number in range(calls))
print(calls > 50, survived < 2 * calls / 3)  # the rest: changes of the context and the capture mode, clean-up
owner.kill()
"""
    assert output_of(program) == ["True True"]


def test_driver_refuses_to_free_memory_that_another_process_has_open():
    """The rule of CUDA that the software driver checks."""
    program = """
BORROWER = '''
import sys
from forebay.backends.nvidia.driver import CudaDriver
port = CudaDriver().open(0)
address, _ = port.open_shared(bytes.fromhex(sys.argv[1]))
print("open", flush=True)
sys.stdin.readline()
port.close_shared(address)
print("closed", flush=True)
'''
port = CudaDriver().open(0)
address = port.reserve(2 * MIB)
borrower = subprocess.Popen([sys.executable, "-c", BORROWER, port.share(address)[0].hex()], text=True,
                            stdin=subprocess.PIPE, stdout=subprocess.PIPE)
borrower.stdout.readline()
try:
    port.release(address)
except DeviceError as error:
    print(error.code)
borrower.communicate("close\\n", timeout=LIMIT)
port.release(address)
print(live()["contexts"], "device" in live())
"""
    assert output_of(program) == ["401", "1 False"]
