"""A long scenario of forebay.cuda on the software driver, with failing calls of the driver."""

from __future__ import annotations

from support.software_driver import lines_of

__all__ = ["BEGIN", "output_of"]

BEGIN = """
import ctypes, gc, os, sys, threading, warnings
import forebay
import forebay.cuda as cuda
from forebay import DeviceError, OutOfMemory
from forebay._base.device_spec import Device
from forebay.runtime.devices.open_device import open_device

soft = ctypes.CDLL("libcuda.so.1")
MIB, UNKNOWN, LOST = 1 << 20, 999, 700
TYPES = "contexts device pinned managed registered mapped chunks graphs graph_execs captures modules".split()

def live():
    return {name: count for name in TYPES if (count := soft.softcuda_live(name.encode()))}

def counts():
    "Return how often each function of the driver was called."
    names = ctypes.create_string_buffer(10000)
    soft.softcuda_called(names, len(names))
    return {name: soft.softcuda_calls(name) for name in names.value.split()}

def scenario():
    weights = forebay.arange(1000, dtype=forebay.float32, device="cuda")
    side, start, end = cuda.Stream(), cuda.Event(enable_timing=True), cuda.Event(enable_timing=True)
    side.wait_stream(cuda.current_stream())
    with cuda.stream(side):
        start.record()
        copy = weights.clone()
        large = forebay.full((32 * MIB,), 3, dtype=forebay.uint8, device="cuda")
        doubles = copy.to(forebay.float64)
        drawn = forebay.rand(100, device="cuda")
        end.record()
    weights.record_stream(side)
    del weights
    pinned = forebay.empty(1000, dtype=forebay.float32, pin_memory=True)
    with cuda.stream(side):
        pinned.copy_(copy, non_blocking=True)
    end.synchronize()
    side.synchronize()
    assert start.elapsed_time(end) >= 0 and pinned[-1].item() == 999
    graph = cuda.CUDAGraph()
    with cuda.graph(graph, stream=side):
        inner = doubles.clone()
        drawn.uniform_()
        inner.fill_(4)
    graph.replay()
    cuda.synchronize()
    assert inner[0].item() == 4
    assert copy.to("cuda:1").cpu()[7].item() == 7
    with cuda.use_mem_pool(cuda.MemPool()):
        pooled = forebay.ones(4 * MIB, dtype=forebay.uint8, device="cuda")

def settle():
    "Complete all work and return all memory to the driver."
    gc.collect()
    for index in range(2):
        cuda.synchronize(index)
    cuda.empty_cache()
    forebay.accelerator.memory.empty_host_cache()
    gc.collect()

def check_statistics(*case):
    "Compare the statistics with a recount, after `settle`."
    for index in range(2):
        assert open_device(Device("cuda", index)).allocator.check_invariants() is None, case
        found = cuda.memory_stats(index)
        for what in ("allocated_bytes", "reserved_bytes", "allocation", "segment", "active_bytes"):
            assert not found[f"{what}.all.current"], (case, index, what, found[f"{what}.all.current"])
        assert found["num_device_alloc"] == found["num_device_free"], case

def error_of(function):
    "Return the error of a call, without its frames, and the texts of warnings."
    said = []
    sys.unraisablehook = lambda info: said.append(str(info.exc_value or info.err_msg))
    error = None
    with warnings.catch_warnings():
        warnings.showwarning = lambda message, *_: said.append(str(message))
        warnings.simplefilter("always")
        try:
            function()
        except Exception as raised:
            error = raised
            while raised is not None:
                raised.__traceback__, raised = None, raised.__context__
        gc.collect()
    return error, [text for text in said if "CUDA Graph is empty" not in text]  # PyTorch's, of an interrupted capture

gc.freeze()  # each fault is followed by about seven collections, which would look at all modules
"""


def output_of(program: str, **variables: str) -> list[str]:
    """Return the lines that a program prints after `BEGIN`."""
    return lines_of(BEGIN + program, silent=True, **variables)
