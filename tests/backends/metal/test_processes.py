"""The Metal backend in whole processes: forks, exit with queued work, environment."""

from __future__ import annotations

from support.metal_processes import output_of, run

FORKED = """
import gc, os, signal, sys, traceback
import forebay
from softmetal.control import control
from forebay import mps

def forked(check):
    child = os.fork()
    if child == 0:
        signal.alarm(20)
        try:
            check()
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    return os.waitpid(child, 0)[1]
"""


def test_forked_child_is_refused_after_the_first_use():
    program = """
tensor = forebay.ones(3, device="mps")
stream, event = mps.Stream(), mps.Event()
event.record()
library = mps.compile_shader("kernel void nothing(device float* x) { x[0] = 1; }")
kernel = library.nothing
def check():
    for use in (stream.synchronize, stream.query, mps.synchronize, tensor.zero_, mps.Stream):
        try:
            use()
        except forebay.Forked:
            continue
        raise AssertionError(use)
    for name in ("tensor", "stream", "event", "library", "kernel"):
        del globals()[name]
    gc.collect()
    control.check()  # nothing was released
print(forked(check), tensor.tolist())
"""
    assert output_of(FORKED + program) == "0 [1.0, 1.0, 1.0]\n"


def test_forked_child_uses_metal_if_the_parent_did_not():
    program = """
print(mps.is_available())
def check():
    assert forebay.full((3,), 2, device="mps").tolist() == [2, 2, 2]
print(forked(check) != 0)
"""
    done = run(FORKED + program)
    assert done.stdout == "True\nTrue\n"  # Metal was used to count the devices
    assert "Metal was initialised before this process was forked" in done.stderr
    program = "def check():\n    assert forebay.full((3,), 2, device='mps').tolist() == [2, 2, 2]\nprint(forked(check))"
    assert run(FORKED + program).stdout == "0\n"


def test_queued_work_is_complete_at_exit():
    program = """
import forebay, os
from forebay import mps
streams = [mps.Stream() for _ in range(3)]
for number, stream in enumerate(streams):
    with mps.stream(stream):
        tensor = forebay.zeros(1 << 12, device="mps")
        for _ in range(50):
            tensor.fill_(float(number))
        stream.queue.call(lambda tensor=tensor: os.write(1, b"done "))
"""
    done = run(program)
    assert (done.returncode, done.stdout, done.stderr) == (0, "done done done ", "")


def test_interrupted_program_ends():
    program = """
import forebay, signal, threading
from softmetal.control import control
tensor = forebay.zeros(1 << 20, device="mps")
forebay.mps.synchronize()
control.hold()
threading.Timer(0.2, signal.raise_signal, (signal.SIGINT,)).start()
tensor.fill_(2.0)
try:
    forebay.mps.synchronize()
except KeyboardInterrupt:
    print("interrupted")
control.release()
print(tensor[0].item())
"""
    assert output_of(program) == "interrupted\n2.0\n"


def test_emulation_stays_explicit_beside_a_device():
    program = """
import forebay
from forebay import mps
print(mps.device_count())
with forebay.emulate("mps", count=2, profile="apple_m4"):
    print(mps.device_count(), forebay.zeros(1, device="mps:1").device)
tensor = forebay.ones(1, device="mps")
print(mps.device_count(), tensor.tolist(), type(tensor.raw_storage.opened.port).__name__)
"""
    assert output_of(program).splitlines() == ["1", "2 mps:1", "1 [1.0] MetalPort"]


VARIABLES = {
    "PYTORCH_DEBUG_MPS_ALLOCATOR": str(1 | 2),  # a summary, allocations
    "PYTORCH_MPS_LOG_PROFILE_INFO": str(1 | 2 | 8),  # operations, copies, totals
    "PYTORCH_MPS_TRACE_SIGNPOSTS": str(1 | 2),  # events, intervals
    "PYTORCH_MPS_HIGH_WATERMARK_RATIO": "0.5",
    "PYTORCH_MPS_LOW_WATERMARK_RATIO": "0.5",
    "PYTORCH_MPS_PREFER_METAL": "1",  # of no meaning without operators
}


def test_environment_variables_of_torch_mps_apply(tmp_path):
    program = """
import forebay
tensor = forebay.zeros(1 << 20, device="mps")
copy = tensor.clone()
try:
    forebay.empty(3 << 30, dtype="uint8", device="mps")
except forebay.OutOfMemoryError as error:
    print("refused" if "PYTORCH_MPS_HIGH_WATERMARK_RATIO" in str(error) else error)
"""
    file = tmp_path / "trace.pftrace"
    done = run(program, FOREBAY_TRACE=str(file), **VARIABLES)
    assert (done.returncode, done.stdout) == (0, "refused\n"), done.stderr
    lines = done.stderr.splitlines()
    assert all(line.startswith("MPS: ") for line in lines)
    expected = ("allocated 4.00 MiB at 0x", "copy copy_, 4.00 MiB", "total of copy copy_: 1", "summary; 8.00 MiB")
    for begin in expected:
        assert any(line.startswith(f"MPS: {begin}") for line in lines), (begin, lines)
    assert file.stat().st_size > 100
