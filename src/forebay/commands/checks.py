"""What `forebay doctor` checks: a function each, which does a piece of real work and says what it found."""

from __future__ import annotations

import shlex
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

HOST = "host:0"
MIB = 1 << 20

# What loaders say: glibc, of one that is too old as well, musl and Apple's.
LIBRARY_IS_MISSING = "file: No such file", "' not found", "Error loading shared library", "Library not loaded"

REPORT = "this is forebay's fault: please report it with the output of `forebay info`"
NUMPY = "NumPy's memory hook does not work here: try another NumPy 2, and report it with the output of `forebay info`"
MEMORY = "see how much memory this process may use, and set FOREBAY_HOST_MEMORY to less"


def native_core() -> str:
    """Takes, gives back and looks at every invariant, on memory that is never touched."""
    from forebay._core import QUANTUM, Pool

    pool = Pool()
    pool.adopt(1 << 32, 2 * MIB, 0, small=True)
    blocks = [pool.take(nbytes) for nbytes in (1, QUANTUM, 3 * QUANTUM, 100 * QUANTUM)]
    del blocks[::2]
    expect(None not in blocks, "an empty pool refused a block")
    expect(pool.broken() is None, f"the pool says: {pool.broken()}")
    blocks.clear()
    expect(pool.evictable(small=True) == [(1 << 32, 2 * MIB, 0, 0, False)], "the blocks did not merge again")
    return "takes, splits, merges"


def rebuild(said: str) -> str:
    """What to do about a core that does not load, or does not work."""
    if any(words in said for words in LIBRARY_IS_MISSING):
        return "install the library that the error names, or a newer one (libstdc++ on Debian: apt install libstdc++6)"
    sources = Path(__file__).parents[3]
    editable = ["--editable", str(sources)] if (sources / "setup.py").is_file() else ["forebay"]
    command = [sys.executable, "-m", "pip", "install", "--force-reinstall", "--no-deps", *editable]
    return f"it is missing, damaged or built for another Python; reinstall it: {shlex.join(command)}"


def host_device() -> str:
    from forebay import memory
    from forebay.byte_sizes import format_bytes

    free, total = memory.mem_get_info(HOST)
    expect(free == total > 0, f"{free} of {total} bytes are free at the start")
    return f"{HOST} has {format_bytes(total)}"


def numpy_hook() -> str:
    import numpy as np

    from forebay import memory
    from forebay.byte_sizes import format_bytes
    from forebay.interop.numpy import SMALLEST, serving

    with serving(HOST):
        before = memory.memory_allocated(HOST)
        array = np.ones(8 * MIB, np.uint8)
        held = memory.memory_allocated(HOST) - before
        expect(held >= array.nbytes, f"an array of {array.nbytes} bytes took {held} bytes of the device")
        del array
        expect(memory.memory_allocated(HOST) == before, "its memory was not given back")
    return f"serves arrays from {format_bytes(SMALLEST)} on, and gives back"


def zeroed_memory() -> str:
    import numpy as np

    from forebay.interop.numpy import serving

    with serving(HOST):
        for _ in range(4):
            used = np.full(4 * MIB, 255, np.uint8)
            where = used.__array_interface__["data"][0]
            del used
            fresh = np.zeros(4 * MIB, np.uint8)
            expect(not fresh.any(), f"np.zeros at {where:#x} is not zero")
            del fresh
    return "np.zeros is zero on used memory"


def outliving_arrays() -> str:
    import numpy as np

    from forebay import memory
    from forebay.interop import numpy

    before = memory.memory_allocated(HOST)
    outside = np.arange(MIB)
    with numpy.serving(HOST):
        inside = np.arange(MIB)
        inside.resize(2 * MIB)
        outside = outside * 1
    expect(int(inside[: MIB // 2].sum()) == MIB // 2 * (MIB // 2 - 1) // 2, "an array changed after its context")
    del inside, outside
    expect(memory.memory_allocated(HOST) == before, "memory was not given back after the context")
    return "arrays live on after their context"


def threads() -> str:
    from concurrent.futures import ThreadPoolExecutor

    import numpy as np

    from forebay import memory
    from forebay.interop import numpy

    def work(seed: int) -> bool:
        arrays = [np.full(64 * 1024 + 8 * seed + n, seed * 100 + n) for n in range(50)]
        return all((array == seed * 100 + n).all() for n, array in enumerate(arrays))

    numpy.install(HOST)
    with ThreadPoolExecutor(4) as pool:
        expect(all(pool.map(work, range(8))), "two threads were given the same memory")
    numpy.uninstall()
    expect(memory.memory_allocated(HOST) == 0, "memory was not given back")
    return "4 threads allocate at once"


def queue() -> str:
    from forebay import backends
    from forebay.spi import Launches

    port = backends.driver("host").open(0)
    first, second = port.queue(), port.queue()
    order: list[int] = []
    if not isinstance(first, Launches) or not isinstance(second, Launches):
        return "no functions can be queued, so not tried"
    first.call(lambda: order.append(1))
    second.wait_for(first, first.signal())
    second.call(lambda: order.append(2))
    second.wait(second.signal())
    expect(order == [1, 2], f"queued work ran as {order}")
    port.close()
    return "does work in order, across two"


def copy() -> str:
    import numpy as np

    import forebay

    values = np.random.default_rng(0).integers(0, 256, 4 * MIB, np.uint8)
    with forebay.Stream(HOST) as stream:
        there = forebay.empty(values.size, dtype=forebay.uint8, device=HOST).copy_(values, non_blocking=True)
        back = there.clone()
        stream.synchronize()
    expect(np.array_equal(back.numpy(), values), "what came back is not what was sent")
    return "to the device and back, bit for bit"


def event_timing() -> str:
    import forebay

    start, end = forebay.Event(HOST, enable_timing=True), forebay.Event(HOST, enable_timing=True)
    target = forebay.empty(16 * MIB, dtype=forebay.uint8, device=HOST)
    stream = forebay.current_stream(HOST)
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

    memory.set_capacity(32 * MIB, HOST)
    try:
        with serving(HOST):
            np.ones(64 * MIB, np.uint8)
    except OutOfMemory as error:
        numbers = error.wanted >= 64 * MIB, error.capacity == 32 * MIB, "64.00 MiB" in str(error)
        expect(all(numbers), f"the error lacks its numbers: {error}")
        expect(isinstance(error, MemoryError), "the error is no MemoryError")
        return "64 MiB from 32 MiB raise OutOfMemory, with the numbers"
    raise AssertionError("64 MiB came out of a device of 32 MiB")


def fork() -> str:
    import os

    import numpy as np

    import forebay
    from forebay.interop import numpy

    numpy.install(HOST)
    kept = np.ones(MIB)
    forebay.synchronize(HOST)
    child = os.fork()
    if not child:
        status = 1
        try:
            good = float((np.ones(MIB) + kept).sum()) == 2 * MIB  # NumPy goes on
            forebay.synchronize(HOST)
        except forebay.Forked:
            status = 0 if good else 2
        finally:
            os._exit(status)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    expect(status != 1, "a forked child was not told that its device did not come along")
    expect(status != 2, "NumPy's sums are wrong in a forked child")
    expect(status == 0, f"a forked child died with status {status}")
    return "NumPy goes on in a child, streams refuse"


def snapshot() -> str:
    import io
    import tempfile
    from pathlib import Path

    import forebay
    from forebay import memory
    from forebay.snapshot.formats import native
    from forebay.snapshot.report import html

    memory.record_history(1000, device=HOST)
    kept = forebay.zeros(MIB, dtype=forebay.uint8, device=HOST)
    before = memory.snapshot(HOST)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "check.forebay")
        native.write(before, path)
        after = native.read(path)
        nbytes = path.stat().st_size
    expect((after.trace == before.trace).all() and after.strings == before.strings, "it was read back differently")
    page = io.StringIO()
    html.write(after, page)
    expect("</html>" in page.getvalue(), "the report is cut short")
    del kept
    return f"{nbytes:,} bytes written, read back and drawn"


def recorder() -> str:
    from forebay.observe.tracing._entries import RANGE, Entries

    entries = Entries(2, threading.local(), lambda _file: False)
    for number in range(3):
        entries.add(RANGE, (number,))
    entries.close()
    expect(entries.rows() == [(RANGE, 1, 1), (RANGE, 2, 2)], f"it kept {entries.rows()} of three entries")
    return "keeps the newest entries"


@dataclass(frozen=True, slots=True)
class Check:
    name: str
    probe: Callable[[], str]
    cure: str | Callable[[str], str]  # what to do; it may depend on what was said

    def what_to_do(self, said: str) -> str:
        return self.cure if isinstance(self.cure, str) else self.cure(said)


# The first goes first and alone: all others need the core, and are not run where it fails.
CHECKS = (
    Check("native core", native_core, rebuild),
    Check("host device", host_device, "mend or unset FOREBAY_HOST_DEVICES and FOREBAY_HOST_MEMORY, then try again"),
    Check("NumPy hook", numpy_hook, NUMPY),
    Check("zeroed memory", zeroed_memory, REPORT),
    Check("arrays that outlive", outliving_arrays, NUMPY),
    Check("threads", threads, REPORT),
    Check("queues", queue, REPORT),
    Check("copies", copy, MEMORY),
    Check("event timing", event_timing, REPORT),
    Check("out of memory", out_of_memory, NUMPY),
    Check("fork", fork, "start processes with the 'spawn' method, and report it with the output of `forebay info`"),
    Check("trace recorder", recorder, rebuild),
    Check("snapshot", snapshot, "make room in the folder for temporary files, or name another in TMPDIR"),
)


def expect(condition: bool, otherwise: str) -> None:
    if not condition:
        raise AssertionError(otherwise)
