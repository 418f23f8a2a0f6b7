"""Memory that a call of an operator allocates and frees, as PyTorch's history of allocations shows it.

It runs on any device that PyTorch calls "cuda": a GPU, an emulated one, or the CPU under the name of a rehearsal.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any

from gpu.operator_calls.call import Call, Kit, Run

__all__ = ["Rows", "differing_blocks", "flags", "measure", "peak_of", "reset", "rows_of", "sizes_of", "temporaries_of"]

# An allocation is its requested size, with the stream in a list if it is not the first one; a free is -n, for the n-th
# allocation of the call, counted from 1, or None for memory that was allocated before the call.
Rows = list[int | list[int] | None]

_UNIT = 512  # bytes, to which PyTorch rounds allocations


def measure(kit: Kit, call: Call, note: Callable[[str], None] = lambda stage: None) -> dict[str, Any]:
    """Run a call twice, and return what it allocated.

    The first time, no memory is cached and cuBLAS has no workspace: segments and workspaces are seen. "second" is None
    if it allocated and freed the same. `note` receives what is being done, for a process that may die of it.
    """
    torch = kit.torch
    kit.made.clear()
    with flags(torch, call.flags):
        torch.default_generator.manual_seed(0)  # torch.manual_seed() imports torch._dynamo, which takes seconds
        if kit.device == "cuda":
            torch.cuda.manual_seed_all(0)
        note("inputs")
        before, run = call.prepare(kit)
        inputs = kit.describe(kit.made)
        note("first")
        first = _record(kit, before, run, is_first=True)
        note("second")
        second = _record(kit, before, run, is_first=False)
    outputs = first.pop("outputs")
    second.pop("outputs")
    repeats = (second["rows"], second["peak"]) == (first["rows"], first["peak"])
    return {"inputs": inputs, "outputs": outputs, "first": first, "second": None if repeats else second}


def reset(kit: Kit) -> None:
    """Free what the last call has left, also after an error."""
    kit.made.clear()
    gc.collect()
    gc.freeze()  # the objects of modules imported since: the collections between calls then take microseconds
    if kit.device == "cuda":
        if (stop := getattr(kit.torch.cuda.memory, "_record_memory_history", None)) is not None:
            stop(None)
        kit.torch.cuda.empty_cache()


def _record(kit: Kit, before: Callable[[], object] | None, run: Run, *, is_first: bool) -> dict[str, Any]:
    state = None if before is None else before()
    gc.collect()
    if kit.device != "cuda":
        kept = run(state)
        return {"rows": [], "peak": 0, "outputs": kit.describe(kept)}
    cuda = kit.torch.cuda
    cuda.synchronize()
    if is_first:
        if (clear := getattr(kit.torch._C, "_cuda_clearCublasWorkspaces", None)) is not None:
            clear()
        cuda.empty_cache()
    cuda.reset_peak_memory_stats()
    allocated = cuda.memory_allocated()
    cuda.memory._record_memory_history("all", context=None, stacks="python", max_entries=1_000_000)
    try:
        started = len(_trace(cuda.memory._snapshot(), cuda))
        kept = run(state)
        cuda.synchronize()
        snapshot = cuda.memory._snapshot()
    finally:
        cuda.memory._record_memory_history(None)
    trace = _trace(snapshot, cuda)[started:]
    found = {"rows": rows_of(trace), "peak": cuda.max_memory_allocated() - allocated, "outputs": kit.describe(kept)}
    if segments := [entry["size"] for entry in trace if entry["action"] in ("segment_alloc", "segment_map")]:
        found["segments"] = segments
    if blocks := differing_blocks(trace, snapshot["segments"]):
        found["blocks"] = blocks
    return found


def _trace(snapshot: Mapping[str, Any], cuda: Any) -> list[dict[str, Any]]:
    traces: list[list[dict[str, Any]]] = snapshot["device_traces"]
    return traces[cuda.current_device()] if traces else []


def rows_of(trace: list[dict[str, Any]]) -> Rows:
    """Return the allocations and frees of a history."""
    rows: Rows = []
    live: dict[int, int] = {}
    streams: dict[int, int] = {0: 0}  # the default stream comes first even if another one allocates before it
    count = 0
    for entry in trace:
        if entry["action"] == "alloc":
            count += 1
            live[entry["addr"]] = count
            stream = streams.setdefault(entry["stream"], len(streams))
            rows.append([entry["size"], stream] if stream else entry["size"])
        elif entry["action"] == "free_requested":
            number = live.pop(entry["addr"], None)
            rows.append(None if number is None else -number)
    return rows


def differing_blocks(trace: list[dict[str, Any]], segments: list[dict[str, Any]]) -> dict[str, int]:
    """Return the sizes of blocks that are larger than their rounded request, by the number of the allocation.

    They are known of memory that is still allocated at the end of the call.
    """
    sizes = {
        block["address"]: block["size"]
        for segment in segments
        for block in segment["blocks"]
        if block["state"] == "active_allocated" and "address" in block
    }
    found: dict[int, tuple[int, int]] = {}
    count = 0
    for entry in trace:
        if entry["action"] == "alloc":
            count += 1
            found[entry["addr"]] = (count, entry["size"])
        elif entry["action"] == "free_requested":
            found.pop(entry["addr"], None)
    return {
        str(number): sizes[address]
        for address, (number, size) in found.items()
        if address in sizes and sizes[address] != -(-size // _UNIT) * _UNIT
    }


def temporaries_of(rows: Rows) -> list[int]:
    """Return the sizes of the allocations that were freed within the call, in the order of the allocations."""
    sizes = sizes_of(rows)
    freed = {-row for row in rows if isinstance(row, int) and row < 0}
    return [size for number, size in enumerate(sizes, 1) if number in freed]


def peak_of(rows: Rows) -> int:
    """Return the most bytes that were requested and not freed at one moment of the call."""
    sizes, current, peak = sizes_of(rows), 0, 0
    for row in rows:
        if isinstance(row, list):
            current += row[0]
        elif row is not None:
            current += row if row >= 0 else -sizes[-row - 1]
        peak = max(peak, current)
    return peak


def sizes_of(rows: Rows) -> list[int]:
    """Return the sizes of the allocations."""
    sizes = []
    for row in rows:
        if isinstance(row, list):
            sizes.append(row[0])
        elif row is not None and row >= 0:
            sizes.append(row)
    return sizes


@contextmanager
def flags(torch: Any, wanted: Mapping[str, Any]) -> Iterator[None]:
    """Set flags of PyTorch for a call.

    They are benchmark (cuDNN measures algorithms), deterministic, tf32 (of products and convolutions), cudnn (False to
    do without it), and blas (the preferred library of products).
    """
    unknown = {*wanted} - {"benchmark", "deterministic", "tf32", "cudnn", "blas"}
    if unknown:
        raise ValueError(f"unknown flag {min(unknown)!r}")
    cudnn, products = torch.backends.cudnn, torch.backends.cuda.matmul
    before = (cudnn.benchmark, cudnn.deterministic, cudnn.allow_tf32, cudnn.enabled, products.allow_tf32)
    deterministic = torch.are_deterministic_algorithms_enabled()
    with _preferred(torch, wanted["blas"]) if "blas" in wanted else nullcontext():
        try:
            if "tf32" in wanted:
                cudnn.allow_tf32 = products.allow_tf32 = wanted["tf32"]
            cudnn.benchmark = wanted.get("benchmark", False)
            cudnn.enabled = wanted.get("cudnn", True)
            if wanted.get("deterministic"):
                cudnn.deterministic = True
                torch.use_deterministic_algorithms(True, warn_only=True)
            yield
        finally:
            cudnn.benchmark, cudnn.deterministic, cudnn.enabled = before[0], before[1], before[3]
            if "tf32" in wanted:
                cudnn.allow_tf32, products.allow_tf32 = before[2], before[4]
            torch.use_deterministic_algorithms(deterministic)


@contextmanager
def _preferred(torch: Any, library: str) -> Iterator[None]:
    before = torch.backends.cuda.preferred_blas_library()
    torch.backends.cuda.preferred_blas_library(library)
    try:
        yield
    finally:
        torch.backends.cuda.preferred_blas_library(before)
