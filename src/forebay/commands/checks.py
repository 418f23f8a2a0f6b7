"""The checks of `forebay doctor`: functions that do real work and return a result text, or raise."""

from __future__ import annotations

import shlex
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from forebay._base.byte_sizes import MIB

DEVICE = "cpu"

# Error messages of the loaders of glibc (missing or too old), musl and Apple.
MISSING_LIBRARY_MESSAGES = "file: No such file", "' not found", "Error loading shared library", "Library not loaded"

REPORT = "this is a bug in forebay: please report it with the output of `forebay info`"
NUMPY = "NumPy's allocator hook does not work here: try another NumPy 2, and report this with `forebay info`"
MEMORY = "set FOREBAY_CPU_MEMORY to less than the memory that this process may use"


def native_core() -> str:
    """Allocate, free and check the invariants of a pool, on memory that is never accessed."""
    from forebay._core import MIN_BLOCK_SIZE, Pool

    pool = Pool()
    pool.adopt(1 << 32, 2 * MIB, 0, small=True)
    blocks = [pool.try_allocate(nbytes) for nbytes in (1, MIN_BLOCK_SIZE, 3 * MIN_BLOCK_SIZE, 100 * MIN_BLOCK_SIZE)]
    del blocks[::2]
    expect(None not in blocks, "an empty pool did not allocate a block")
    expect(pool.check_invariants() is None, f"broken invariant: {pool.check_invariants()}")
    blocks.clear()
    expect([row[:2] for row in pool.evictable(small=True)] == [(1 << 32, 2 * MIB)], "the freed blocks did not merge")
    return "allocates, splits, merges"


def rebuild(message: str) -> str:
    """Return the remedy for a core that fails to load or to work with this error message."""
    if any(part in message for part in MISSING_LIBRARY_MESSAGES):
        return "install the library that the error names, or a newer one (libstdc++ on Debian: apt install libstdc++6)"
    sources = Path(__file__).parents[3]
    editable = ["--editable", str(sources)] if (sources / "setup.py").is_file() else ["forebay"]
    command = [sys.executable, "-m", "pip", "install", "--force-reinstall", "--no-deps", *editable]
    return f"it is missing, damaged or built for another Python; reinstall it: {shlex.join(command)}"


def cpu_device() -> str:
    from forebay import memory
    from forebay._base.byte_sizes import format_bytes

    free, total = memory.mem_get_info(DEVICE)
    expect(free == total > 0, f"{free} of {total} bytes are free at the start")
    return f"{DEVICE} has {format_bytes(total)}"


def numpy_hook() -> str:
    import numpy as np

    from forebay import memory
    from forebay._base.byte_sizes import format_bytes
    from forebay.interop.numpy import SMALLEST, serving

    with serving(DEVICE):
        before = memory.memory_allocated(DEVICE)
        array = np.ones(8 * MIB, np.uint8)
        allocated = memory.memory_allocated(DEVICE) - before
        expect(allocated >= array.nbytes, f"an array of {array.nbytes} bytes allocated {allocated} device bytes")
        del array
        expect(memory.memory_allocated(DEVICE) == before, "its memory was not freed")
    return f"allocates and frees arrays of {format_bytes(SMALLEST)} or more"


def zeroed_memory() -> str:
    import numpy as np

    from forebay.interop.numpy import serving

    with serving(DEVICE):
        for _ in range(4):
            used = np.full(4 * MIB, 255, np.uint8)
            where = used.__array_interface__["data"][0]
            del used
            fresh = np.zeros(4 * MIB, np.uint8)
            expect(not fresh.any(), f"np.zeros at {where:#x} is not zero")
            del fresh
    return "np.zeros clears reused memory"


def outliving_arrays() -> str:
    import numpy as np

    from forebay import memory
    from forebay.interop import numpy

    before = memory.memory_allocated(DEVICE)
    outside = np.arange(MIB)
    with numpy.serving(DEVICE):
        inside = np.arange(MIB)
        inside.resize(2 * MIB)
        outside = outside * 1
    expect(int(inside[: MIB // 2].sum()) == MIB // 2 * (MIB // 2 - 1) // 2, "an array changed after its context")
    del inside, outside
    expect(memory.memory_allocated(DEVICE) == before, "memory was not freed after the context")
    return "arrays stay valid after their context"


def threads() -> str:
    from concurrent.futures import ThreadPoolExecutor

    import numpy as np

    from forebay import memory
    from forebay.interop import numpy

    def work(seed: int) -> bool:
        arrays = [np.full(64 * 1024 + 8 * seed + n, seed * 100 + n) for n in range(50)]
        return all((array == seed * 100 + n).all() for n, array in enumerate(arrays))

    numpy.install(DEVICE)
    with ThreadPoolExecutor(4) as pool:
        expect(all(pool.map(work, range(8))), "two threads got the same memory")
    numpy.uninstall()
    expect(memory.memory_allocated(DEVICE) == 0, "memory was not freed")
    return "4 threads allocate at once"


def queue() -> str:
    from forebay import backends
    from forebay.spi import Launches

    port = backends.driver("cpu").open(0)
    first, second = port.queue(), port.queue()
    order: list[int] = []
    if not isinstance(first, Launches) or not isinstance(second, Launches):
        return "not tested: this device cannot queue functions"
    first.call(lambda: order.append(1))
    second.wait_for(first, first.signal())
    second.call(lambda: order.append(2))
    second.wait(second.signal())
    expect(order == [1, 2], f"queued work ran as {order}")
    port.close()
    return "work runs in order, also across two queues"


def copy() -> str:
    import numpy as np

    import forebay

    values = np.random.default_rng(0).integers(0, 256, 4 * MIB, np.uint8)
    with forebay.Stream(DEVICE) as stream:
        there = forebay.empty(values.size, dtype=forebay.uint8, device=DEVICE).copy_(values, non_blocking=True)
        back = there.clone()
        stream.synchronize()
    expect(np.array_equal(back.numpy(), values), "the data changed in a copy")
    return "host to device to host, bit for bit"


def event_timing() -> str:
    import forebay

    start, end = forebay.Event(DEVICE, enable_timing=True), forebay.Event(DEVICE, enable_timing=True)
    target = forebay.empty(16 * MIB, dtype=forebay.uint8, device=DEVICE)
    stream = forebay.current_stream(DEVICE)
    start.record(stream)
    target.fill_(1)
    end.record(stream)
    end.synchronize()
    took = start.elapsed_time(end)
    expect(0 < took < 10_000, f"filling 16 MiB took {took} ms")
    return f"filled 16 MiB in {took:.2f} ms"


def out_of_memory() -> str:
    import numpy as np

    from forebay import OutOfMemory, memory
    from forebay.interop.numpy import serving

    memory.set_capacity(32 * MIB, DEVICE)
    try:
        with serving(DEVICE):
            np.ones(64 * MIB, np.uint8)
    except OutOfMemory as error:
        numbers = error.wanted >= 64 * MIB, error.capacity == 32 * MIB, "64.00 MiB" in str(error)
        expect(all(numbers), f"the error lacks sizes: {error}")
        expect(isinstance(error, MemoryError), "the error is not a MemoryError")
        return "64 MiB on a device of 32 MiB raises OutOfMemory with the sizes"
    raise AssertionError("64 MiB were allocated on a device of 32 MiB")


def fork() -> str:
    import os

    import numpy as np

    import forebay
    from forebay.interop import numpy

    numpy.install(DEVICE)
    kept = np.ones(MIB)
    forebay.synchronize(DEVICE)
    child = os.fork()
    if not child:
        status = 1
        try:
            good = float((np.ones(MIB) + kept).sum()) == 2 * MIB
            twos = forebay.full((MIB,), 2.0, device=DEVICE)
            good = good and float(twos.numpy().sum()) == 2 * MIB
            status = 0 if good else 2
        finally:
            os._exit(status)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    expect(status != 2, "results are wrong in a forked child")
    expect(status == 0, f"a forked child exited with status {status}")
    return "NumPy and the CPU device work in a child process"


def snapshot() -> str:
    import io

    import forebay
    from forebay import memory
    from forebay._base.temporary_folders import temporary_folder
    from forebay.snapshot.formats import native
    from forebay.snapshot.report import html

    memory.record_history(1000, device=DEVICE)
    kept = forebay.zeros(MIB, dtype=forebay.uint8, device=DEVICE)
    before = memory.snapshot(DEVICE)
    with temporary_folder("forebay-doctor-") as folder:
        path = folder / "check.forebay"
        native.write(before, path)
        after = native.read(path)
        nbytes = path.stat().st_size
    expect((after.trace == before.trace).all() and after.strings == before.strings, "the file differs after reading")
    page = io.StringIO()
    html.write(after, page)
    expect("</html>" in page.getvalue(), "the report is truncated")
    del kept
    return f"{nbytes:,} bytes written, read back and rendered"


def recorder() -> str:
    from forebay.observe.tracing._entries import RANGE, Entries

    entries = Entries(2, threading.local(), lambda _file: False)
    for number in range(3):
        entries.add(RANGE, (number,))
    entries.close()
    expect(entries.rows() == [(RANGE, 1, 1), (RANGE, 2, 2)], f"kept {entries.rows()} of three entries")
    return "keeps the newest entries"


@dataclass(frozen=True, slots=True)
class Check:
    """A check and its remedy."""

    name: str
    probe: Callable[[], str]
    remedy: str | Callable[[str], str]  # may depend on the error message

    def what_to_do(self, message: str) -> str:
        return self.remedy if isinstance(self.remedy, str) else self.remedy(message)


# The first check runs alone: all others need the core and are skipped if it fails.
CHECKS = (
    Check("native core", native_core, rebuild),
    Check("CPU device", cpu_device, "correct or unset FOREBAY_CPU_DEVICES and FOREBAY_CPU_MEMORY, then try again"),
    Check("NumPy hook", numpy_hook, NUMPY),
    Check("zeroed memory", zeroed_memory, REPORT),
    Check("lifetimes of arrays", outliving_arrays, NUMPY),
    Check("threads", threads, REPORT),
    Check("queues", queue, REPORT),
    Check("copies", copy, MEMORY),
    Check("event timing", event_timing, REPORT),
    Check("out of memory", out_of_memory, NUMPY),
    Check("fork", fork, "start processes with the 'spawn' method, and report this with the output of `forebay info`"),
    Check("trace recorder", recorder, rebuild),
    Check("snapshot", snapshot, "free disk space in the folder for temporary files, or set TMPDIR to another folder"),
)


def expect(condition: bool, message: str) -> None:
    if not condition:
        raise AssertionError(message)
