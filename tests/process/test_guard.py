"""Programs that touch an emulated device's memory behind its back: each dies on the line that does it."""

from __future__ import annotations

import os
import signal

import pytest

START = """\
import ctypes, gc, os, sys
import numpy as np
import forebay
from forebay import emulate
MIB = 1 << 20
emulation = emulate("cuda", count=2, guard=True)
tensor = forebay.full((1000,), 1.5, device="cuda:1")
assert tensor.cpu().tolist() == [1.5] * 1000
"""

MISTAKES = {
    "reads an array over it": """
array = tensor.raw_array()
array.sum()  # here
""",
    "copies it with ctypes": """
buffer = ctypes.create_string_buffer(16)
ctypes.memmove(buffer, tensor.data_ptr(), 16)  # here
""",
    "writes it with ctypes": """
ctypes.memset(tensor.data_ptr(), 0, 16)  # here
""",
    "writes through a stale DLPack capsule": """
class Lent:
    def __init__(self, array):
        self.capsule, self.where = array.__dlpack__(), array.__dlpack_device__()
    def __dlpack__(self, **wishes):
        return self.capsule
    def __dlpack_device__(self):
        return self.where
lent = Lent(tensor.raw_array())
del tensor
seen = np.from_dlpack(lent)
ctypes.memset(seen.ctypes.data, 0, 16)  # here
""",
    "freed and reserved again": """
address = tensor.data_ptr()
del tensor
again = forebay.zeros(1000, device="cuda:1")
assert again.data_ptr() == address
ctypes.string_at(address, 16)  # here
""",
    "given back and taken again": """
forebay.memory.set_allocator_settings("")
for _ in range(3):
    block = forebay.allocate(64 * MIB, "cuda:1")
    address = block.address
    block = None
    forebay.memory.empty_cache("cuda:1")
block = forebay.allocate(64 * MIB, "cuda:1")
ctypes.string_at(block.address, 16)  # here
""",
    "a page of a growing segment": """
forebay.memory.set_allocator_settings("expandable_segments:True")
first = forebay.full((64 * MIB,), 1, device="cuda:0", dtype="uint8")
second = forebay.full((64 * MIB,), 2, device="cuda:0", dtype="uint8")
assert first.cpu().numpy()[-1] == 1 and second.cpu().numpy()[-1] == 2
ctypes.string_at(second.data_ptr() + 50 * MIB, 16)  # here
""",
    "a page that came after others went": """
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
def look():
    ctypes.string_at(tensor.data_ptr(), 16)  # here
thread = threading.Thread(target=look)
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
    "of a device that has ended": """
emulation.stop()
ctypes.string_at(tensor.storage.address, 16)  # here
""",
    "from another stream's wait": """
event, stream = forebay.Event("cuda:1"), forebay.Stream("cuda:1")
event.record()
event.synchronize()
ctypes.string_at(tensor.data_ptr(), 16)  # here
""",
}


def line_of(source: str) -> int:
    return next(number for number, line in enumerate(source.splitlines(), 1) if line.endswith("# here"))


@pytest.mark.parametrize("mistake", MISTAKES.values(), ids=MISTAKES.keys())
def test_the_line_that_did_it_is_told(runner, mistake):
    done = runner.python(START + mistake)
    assert done.status == -signal.SIGSEGV, done.err
    assert "the host touched device memory outside queued work; copy it first (Tensor.cpu())" in done.err
    assert f'script.py", line {line_of(START + mistake)} in ' in done.err, done.err
    device = "cuda:0" if "cuda:0" in mistake else "cuda:1"
    assert f"forebay: {device}: " in done.err


RIGHT = {
    "queued work": """
other = forebay.empty(1000, device="cuda:0").copy_(tensor)  # one device's queue reads another's memory
made = forebay.rand(3, 1000, device="cuda:0")
made[:, ::2].normal_()
chances = forebay.full((1000,), 1.0, device="cuda:1")
drawn = forebay.empty(1000, device="cuda:1").bernoulli_(chances)
assert other.cpu().tolist() == [1.5] * 1000 and drawn.cpu().tolist() == [1] * 1000
assert np.isfinite(made.cpu().numpy()).all()
""",
    "a callable in the queue": """
seen = []
stream = forebay.current_stream("cuda:1")
stream.queue.call(lambda: seen.append(tensor.raw_array().sum()))
stream.synchronize()
assert seen == [1500]
""",
    "leaving with work queued": """
forebay.full((64 * MIB,), 3, device="cuda:0")
""",
    "not guarded any more": """
emulation.stop()
with emulate("cuda"):
    tensor = forebay.full((1000,), 2.5, device="cuda:1" if forebay.device_count("cuda") > 1 else "cuda:0")
    tensor.cpu()
    assert tensor.raw_array().sum() == 2500
""",
    "Ctrl-C while it works": """
import signal, threading
stream, held = forebay.current_stream("cuda:1"), threading.Event()
stream.queue.call(lambda: (os.kill(os.getpid(), signal.SIGINT), held.wait(30)))
try:
    stream.synchronize()
except KeyboardInterrupt:
    held.set()
    stream.synchronize()
    assert tensor.cpu().tolist() == [1.5] * 1000
else:
    raise AssertionError("no Ctrl-C")
""",
    "a system call is refused": """
try:
    os.write(1, memoryview(tensor.raw_array()))
except OSError as error:
    assert error.strerror == "Bad address"
else:
    raise AssertionError("read")
""",
}


@pytest.mark.parametrize("program", RIGHT.values(), ids=RIGHT.keys())
def test_what_is_right_goes_on(runner, program):
    done = runner.python(START + program)
    assert (done.status, done.err) == (0, "")


def test_the_end_of_the_guard_puts_the_signal_back(runner):
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


def test_other_crashes_are_told_as_ever(runner):
    done = runner.python(START + "ctypes.string_at(8)  # here\n")
    assert done.status == -signal.SIGSEGV
    assert "the host touched" not in done.err
    assert f'script.py", line {line_of(START + "ctypes.string_at(8)  # here")} in <module>' in done.err


def test_the_environment_asks_for_a_guard(runner):
    source = """\
import forebay
tensor = forebay.zeros(3, device="cuda")
tensor.raw_array()[0]  # here
"""
    environment = {**os.environ, "FOREBAY_EMULATE": "cuda@a100+guard"}
    done = runner.python(source, env=environment)
    assert done.status == -signal.SIGSEGV, done.err
    assert 'script.py", line 3 in <module>' in done.err
