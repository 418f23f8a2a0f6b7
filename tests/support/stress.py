"""A program that stresses two emulated devices with 16 threads: python -m support.stress SETTINGS SECONDS [BYTES].

On the first device each thread has streams of its own and verifies the values of its tensors; graphs only read memory
that may be gone. On the second device threads share streams, also while one of them is captured, so that graphs use
memory of other threads, and values mean nothing there. At the end statistics equal a recount of the snapshot, and
without tensors all memory is returned. Graphs use tensors of at most BYTES bytes: ThreadSanitizer takes milliseconds
for each word of memory that a graph uses too late. Prints the number of operations and of expected errors as JSON.
"""

from __future__ import annotations

import collections
import faulthandler
import gc
import json
import random
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import forebay
from forebay import cuda, memory
from forebay.runtime.devices.current import opened_for

THREADS = 16
LIMIT = 120  # seconds beyond the given ones, after which the program is taken to hang
DEVICES = ("cuda:0", "cuda:1")
MIB = 1 << 20
SIZES = (10, 5_000, MIB, 3 * MIB, 11 * MIB)
EXPECTED = (  # a part of each error that a program of this kind can get
    "out of memory",
    "illegal memory access",  # a graph whose memory was released
    "capturing",  # another thread captures the stream, or the stream waits for one that is captured
    "previous error during capture",
    "cannot be performed in the present state",  # two threads capture a stream
    "Cannot copy between CPU and CUDA tensors during CUDA graph capture",
    "Capture must end on the same stream",
    "unjoined work",
    "capture_end() called before capture_begin()",
    "dependency",
)


capturing = threading.Lock()  # held while a stream of the first device is captured


class Worker(threading.Thread):
    """A thread that does random operations until `end`."""

    def __init__(self, number: int, end: float, shared: list[forebay.Stream], most: int) -> None:
        super().__init__()
        self.random = random.Random(number)
        self.in_graphs = tuple(size for size in SIZES if size <= most)
        self.end, self.shared = end, shared
        self.streams = [forebay.Stream(device=device) for device in DEVICES]
        self.done = collections.Counter[str]()
        self.errors = collections.Counter[str]()
        self.failures: list[str] = []
        self.kept: list[tuple[forebay.Tensor, int]] = []  # of the first device, with their value
        self.unchecked: list[object] = []
        self.graphs: list[cuda.CUDAGraph] = []

    def run(self) -> None:
        operations = [getattr(self, name) for name in dir(self) if name.startswith("do_")]
        while time.monotonic() < self.end:
            operation = self.random.choice(operations)
            try:
                operation()
                self.done[operation.__name__] += 1
            except Exception as error:  # noqa: BLE001 -- a thread has no caller
                text = next((each for each in EXPECTED if each in str(error)), None)
                if text is None:
                    self.failures.append(traceback.format_exc())
                else:
                    self.errors[text] += 1
                if isinstance(error, forebay.OutOfMemory):
                    self.kept.clear()
                    self.unchecked.clear()
            del self.kept[6:], self.unchecked[6:], self.graphs[3:]
        self.kept.clear()
        self.unchecked.clear()
        self.graphs.clear()

    def new(self, device: int, sizes: Sequence[int] = SIZES) -> tuple[forebay.Tensor, int]:
        value = self.random.randrange(1, 200)
        size = self.random.choice(sizes)
        return forebay.full((size,), value, dtype="uint8", device=DEVICES[device]), value

    def verify(self, tensor: forebay.Tensor, value: int) -> None:
        found = tensor.cpu().numpy()
        assert (found == value).all(), f"{len(found)} bytes of {value}, but there are {set(found.tolist())}"

    @contextmanager
    def capture(self, graph: cuda.CUDAGraph) -> Iterator[None]:
        """Capture a stream of the first device, where no other may be captured: it waits for all streams first."""
        with capturing, cuda.graph(graph, stream=self.streams[0], capture_error_mode="thread_local"):
            yield

    def keep(self, tensor: forebay.Tensor, value: int) -> None:
        self.kept.insert(self.random.randrange(len(self.kept) + 1), (tensor, value))

    def do_clone(self) -> None:
        with self.streams[0]:
            tensor, value = self.new(0)
            self.keep(tensor.clone(), value)

    def do_verify(self) -> None:
        if self.kept:
            with self.streams[0]:
                self.verify(*self.kept.pop())

    def do_use_on_another_stream(self) -> None:
        with self.streams[0]:
            tensor, value = self.new(0)
        other = forebay.default_stream(DEVICES[0])
        other.wait_stream(self.streams[0])
        with other:
            copy = tensor.clone()
            tensor.record_stream(other)
            copy.record_stream(self.streams[0])
            self.streams[0].wait_stream(other)
        del tensor
        with self.streams[0]:
            self.verify(copy, value)

    def do_copy_to_the_other_device(self) -> None:
        with self.streams[0]:
            tensor, _ = self.new(0)
            self.unchecked.append(tensor.to(DEVICES[1]))

    def do_capture(self) -> None:
        """Capture a copy of memory that is freed, sometimes before the capture ends."""
        with self.streams[0]:
            source, _ = self.new(0, self.in_graphs)
        graph, early = cuda.CUDAGraph(), self.random.random() < 0.5
        with self.capture(graph):
            copy = source.clone()
            del source
            if early:  # by another thread, as this one may not do it
                other = threading.Thread(target=memory.empty_cache, args=(DEVICES[0],))
                other.start()
                other.join()
        self.graphs.append(graph)
        del copy
        graph.replay()

    def do_replay(self) -> None:
        if self.graphs:
            with self.streams[0]:
                self.graphs[self.random.randrange(len(self.graphs))].replay()

    def do_replay_and_verify(self) -> None:
        with self.streams[0]:
            source, value = self.new(0)
        graph = cuda.CUDAGraph()
        with self.capture(graph):
            copy = source.clone()
        with self.streams[0]:
            graph.replay()
            self.verify(copy, value)

    def do_pool(self) -> None:
        pool = memory.MemPool()
        with self.streams[0], memory.use_mem_pool(pool, DEVICES[0]):
            tensor, value = self.new(0)
        del pool
        self.keep(tensor, value)

    def do_shared_work(self) -> None:
        with self.random.choice(self.shared):
            tensor, _ = self.new(1, self.in_graphs)
            copy = tensor.clone()
            copy.record_stream(self.streams[1])
            self.unchecked.append(copy)

    def do_shared_capture(self) -> None:
        graph = cuda.CUDAGraph()
        with cuda.graph(graph, stream=self.random.choice(self.shared), capture_error_mode="thread_local"):
            tensor, _ = self.new(1, self.in_graphs)
            tensor.fill_(1)
        graph.replay()
        self.unchecked.append(graph)

    def do_pinned(self) -> None:
        with self.streams[0]:
            tensor, value = self.new(0)
            pinned = forebay.empty_pinned(tensor.nbytes, device=DEVICES[0])
            del tensor, value, pinned

    def do_administration(self) -> None:
        device = self.random.choice(DEVICES)
        for operation in (
            memory.empty_cache,
            memory.memory_snapshot,
            memory.memory_stats,
            memory.snapshot,
            memory.reset_peak_memory_stats,
            lambda device: memory.record_history(self.random.choice([None, 100, 2_000]), device=device),
        ):
            if self.random.random() < 0.4:
                operation(device)


def recount(device: str) -> None:
    """Compare statistics with the snapshot, then release all memory."""
    keep = [forebay.empty(size, dtype="uint8", device=device) for size in (5, MIB, 7 * MIB)]
    forebay.synchronize(device)
    index, stats = int(device[-1]), memory.memory_stats(device)
    segments = [segment for segment in cuda.memory_snapshot() if segment["device"] == index]
    live = [block for segment in segments for block in segment["blocks"] if block["state"] == "active_allocated"]
    found = {
        "allocated_bytes": sum(block["size"] for block in live),
        "allocation": len(live),
        "reserved_bytes": sum(segment["total_size"] for segment in segments),
        "segment": sum(not segment["is_expandable"] for segment in segments),
    }
    assert found == {name: stats[f"{name}.all.current"] for name in found}, (device, found)
    assert opened_for(device).allocator.check_invariants() is None
    del keep
    gc.collect()
    forebay.synchronize(device)
    memory.empty_cache(device)
    free, total = memory.mem_get_info(device)
    left = [(segment["segment_pool_id"], segment["total_size"]) for segment in cuda.memory_snapshot()]
    assert (memory.memory_allocated(device), memory.memory_reserved(device), total - free) == (0, 0, 0), (device, left)


def main(settings: str, seconds: str, most: str = str(SIZES[-1])) -> None:
    faulthandler.dump_traceback_later(float(seconds) + LIMIT, exit=True)
    warnings.filterwarnings("ignore", "The CUDA Graph is empty")  # another thread has ended its capture
    if settings:
        memory.set_allocator_settings(settings)
    forebay.emulate("cuda", count=len(DEVICES), memory=256 * MIB)
    shared = [forebay.Stream(device=DEVICES[1]) for _ in range(4)]
    end = time.monotonic() + float(seconds)
    workers = [Worker(number, end, shared, int(most)) for number in range(THREADS)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    done, errors = collections.Counter[str](), collections.Counter[str]()
    for worker in workers:
        done += worker.done
        errors += worker.errors
    failures = [failure for worker in workers for failure in worker.failures]
    assert not failures, failures[0]
    del workers, worker
    gc.collect()
    for device in DEVICES:
        recount(device)
    print(json.dumps({"operations": done, "errors": errors}))


if __name__ == "__main__":
    main(*sys.argv[1:])
