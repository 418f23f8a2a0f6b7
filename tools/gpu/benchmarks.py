"""Benchmarks of forebay beside cuda-bindings and, if it is installed, PyTorch: medians, alternating in one process."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import forebay
from forebay import cuda
from forebay.backends.nvidia.calls import call, driver_api
from forebay.backends.nvidia.kernels.compiler import Program
from forebay.backends.nvidia.kernels.launch import launch, load_kernel
from forebay.runtime.devices import current
from gpu.part import Job, NotRun, Outcome, execute, optional_module
from gpu.raw_graph import RawGraph
from gpu.timing import REPETITIONS, Comparison, Side, markdown, microseconds

SMALL = 1 << 10  # bytes
SEGMENT = 2 << 20  # bytes that the allocator reserves for a small allocation
NODES = 100
KERNEL = 'extern "C" __global__ void nothing(int* at, unsigned count) { if (count > 1) *at = 1; }'


@dataclass(frozen=True)
class Bench:
    """Objects of forebay and of cuda-bindings for the same GPU, whose primary context is current."""

    api: Any
    torch: Any  # None if it is not installed or finds no GPU
    without: str  # the reason
    count: int  # operations in a measurement
    numbers: int  # elements of a large tensor

    def beside_torch(self, *sides: Side) -> list[Side]:
        return [side for side in sides if self.torch is not None or side[0] != "PyTorch"]


@contextmanager
def set_up(job: Job) -> Iterator[Bench]:
    forebay.zeros(1, device="cuda")
    port: Any = current.opened_for("cuda").port
    without = ""
    try:
        torch = optional_module("torch", "PyTorch")
    except NotRun as reason:
        torch, without = None, str(reason)
    api = driver_api()
    call("cuCtxPushCurrent", api.CUcontext(port.context.handle))
    try:
        yield Bench(api, torch, without, 20 if job.quick else 1000, 1 << (16 if job.quick else 26))
    finally:
        call("cuCtxPopCurrent")


def allocations(bench: Bench) -> Iterator[Comparison]:
    """Allocate from the cache, and with an empty one."""

    def pair(memory: Any) -> Any:
        return lambda: memory.caching_allocator_delete(memory.caching_allocator_alloc(SMALL))

    def miss(library: Any) -> Any:
        allocate = pair(library.memory)
        return lambda: (allocate(), library.empty_cache())

    def raw() -> None:
        bench.api.cuMemFree(bench.api.cuMemAlloc(SEGMENT)[1])

    call("cuMemFree", call("cuMemAlloc", SEGMENT))  # the measured calls are not checked
    cuda.empty_cache()
    theirs = bench.torch.cuda if bench.torch is not None else cuda
    ours: Side = ("forebay", miss(cuda))
    sides = bench.beside_torch(ours, ("cuMemAlloc, cuMemFree", raw), ("PyTorch", miss(theirs)))
    yield microseconds("allocate and free 1 KiB, cache empty", sides, max(bench.count // 10, 5), cuda.synchronize)
    kept = cuda.memory.caching_allocator_alloc(SMALL)  # keeps the segment
    sides = bench.beside_torch(("forebay", pair(cuda.memory)), ("PyTorch", pair(theirs.memory)))
    yield microseconds("allocate and free 1 KiB, from the cache", sides, bench.count, cuda.synchronize)
    cuda.memory.caching_allocator_delete(kept)


def events(bench: Bench) -> Iterator[Comparison]:
    """Record an event and query it."""
    stream = bench.api.CUstream(cuda.current_stream().cuda_stream)
    event = call("cuEventCreate", bench.api.CUevent_flags.CU_EVENT_DISABLE_TIMING)
    call("cuEventRecord", event, stream)

    def raw() -> None:
        bench.api.cuEventRecord(event, stream)
        bench.api.cuEventQuery(event)

    def record_and_query(library: Any) -> Any:
        made = library.Event()
        return lambda: (made.record(), made.query())

    theirs = bench.torch.cuda if bench.torch is not None else cuda
    sides = bench.beside_torch(
        ("forebay", record_and_query(cuda)), ("cuda-bindings", raw), ("PyTorch", record_and_query(theirs))
    )
    yield microseconds("record and query an event", sides, bench.count, cuda.synchronize)
    call("cuEventDestroy", event)


def switches(bench: Bench) -> Iterator[Comparison]:
    """Make a stream the current one inside a block."""

    def switch(library: Any) -> Any:
        stream = library.Stream()

        def enter() -> None:
            with library.stream(stream):
                pass

        return enter

    theirs = bench.torch.cuda if bench.torch is not None else cuda
    sides = bench.beside_torch(("forebay", switch(cuda)), ("PyTorch", switch(theirs)))
    yield microseconds("switch to a stream and back", sides, bench.count, cuda.synchronize)


def launches(bench: Bench) -> Iterator[Comparison]:
    """Launch a kernel that does nothing."""
    stream = cuda.current_stream()
    kernel = load_kernel(stream, Program(KERNEL, "nothing.cu"), "nothing", ["pointer", "uint32"])
    target = forebay.zeros(1, dtype=forebay.int32, device="cuda")
    address = target.data_ptr()
    handle = bench.api.CUfunction(kernel._function.handle)  # noqa: SLF001 - both sides launch the same function
    raw_stream = bench.api.CUstream(stream.cuda_stream)
    values, types = (address, 1), (ctypes.c_void_p, ctypes.c_uint)

    arguments = (handle, 1, 1, 1, 1, 1, 1, 0, raw_stream, (values, types), 0)
    call("cuLaunchKernel", *arguments)
    sides: list[Side] = [
        ("forebay", lambda: launch(kernel, 1, 1, [address, 1], stream)),
        ("cuda-bindings", lambda: bench.api.cuLaunchKernel(*arguments)),
    ]
    yield microseconds("launch a kernel", sides, bench.count, cuda.synchronize)


def graphs(bench: Bench) -> Iterator[Comparison]:
    """Launch a graph of fills."""
    target = forebay.zeros(4, dtype=forebay.uint8, device="cuda")
    graph = cuda.CUDAGraph()
    with cuda.graph(graph):
        for _ in range(NODES):
            target.fill_(1)
    raw = RawGraph(target.data_ptr(), NODES)
    call("cuGraphLaunch", raw.executable, raw.stream)
    sides: list[Side] = [
        ("forebay", graph.replay),
        ("cuda-bindings", lambda: bench.api.cuGraphLaunch(raw.executable, raw.stream)),
    ]
    count = max(bench.count // 10, 5)
    yield microseconds(f"launch a graph of {NODES} fills", sides, count, cuda.synchronize)
    yield microseconds("the same until it has completed", sides, count, cuda.synchronize, completed=True)
    raw.close()


def bandwidth(bench: Bench) -> Iterator[Comparison]:
    """Fill a large tensor with random numbers, and copy one."""
    one, other = (forebay.empty(bench.numbers, device="cuda") for _ in range(2))
    theirs = bench.torch.empty(bench.numbers, device="cuda") if bench.torch is not None else one
    gigabytes = 4 * bench.numbers / 1e9

    def rate(name: str, *sides: Side) -> Comparison:
        found = microseconds(name, bench.beside_torch(*sides), 2, cuda.synchronize, completed=True)
        others = {side: gigabytes * 1e6 / spent for side, spent in found.others.items()}
        return Comparison(name, "GB/s", gigabytes * 1e6 / found.forebay, others)

    copied: Side = ("copy from device to device", lambda: other.copy_(one))
    amount = f"{bench.numbers:,} float32 numbers"
    yield rate(f"{amount}: uniform", ("forebay", one.uniform_), ("PyTorch", theirs.uniform_), copied)
    yield rate(f"{amount}: normal", ("forebay", one.normal_), ("PyTorch", theirs.normal_), copied)


def measure(job: Job) -> Outcome:
    """Run all benchmarks."""
    with set_up(job) as bench:
        groups = (allocations, events, switches, launches, graphs, bandwidth)
        comparisons: list[Comparison] = []
        for group in groups:
            for each in group(bench):
                comparisons.append(each)
                job.save(Outcome("incomplete", f"{len(comparisons)} operations", markdown(comparisons)))
        beside = f"PyTorch {bench.torch.__version__}" if bench.torch is not None else bench.without
    notes = [
        "",
        f"Medians of {REPETITIONS}; the ratio is forebay's figure divided by the other one.",
        "GB/s are the bytes written; a copy from device to device reads as many.",
    ]
    return Outcome("ok", f"{len(comparisons)} operations; {beside}", [*markdown(comparisons), *notes])


if __name__ == "__main__":
    execute(measure)
