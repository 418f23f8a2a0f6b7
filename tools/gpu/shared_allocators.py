"""Programs in which other libraries allocate from forebay on the GPU, each in a process of its own.

Those libraries accept an allocator only before they use the GPU. A program asserts what it checks.
"""

from __future__ import annotations

import os
import subprocess
import sys

__all__ = ["PROGRAMS", "problem_of"]

_SECONDS = 120

_CUPY = """
import cupy, cupyx
import forebay
from forebay.interop import cupy as socket

before = cupy.cuda.get_allocator()
with socket.use_allocator():
    array = cupy.arange(1000, dtype="float32")
    assert forebay.cuda.memory_allocated() >= array.nbytes, "the array is not counted"
    assert float((array * 2).sum()) == 999000.0
    side = cupy.cuda.Stream(non_blocking=True)
    with side:
        there = cupy.ones(1000, dtype="float32")
        side.wait_event(cupy.cuda.Stream.null.record())
        total = (array + there).sum()
        socket.record_stream(array)
    del array
    stream = socket.from_cupy_stream(side)
    assert stream.handle == side.ptr
    stream.synchronize()
    assert float(total) == 500500.0
    ours = socket.to_cupy_stream(forebay.cuda.Stream())
    with ours:
        assert float(cupy.ones(1000).sum()) == 1000.0
    pinned = cupyx.empty_pinned(1000, "float32")
    assert forebay.cuda.host_memory_stats()["active_requests.current"] >= 1
    try:
        cupy.empty(1 << 50, dtype="uint8")
    except cupy.cuda.memory.OutOfMemoryError as error:
        assert isinstance(error.__cause__, forebay.OutOfMemory)
    else:
        raise AssertionError("no error for 1 PiB")
assert cupy.cuda.get_allocator() == before
"""

_NUMBA = """
import numpy as np
import forebay
from numba import cuda
from forebay.interop import numba as socket

socket.use_allocator()
numbers = np.arange(1000, dtype=np.float32)
array = cuda.to_device(numbers)
assert forebay.cuda.memory_allocated() >= array.nbytes, "the array is not counted"
assert (array.copy_to_host() == numbers).all()
stream = cuda.stream()
pinned = cuda.pinned_array(1000, np.float32)
array.copy_to_host(pinned, stream=stream)
stream.synchronize()
assert (pinned == numbers).all()
del array
forebay.cuda.synchronize()
assert (cuda.to_device(numbers + 1).copy_to_host() == numbers + 1).all()
"""

_NUMBA_KERNEL = """

@cuda.jit
def double(values):
    at = cuda.grid(1)
    if at < values.size:
        values[at] *= 2

array = cuda.to_device(numbers)
double[4, 256, stream](array)
stream.synchronize()
assert (array.copy_to_host() == 2 * numbers).all()
"""

_RMM = """
import rmm
import forebay
from forebay.interop import rmm as socket

with socket.use_allocator():
    buffer = rmm.DeviceBuffer.to_device(bytes(range(200)))
    assert forebay.cuda.memory_allocated() >= 200, "the buffer is not counted"
    assert bytes(buffer.copy_to_host()) == bytes(range(200))
    del buffer
    forebay.cuda.synchronize()
    try:
        rmm.DeviceBuffer(size=1 << 50)
    except MemoryError as error:
        assert "CUDA out of memory" in str(error)
    else:
        raise AssertionError("no error for 1 PiB")
"""

_TORCH = """
import torch
import forebay
from forebay.interop.torch import use_allocator

use_allocator()
torch.cuda.memory._record_memory_history()
held = torch.empty(1000, device="cuda")
assert torch.cuda.memory_allocated() == forebay.cuda.memory_allocated() >= 4000, "the tensor is not counted"
side = torch.cuda.Stream()
with torch.cuda.stream(side):
    there = torch.empty(1000, device="cuda")
held.record_stream(side)
del held
torch.cuda.synchronize()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    captured = torch.empty(1000, device="cuda")
graph.replay()
pools = {segment["segment_pool_id"] for segment in torch.cuda.memory._snapshot()["segments"]}
assert len(pools) == 2, pools
del captured
graph.reset()
torch.cuda.empty_cache()
assert torch.cuda.memory._snapshot()["device_traces"][0]
try:
    torch.empty(1 << 50, dtype=torch.uint8, device="cuda")
except torch.OutOfMemoryError as error:
    assert "CUDA out of memory. Tried to allocate 1048576.00 GiB" in str(error), error
else:
    raise AssertionError("no error for 1 PiB")
"""

_TORCH_TRAINING = """

def trained(device):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 1)).to(device)
    optimizer = torch.optim.Adam(model.parameters())
    data = torch.linspace(-1, 1, 6400).reshape(100, 64).to(device)
    for _ in range(20):
        optimizer.zero_grad()
        loss = model(data).square().mean()
        loss.backward()
        optimizer.step()
    return loss.item()

here, there = trained("cpu"), trained("cuda")
assert abs(here - there) <= 1e-3 * abs(here) + 1e-6, (here, there)
"""

_NUMBA_ALONE = """
from numba import cuda

@cuda.jit
def nothing(values):
    values[0] = 1

nothing[1, 1](cuda.device_array(1))
cuda.synchronize()
"""

# By title: a program that fails where the library alone does, what also runs without kernels, and the rest.
PROGRAMS = {
    "CuPy allocates from forebay": ("import cupy; cupy.zeros(1)", _CUPY, ""),
    "Numba allocates from forebay": (_NUMBA_ALONE, _NUMBA, _NUMBA_KERNEL),
    "RMM allocates from forebay": ("import rmm; rmm.DeviceBuffer(size=1)", _RMM, ""),
    "PyTorch allocates from forebay": ("import torch; torch.zeros(1, device='cuda')", _TORCH, _TORCH_TRAINING),
}


def problem_of(program: str, seconds: float = _SECONDS) -> str:
    """Run a program, at most for some time. Return what is wrong, or an empty text."""
    try:
        done = subprocess.run(
            [sys.executable, "-c", program],
            env=os.environ,
            capture_output=True,
            text=True,
            timeout=min(seconds, _SECONDS),
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"it did not end within {min(seconds, _SECONDS):g} s"
    if not done.returncode:
        return ""
    print(done.stdout, done.stderr, sep="\n", file=sys.stderr, flush=True)  # into the log of the part
    lines = done.stderr.strip().splitlines() or ["no output"]
    return f"ended with {done.returncode}: {lines[-1]}"
