"""forebay's allocator under the real PyTorch, on the oracle's stand-in runtime."""

from __future__ import annotations

import sys

import pytest
from support import software_driver
from support.beside import lines_with_torch, needs_torch
from support.oracle_programs import on_oracle, run_on_oracle

BEGIN = """
import gc, threading
import torch
import forebay
from forebay.interop.torch import use_allocator

MiB = 1 << 20

def error_of(call):
    try:
        return call()
    except Exception as error:
        return type(error).__name__ + ": " + str(error).partition(chr(10))[0]

def bytes_on(nbytes, device="cuda"):
    return torch.empty(nbytes, dtype=torch.uint8, device=device)

def segments(*fields):
    found = torch.cuda.memory._snapshot()["segments"]
    return [tuple(segment[field] for field in fields) for segment in found]
"""


def lines_of(program: str, *, devices: int = 1) -> list[str]:
    done = run_on_oracle(BEGIN + program, devices=devices)
    assert done.returncode == 0, done.stdout + done.stderr
    assert not done.stderr, done.stderr
    return done.stdout.splitlines()


@on_oracle
def test_statistics_history_and_snapshot_have_the_tensors_of_torch():
    program = """
use_allocator()
use_allocator()  # no effect
torch.cuda.memory._record_memory_history()

def make():
    return torch.empty(1000, device="cuda")

first = make()
large = bytes_on(30 * MiB)
print(first.data_ptr() in forebay.interop.torch.allocator._handlers.blocks)
print(torch.cuda.memory_allocated(), forebay.cuda.memory_allocated(), torch.cuda.memory_reserved())
del first, large
print(torch.cuda.memory_allocated(), torch.cuda.max_memory_allocated(), forebay.cuda.memory_reserved())
print(torch.accelerator.max_memory_allocated())
torch.accelerator.reset_peak_memory_stats()
print(torch.cuda.memory_stats()["allocated_bytes.all.peak"])
torch.cuda.reset_peak_memory_stats()
torch.cuda.empty_cache()
print(forebay.cuda.memory_reserved(), driver.ports[0].reserved)
for event in torch.cuda.memory._snapshot()["device_traces"][0]:
    print(event["action"], event["size"], [frame["name"] for frame in event["frames"]])
torch.cuda.set_per_process_memory_fraction(0.125)
print(torch.cuda.get_per_process_memory_fraction(), error_of(lambda: bytes_on(33 * MiB))[:24])
"""
    top = "['<module>']"
    made, large, emptied = (f"['{name}', '<module>']" for name in ("make", "bytes_on", "empty_cache"))
    assert lines_of(program) == [
        "True",
        "31461376 31461376 33554432",
        "0 31461376 33554432",
        "31461376",
        "0",
        "0 0",
        f"segment_alloc 2097152 {made}",
        f"alloc 4000 {made}",
        f"segment_alloc 31457280 {large}",
        f"alloc 31457280 {large}",
        f"free_requested 4000 {top}",
        f"free_completed 4000 {top}",
        f"free_requested 31457280 {top}",
        f"free_completed 31457280 {top}",
        f"segment_free 31457280 {emptied}",
        f"segment_free 2097152 {emptied}",
        "0.125 OutOfMemoryError: CUDA o",
    ]


@on_oracle
def test_memory_is_allocated_for_the_current_stream_and_freed_after_its_users():
    program = """
use_allocator()
side = torch.cuda.Stream()
with torch.cuda.stream(side):
    there = bytes_on(3000)
here = bytes_on(3000)
print([stream in (0, side.cuda_stream) for (stream,) in segments("stream")])
address = here.data_ptr()
here.record_stream(side)
del here
print(torch.cuda.memory_allocated(), bytes_on(3000).data_ptr() == address)
driver.clock.advance(10**9)  # the side stream has done its work
print(torch.cuda.memory_allocated(), bytes_on(3000).data_ptr() == address)
from_numpy = torch.from_dlpack(torch.empty(4))  # memory of another allocator
there = None
with torch.cuda.stream(side):
    print(bytes_on(3000).data_ptr() != address)
"""
    assert lines_of(program) == ["[True, True]", "3072 False", "3072 True", "True"]


@on_oracle
def test_exhausted_memory_raises_the_error_of_torch_with_the_text_of_forebay():
    program = """
use_allocator()
held = bytes_on(100 * MiB)
for _ in range(2):
    try:
        bytes_on(200 * MiB)
    except torch.OutOfMemoryError as error:
        print(str(error).partition(". Of the")[0])
print(torch.cuda.memory_stats()["num_ooms"])
seen = []
torch._C._cuda_attach_out_of_memory_observer(lambda *details: seen.append(details))
print(error_of(lambda: torch.nn.Linear(10_000, 10_000, device="cuda"))[:36], len(seen))
try:
    raise KeyError("kept")
except KeyError as error:
    held = None  # frees memory while an exception is handled
    print(error, torch.cuda.memory_allocated())
print(bytes_on(200 * MiB).numel() // MiB)
"""
    text = "CUDA out of memory. Tried to allocate 200.00 MiB. GPU 0 has a total capacity of 256.00 MiB"
    lines = lines_of(program)
    assert [line.partition(" of which")[0] for line in lines[:2]] == [text, text]
    assert lines[2:] == ["2", "OutOfMemoryError: CUDA out of memory 1", "'kept' 0", "200"]


@on_oracle
def test_threads_of_autograd_and_of_the_program_allocate():
    program = """
use_allocator()
torch.cuda.memory._record_memory_history()
weights = torch.empty(1000, 100, device="cuda", requires_grad=True)
weights.relu().sum().backward()
print(weights.grad.shape, torch.cuda.memory_allocated() >= 2 * weights.nbytes)
del weights
addresses = set()

def work():
    for size in range(1, 200):
        tensors = [bytes_on(size * 1000) for _ in range(5)]
        addresses.update(tensor.data_ptr() for tensor in tensors)

threads = [threading.Thread(target=work) for _ in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join(60)
gc.collect()
print(torch.cuda.memory_allocated(), len(addresses) > 5)
"""
    assert lines_of(program) == ["torch.Size([1000, 100]) True", "0 True"]


@on_oracle
def test_graphs_capture_into_private_pools():
    program = """
use_allocator()
outside = bytes_on(5000)
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    first = bytes_on(5000)
    address = first.data_ptr()
    del first
    second = bytes_on(5000)
    print(second.data_ptr() == address)
print([pool != (0, 0) for (pool,) in segments("segment_pool_id")])
other = torch.cuda.CUDAGraph()
with torch.cuda.graph(other, pool=graph.pool()):
    shared = bytes_on(100)
print(len({pool for (pool,) in segments("segment_pool_id")}))
second = shared = None
torch.cuda.empty_cache()
print(len(segments("address")))  # the graphs keep their memory
graph.reset()
other.reset()
torch.cuda.empty_cache()
print(len(segments("address")))
"""
    assert lines_of(program) == ["True", "[False, True]", "2", "2", "1"]


@on_oracle
def test_each_gpu_has_its_memory():
    program = """
use_allocator()
there = bytes_on(5000, "cuda:1")
print(len(driver.ports), [torch.cuda.memory_allocated(index) for index in (0, 1)])
with torch.cuda.device(1):
    side = torch.cuda.Stream()
there.record_stream(side)
there = None
print([forebay.cuda.memory_allocated(index) for index in (0, 1)])
print(error_of(lambda: torch.cuda.MemPool())[:58])
"""
    refused = "RuntimeError: pluggable does not yet support createOrIncref"
    assert lines_of(program, devices=2) == ["1 [0, 5120]", "[0, 0]", refused[:58]]


@on_oracle
def test_it_must_be_called_before_the_first_tensor():
    program = """
tensor = bytes_on(10)
print(error_of(use_allocator))
with forebay.emulate("cuda"):
    print(error_of(use_allocator)[:35])
"""
    late, emulated = lines_of(program)
    assert late == (
        "WrongState: PyTorch has used a GPU already, after which its allocator cannot be replaced: "
        "call use_allocator() before the first tensor on a GPU"
    )
    assert emulated == "Unsupported: cuda:0 is emulated, so"


@on_oracle
def test_tensors_may_outlive_the_interpreter():
    program = """
use_allocator()
torch.cuda.kept = [bytes_on(1000), bytes_on(30 * MiB)]
torch.cuda.kept[0].record_stream(torch.cuda.Stream())

class Late:
    def __del__(self, make=bytes_on):
        make(1000)

kept = Late()
torch.cuda.late = Late()
print("done")
"""
    assert lines_of(program) == ["done"]


@on_oracle
def test_interrupt_of_an_allocation_is_raised_after_it():
    program = """
use_allocator()
handlers = forebay.interop.torch.allocator._handlers
allocate = type(handlers).allocate

def interrupted(self, *arguments):
    raise KeyboardInterrupt

type(handlers).allocate = interrupted
try:
    try:
        bytes_on(10)
    except RuntimeError as error:
        print(error)
    for _ in range(1000):
        pass
except KeyboardInterrupt:
    print("interrupted")
type(handlers).allocate = allocate
print(bytes_on(10).numel())
"""
    *_, interrupted, works = lines_of(program)
    assert (interrupted, works) == ("interrupted", "10")


@pytest.mark.skipif(sys.platform != "linux", reason="the software driver is built for Linux")
def test_captures_of_another_library_have_pools_and_hold_shared_blocks():
    program = """
import forebay
from cuda.bindings import driver
from forebay.interop.torch.allocator import _handlers as handlers

forebay.ones(3, device="cuda")
driver.cuCtxSetCurrent(driver.cuDevicePrimaryCtxRetain(0)[1])
stream, other = (int(driver.cuStreamCreate(1)[1]) for _ in range(2))
MODE = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_GLOBAL

class Captured:
    def __contains__(self, handle):
        return handle == stream

def is_capturing():
    return int(driver.cuStreamIsCapturing(stream)[1])

before = handlers.allocate(1000, 0, other)
handlers.record_stream(before, stream)
assert not driver.cuStreamBeginCapture(stream, MODE)[0]
handlers.begin_pool(0, (5, 0), Captured())
large = handlers.allocate(30 << 20, 0, stream)
shared = handlers.allocate(1000, 0, stream)
handlers.record_stream(shared, other)
del handlers.blocks[before], handlers.blocks[shared]
print(handlers.allocate(1000, 0, other) == before, handlers.allocate(1000, 0, stream) == shared)
try:
    handlers.allocate(1 << 40, 0, stream)
except forebay.OutOfMemory:
    print("out of memory", is_capturing())
error, graph = driver.cuStreamEndCapture(stream)
handlers.end_pool(0, (5, 0))
print(int(error), is_capturing())
forebay.cuda.synchronize()  # the frees that were held wait for the streams
print(handlers.allocate(1000, 0, other) == before, handlers.allocate(1000, 0, stream) == shared)
segments = forebay.cuda.memory_snapshot()
print(sorted((segment["segment_pool_id"] != (0, 0), segment["total_size"] >> 20) for segment in segments))
handlers.blocks.clear()
handlers.release_pool(0, (5, 0))
handlers.empty_cache()
print(len(forebay.cuda.memory_snapshot()))
"""
    assert software_driver.lines_of(program, silent=True) == [
        "False False",
        "out of memory 1",
        "0 0",
        "True False",  # memory of a capture is used by its graph only
        "[(False, 2), (False, 2), (False, 2), (True, 2), (True, 30)]",
        "0",
    ]


@needs_torch
def test_torch_without_cuda_is_rejected():
    program = """
import forebay, torch
from forebay.interop.torch import use_allocator
try:
    use_allocator()
except forebay.Unsupported as error:
    print(error)
"""
    (text,) = lines_with_torch(program)
    assert "is built without CUDA: install a build with CUDA" in text
