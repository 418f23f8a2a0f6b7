"""The guard of emulated devices: host accesses outside queued work end the process and report the line."""

from __future__ import annotations

import os
import signal

import pytest

PROLOGUE = """\
import ctypes, gc, os, sys
import numpy as np
import forebay
from forebay import emulate
MIB = 1 << 20
emulation = emulate("cuda", count=2, guard=True)
tensor = forebay.full((1000,), 1.5, device="cuda:1")
assert tensor.cpu().tolist() == [1.5] * 1000
"""

INVALID_ACCESSES = {
    "reads through an array": """
array = tensor.raw_array()
array.sum()  # here
""",
    "copies with ctypes": """
buffer = ctypes.create_string_buffer(16)
ctypes.memmove(buffer, tensor.data_ptr(), 16)  # here
""",
    "writes with ctypes": """
ctypes.memset(tensor.data_ptr(), 0, 16)  # here
""",
    "writes through a stale DLPack capsule": """
class Exporter:
    def __init__(self, array):
        self.capsule, self.device = array.__dlpack__(), array.__dlpack_device__()
    def __dlpack__(self, **options):
        return self.capsule
    def __dlpack_device__(self):
        return self.device
exporter = Exporter(tensor.raw_array())
del tensor
view = np.from_dlpack(exporter)
ctypes.memset(view.ctypes.data, 0, 16)  # here
""",
    "freed and reused": """
address = tensor.data_ptr()
del tensor
other = forebay.zeros(1000, device="cuda:1")
assert other.data_ptr() == address
forebay.synchronize("cuda:1")  # until the queue has filled `other`, its memory is accessible
ctypes.string_at(address, 16)  # here
""",
    "released and reserved again": """
forebay.memory.set_allocator_settings("")
for _ in range(3):
    block = forebay.allocate(64 * MIB, "cuda:1")
    address = block.address
    block = None
    forebay.memory.empty_cache("cuda:1")
block = forebay.allocate(64 * MIB, "cuda:1")
ctypes.string_at(block.address, 16)  # here
""",
    "page of an expandable segment": """
forebay.memory.set_allocator_settings("expandable_segments:True")
first = forebay.full((64 * MIB,), 1, device="cuda:0", dtype="uint8")
second = forebay.full((64 * MIB,), 2, device="cuda:0", dtype="uint8")
assert first.cpu().numpy()[-1] == 1 and second.cpu().numpy()[-1] == 2
ctypes.string_at(second.data_ptr() + 50 * MIB, 16)  # here
""",
    "recommitted page of an expandable segment": """
forebay.memory.set_allocator_settings("expandable_segments:True")
block = forebay.allocate(64 * MIB, "cuda:0")
del block
forebay.memory.empty_cache("cuda:0")
block = forebay.full((40 * MIB,), 1, device="cuda:0", dtype="uint8")
assert block.cpu().numpy()[-1] == 1
ctypes.string_at(block.data_ptr(), 16)  # here
""",
    "in a thread": """
import threading
def access_memory():
    ctypes.string_at(tensor.data_ptr(), 16)  # here
thread = threading.Thread(target=access_memory)
thread.start()
thread.join()
""",
    "in a forked child": """
child = os.fork()
if child == 0:
    ctypes.string_at(tensor.data_ptr(), 16)  # here
pid, status = os.waitpid(child, 0)
assert os.WTERMSIG(status) == 11
os.kill(os.getpid(), 11)
""",
    "of a stopped emulation": """
emulation.stop()
ctypes.string_at(tensor.raw_storage.address, 16)  # here
""",
    "after waiting for an event": """
event, stream = forebay.Event("cuda:1"), forebay.Stream("cuda:1")
event.record()
event.synchronize()
ctypes.string_at(tensor.data_ptr(), 16)  # here
""",
}


def line_of(source: str) -> int:
    return next(number for number, line in enumerate(source.splitlines(), 1) if line.endswith("# here"))


@pytest.mark.parametrize("access", INVALID_ACCESSES.values(), ids=INVALID_ACCESSES.keys())
def test_guard_reports_the_accessing_line(runner, access):
    done = runner.python(PROLOGUE + access)
    assert done.status == -signal.SIGSEGV, done.err
    assert "the host touched device memory outside queued work; copy it first (Tensor.cpu())" in done.err
    assert f'script.py", line {line_of(PROLOGUE + access)} in ' in done.err, done.err
    device = "cuda:0" if "cuda:0" in access else "cuda:1"
    assert f"forebay: {device}: " in done.err


VALID_PROGRAMS = {
    "queued work": """
other = forebay.empty(1000, device="cuda:0").copy_(tensor)  # a queue of one device reads memory of the other
made = forebay.rand(3, 1000, device="cuda:0")
made[:, ::2].normal_()
probabilities = forebay.full((1000,), 1.0, device="cuda:1")
drawn = forebay.empty(1000, device="cuda:1").bernoulli_(probabilities)
assert other.cpu().tolist() == [1.5] * 1000 and drawn.cpu().tolist() == [1] * 1000
assert np.isfinite(made.cpu().numpy()).all()
""",
    "callable in the queue": """
seen = []
stream = forebay.current_stream("cuda:1")
stream.queue.call(lambda: seen.append(tensor.raw_array().sum()))
stream.synchronize()
assert seen == [1500]
""",
    "exit with queued work": """
forebay.full((64 * MIB,), 3, device="cuda:0")
""",
    "after the guard has ended": """
emulation.stop()
with emulate("cuda"):
    tensor = forebay.full((1000,), 2.5, device="cuda:1" if forebay.device_count("cuda") > 1 else "cuda:0")
    tensor.cpu()
    assert tensor.raw_array().sum() == 2500
""",
    "Ctrl-C during queued work": """
import signal, threading
stream, resume = forebay.current_stream("cuda:1"), threading.Event()
stream.queue.call(lambda: (os.kill(os.getpid(), signal.SIGINT), resume.wait(30)))
try:
    stream.synchronize()
except KeyboardInterrupt:
    resume.set()
    stream.synchronize()
    assert tensor.cpu().tolist() == [1.5] * 1000
else:
    raise AssertionError("no KeyboardInterrupt")
""",
    "system call fails with EFAULT": """
try:
    os.write(1, memoryview(tensor.raw_array()))
except OSError as error:
    assert error.strerror == "Bad address"
else:
    raise AssertionError("no OSError")
""",
}


@pytest.mark.parametrize("program", VALID_PROGRAMS.values(), ids=VALID_PROGRAMS.keys())
def test_guard_permits_queued_work(runner, program):
    done = runner.python(PROLOGUE + program)
    assert (done.status, done.err) == (0, "")


def test_end_of_the_guard_restores_the_signal_handler(runner):
    done = runner.python("""\
import faulthandler, os, forebay
for _ in range(2):
    with forebay.emulate("cuda", count=2, guard=True):
        a, b = forebay.zeros(3, device="cuda:0"), forebay.zeros(3, device="cuda:1")
        assert faulthandler.is_enabled()
        del a, b
    assert not faulthandler.is_enabled()
import ctypes
ctypes.string_at(8)
""")
    assert (done.status, done.err) == (-signal.SIGSEGV, "")


def test_other_crashes_are_reported_as_usual(runner):
    done = runner.python(PROLOGUE + "ctypes.string_at(8)  # here\n")
    assert done.status == -signal.SIGSEGV
    assert "the host touched" not in done.err
    assert f'script.py", line {line_of(PROLOGUE + "ctypes.string_at(8)  # here")} in <module>' in done.err


def test_environment_enables_the_guard(runner):
    source = """\
import forebay
tensor = forebay.zeros(3, device="cuda"); forebay.synchronize("cuda")  # work that is not done may access the memory
tensor.raw_array()[0]  # here
"""
    environment = {**os.environ, "FOREBAY_EMULATE": "cuda@a100+guard"}
    done = runner.python(source, env=environment)
    assert done.status == -signal.SIGSEGV, done.err
    assert 'script.py", line 3 in <module>' in done.err
