"""Texts of OutOfMemory errors: PyTorch's text, then the explanation of the module `oom_explanation`."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import numpy as np

from forebay._base.byte_sizes import format_bytes
from forebay._base.config import CPU_MEMORY, HIGH_WATERMARK, UNLIMITED
from forebay._base.system_memory import available_memory, usable_memory
from forebay.errors import DeviceError, ForebayError, OutOfMemory
from forebay.runtime.allocator import oom_explanation
from forebay.runtime.allocator.metrics import ALLOCATED_BYTES, RESERVED_BYTES
from forebay.spi import ProcessUsage

if TYPE_CHECKING:
    from forebay.runtime.allocator.oom_explanation import Adviser
    from forebay.runtime.allocator.request import AllocRequest
    from forebay.runtime.history.recorded_pool import RecordedPool

__all__ = [
    "ADVISERS",
    "DOCUMENTATION",
    "HOST",
    "heap_text",
    "invalid_buffer_size_error",
    "oom_error",
    "rejected_error",
    "segment_text",
    "too_large_error",
]

HOST = "cpu"  # the kind of the device in the memory of the machine
DOCUMENTATION = "https://forebay.readthedocs.io/en/stable/how-to/out-of-memory.html"

# Functions that suggest remedies, from the memory history and the request, as lines for the text.
ADVISERS: list[Adviser] = []


def too_large_error(name: str, wanted: int) -> OutOfMemory:
    """Return the error for a request of MAX_REQUEST_BYTES or more, for which no recovery step is tried."""
    message = f"{_kind(name)} out of memory. Tried to allocate more than 1EB memory."  # PyTorch's text
    return OutOfMemory(message, wanted=wanted, device=name)


def rejected_error(name: str, request: AllocRequest) -> OutOfMemory:
    """Return the error of `throw_on_cudamalloc_oom`, raised before the request reaches the device."""
    message = (
        f"{_kind(name)} out of memory. Allocation was preemptively rejected because it would exceed "
        f"per_process_memory_fraction limit. Requested size: {_size(request.nbytes)}"
    )
    return OutOfMemory(message, wanted=request.nbytes, device=name)


def oom_error(
    pool: RecordedPool, request: AllocRequest, text: str, free: int, capacity: int, *, explain: bool
) -> OutOfMemory:
    """Return the error for a request that no recovery step could serve.

    With `explain`, lines follow PyTorch's text. While the memory history is recorded, they name the call sites that
    hold the most memory.
    """
    lines = [text]
    if explain:
        lines += _request_lines(request, capacity)
        try:
            lines += oom_explanation.explain(pool, request, capacity, ADVISERS)
        except MemoryError:  # NumPy may allocate from this pool
            lines.append("  There was too little memory to find the call sites that hold it.")
    return OutOfMemory(
        "\n".join(lines),
        wanted=request.nbytes,
        free=free,
        reserved=pool.current(RESERVED_BYTES),
        capacity=capacity,
        call="reserve",
        device=pool.name,
    )


def _request_lines(request: AllocRequest, capacity: int) -> Iterator[str]:
    requested, needed = format_bytes(request.nbytes), format_bytes(request.segment)
    if requested != needed:
        yield f"  The request of {requested} needs a segment of {needed}."
    if capacity >= UNLIMITED:
        yield "  The device has no limit: the system refused the memory."


def segment_text(
    pool: RecordedPool, request: AllocRequest, free: int, capacity: int, private: int, reserve: int | None
) -> str:
    """Return PyTorch's text for a CUDA device, verbatim; for the CPU device, one about the machine's memory.

    `private` is the free bytes of private pools, `reserve` the address space of an expandable segment, None without.
    """
    if pool.port.props.kind == HOST:
        return _host_text(pool, request, free, capacity)
    reserved, allocated = pool.current(RESERVED_BYTES), pool.current(ALLOCATED_BYTES)
    text = f"{_kind(pool.name)} out of memory. Tried to allocate {_size(request.segment)}. "
    text += f"{_device(pool)} has a total capacity of {_size(capacity)} of which {_size(free)} is free. "
    if isinstance(pool.port, ProcessUsage):
        text += "".join(_occupants(_process_memory(pool.port)))
    if pool.limit is not None:
        text += f"{_size(pool.limit)} allowed; "
    text += f"Of the allocated memory {_size(allocated + private)} is allocated by forebay, "
    if private:
        text += f"with {_size(private)} allocated in private pools (e.g., CUDA Graphs), "
    text += f"and {_size(reserved - allocated - private)} is reserved by forebay but unallocated."
    if reserve is not None and reserve < request.segment <= capacity:
        return text + (
            f" This allocation exceeds the expandable-segment reserve of {_size(reserve)} for this stream, and a single"
            " allocation cannot span expandable segments. Raise FOREBAY_ALLOC_CONF expandable_segments_reserve or"
            " expandable_segments_reserve_by_class (or unset it) so that a segment is at least"
            f" {_size(request.segment)}."
        )
    if reserve is not None:
        return text + (
            " expandable_segments is enabled. If instead the process is running out of virtual address space (VSZ),"
            " expandable segments may be over-reserving VA (each segment reserves ~9/8 of device memory, times the"
            " number of streams); reduce it via FOREBAY_ALLOC_CONF expandable_segments_reserve /"
            " expandable_segments_reserve_by_class."
        )
    return text + (
        " If reserved but unallocated memory is large try setting FOREBAY_ALLOC_CONF=expandable_segments:True to avoid"
        f" fragmentation.  See documentation for Memory Management  ({DOCUMENTATION})"
    )


def _host_text(pool: RecordedPool, request: AllocRequest, free: int, capacity: int) -> str:
    """Return the text for the CPU device, whose users know arrays and the memory of the machine.

    PyTorch has no text for it. That for CUDA advises settings, which help no program whose arrays are too large.
    """
    reserved, allocated = pool.current(RESERVED_BYTES), pool.current(ALLOCATED_BYTES)
    text = f"{pool.name} out of memory. Tried to allocate {_size(request.segment)}. "
    if capacity < UNLIMITED:
        text += f"{pool.name} has a total capacity of {_size(capacity)} of which {_size(free)} is free. "
    text += "Arrays" if pool.limit is None else f"{_size(pool.limit)} allowed; arrays"
    text += f" and tensors hold {_size(allocated)}"
    text += f", and {_size(reserved - allocated)} is cached for later ones. " if reserved > allocated else ". "
    available = available_memory()
    text += f"The machine has {_size(usable_memory())} of memory"
    text += f", of which {_size(available)} is available. " if available is not None else ". "
    text += "Delete what is no longer used, process the data in parts, or use a smaller dtype"
    if capacity >= UNLIMITED:
        return f"{text}."
    return f"{text}; or raise the capacity (forebay run --memory, forebay.memory.set_capacity, or {CPU_MEMORY.name})."


def heap_text(pool: RecordedPool, request: AllocRequest, other: int, mode: str) -> str:
    """Return PyTorch's text for an MPS device, verbatim.

    `other` is the bytes allocated outside the allocator; `mode` is the storage mode of the buffer pool.
    """
    kind = _kind(pool.name)
    text = f"{kind} backend out of memory ({kind} allocated: "
    text += f"{_metal_size(pool.current(RESERVED_BYTES))}, other allocations: {_metal_size(other)}"
    if pool.limit is not None:
        text += f", max allowed: {_metal_size(pool.limit)}"
    text += f"). Tried to allocate {_metal_size(request.size)} on {mode} pool."
    if pool.limit is None:
        return text
    return text + (
        f" Use {HIGH_WATERMARK.name}=0.0 to disable upper limit for memory allocations (may cause system failure)."
    )


def invalid_buffer_size_error(nbytes: int) -> ForebayError:
    """Return the error for a request above the largest buffer size."""
    return ForebayError(f"Invalid buffer size: {_metal_size(nbytes)}")


def _metal_size(nbytes: int) -> str:
    return _size(nbytes if nbytes <= 1024 else float(np.float32(nbytes)), ("KB", "MB", "GB"))  # as PyTorch rounds it


def _process_memory(port: ProcessUsage) -> Mapping[int, int]:
    try:
        return port.process_memory()
    except DeviceError:  # the error is about the missing memory, not about a library that is missing, too
        return {}


def _occupants(holding: Mapping[int, int]) -> Iterator[str]:
    for pid, nbytes in holding.items():
        if pid == os.getpid():
            yield f"Including non-forebay memory, this process has {_size(nbytes)} memory in use. "
        else:
            yield f"Process {pid} has {_size(nbytes)} memory in use. "


def _kind(name: str) -> str:
    kind = name.partition(":")[0]
    return kind.upper() if kind in ("cuda", "mps", "mtia") else kind


def _device(pool: RecordedPool) -> str:
    props = pool.port.props
    return f"GPU {props.index}" if props.kind == "cuda" else pool.name


def _size(nbytes: float, units: tuple[str, str, str] = ("KiB", "MiB", "GiB")) -> str:
    """Format a size as PyTorch's texts do: a size exactly at a unit's boundary keeps the smaller unit."""
    if nbytes <= 1024:
        return f"{nbytes} bytes"
    power = 1 if nbytes <= 1 << 20 else 2 if nbytes <= 1 << 30 else 3
    return f"{nbytes / (1 << 10 * power):.2f} {units[power - 1]}"
