"""A smoke test: one small use of everything that the other parts need, so that a broken machine is told in words."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from typing import Any

import numpy as np

import forebay
from forebay import cuda, memory
from forebay._base.byte_sizes import format_bytes
from forebay.backends.nvidia.calls import call
from forebay.backends.nvidia.kernels.compiler import Program
from forebay.backends.nvidia.kernels.launch import launch, load_kernel
from forebay.runtime.devices import current
from gpu.part import Job, Outcome, execute

MIB = 1 << 20
LOST = 64 * MIB  # bytes that the driver may keep for what it loads at the first kernel
KERNEL = """
extern "C" __global__ void scale(float* numbers, float factor, unsigned count) {
  const unsigned at = blockIdx.x * blockDim.x + threadIdx.x;
  if (at < count) numbers[at] *= factor;
}
"""


def expect(equal: bool, text: str) -> None:
    if not equal:
        raise AssertionError(text)


def open_device() -> str:
    """Open the first GPU."""
    if reason := forebay.why_not("cuda"):
        raise RuntimeError(reason)
    properties = cuda.get_device_properties(0)
    expect(properties.total_memory > 0 and properties.multi_processor_count > 0, f"impossible: {properties}")
    return f"{properties.name}, {format_bytes(properties.total_memory)}, {properties.multi_processor_count} processors"


def allocate() -> str:
    """Allocate and free a block."""
    before = cuda.memory_allocated()
    block = forebay.empty(64 * MIB, dtype=forebay.uint8, device="cuda")
    expect(cuda.memory_allocated() - before == 64 * MIB, f"{cuda.memory_allocated() - before} bytes are counted")
    del block
    expect(cuda.memory_allocated() == before, f"{cuda.memory_allocated() - before} bytes remain")
    return f"{format_bytes(64 * MIB)} counted, and freed"


def copy() -> str:
    """Copy to the device and back."""
    values = np.random.default_rng(0).integers(0, 256, 4 * MIB, np.uint8)
    there = forebay.empty(values.size, dtype=forebay.uint8, device="cuda").copy_(values)
    expect(np.array_equal(there.cpu().numpy(), values), "the data changed on the way to the device and back")
    return f"{format_bytes(values.size)} there and back"


def fill() -> str:
    """Fill with numbers and with zeros."""
    numbers = forebay.empty(100_003, device="cuda").fill_(2.5)
    expect(bool((numbers.cpu().numpy() == 2.5).all()), "a fill with 2.5 did not reach all numbers")
    numbers[1::2].zero_()
    expect(float(numbers.cpu().numpy().sum()) == 2.5 * 50_002, "zeros are not where they belong")
    return "100,003 numbers"


def order() -> str:
    """Order the work of two streams by an event."""
    one, other = cuda.Stream(), cuda.Stream()
    source = forebay.zeros(16 * MIB, device="cuda")
    target = forebay.zeros(16 * MIB, device="cuda")
    cuda.synchronize()
    for turn in range(1, 9):
        with cuda.stream(one):
            source.fill_(float(turn))
            event = cuda.Event()
            event.record()
        with cuda.stream(other):
            event.wait()
            target.copy_(source)
        one.wait_stream(other)
        other.synchronize()
        expect(float(target[-1].item()) == turn, f"turn {turn}: the copy did not wait for the fill")
    return "8 turns"


def kernel() -> str:
    """Compile a kernel by NVRTC and launch it."""
    stream = cuda.current_stream()
    numbers = forebay.ones(1000, device="cuda")
    scale = load_kernel(stream, Program(KERNEL, "scale.cu"), "scale", ["pointer", "float32", "uint32"])
    launch(scale, grid=4, block=256, args=[numbers, 2.5, 1000], stream=stream)
    expect(bool((numbers.cpu().numpy() == 2.5).all()), "the kernel computed other numbers")
    return "compiled, launched, 1,000 numbers"


def errors() -> str:
    """Provoke errors, and read their codes and texts."""
    try:
        forebay.empty(1 << 50, dtype=forebay.uint8, device="cuda")
    except forebay.OutOfMemory as error:
        expect("CUDA out of memory. Tried to allocate 1048576.00 GiB" in str(error), f"the text is {error}")
    else:
        raise AssertionError("1 PiB was allocated")
    try:
        forebay.empty(1, device=f"cuda:{forebay.device_count('cuda')}")
    except forebay.DeviceError as error:
        expect("CUDA error: invalid device ordinal" in str(error), f"the text is {error}")
    else:
        raise AssertionError("a device that does not exist was used")
    port: Any = current.opened_for("cuda").port
    try:
        with port.context.current():
            call("cuMemFree", 1 << 20, device=port.name)
    except forebay.DeviceError as error:
        expect(
            (error.code, str(error).partition("\n")[0]) == (1, "CUDA error: invalid argument"), f"the text is {error}"
        )
    else:
        raise AssertionError("memory that was never allocated was freed")
    return "out of memory, invalid device, invalid address: PyTorch's texts"


def free_memory(before: tuple[int, int]) -> str:
    """Compare the free memory with that of the beginning."""
    cuda.synchronize()
    memory.empty_cache("cuda")
    after = cuda.mem_get_info()
    lost = before[0] - after[0]
    expect(lost <= LOST, f"{format_bytes(lost)} were not returned to the driver")
    return f"{format_bytes(before[0])} before, {format_bytes(after[0])} after, of {format_bytes(after[1])}"


CHECKS: tuple[Callable[[], str], ...] = (allocate, copy, fill, order, kernel, errors)


def check_all(job: Job) -> Outcome:
    """Make all checks, and save each result."""
    lines: list[str] = []
    failed: list[str] = []

    def attempt(name: str, check: Callable[[], str]) -> None:
        job.save(Outcome("failed", f"did not end: {name}", lines))
        try:
            lines.append(f"* {name}: {check()}")
        except Exception as error:  # noqa: BLE001 - reported, and the other checks are made
            traceback.print_exc()  # into the log, with the notes of the error
            failed.append(name)
            lines.append(f"* **{name}: {type(error).__name__}: {str(error).partition(chr(10))[0]}**")

    attempt("open", open_device)
    if not failed:
        before = cuda.mem_get_info()
        for check in CHECKS:
            attempt(check.__name__, check)
        attempt("free memory", lambda: free_memory(before))
    detail = f"failed: {', '.join(failed)}" if failed else lines[0].removeprefix("* open: ")
    return Outcome("failed" if failed else "ok", detail, lines)


if __name__ == "__main__":
    execute(check_all)
