"""A long program on the fake backend, run once per port call with that call failing; and in eight threads.

The program continues after a failure, as a user's would. Afterwards the allocator must be consistent, and all memory
must be released.
"""

from __future__ import annotations

import contextlib
import gc
import random
import sys
import warnings

import numpy as np
import pytest

from forebay import DeviceError, ForebayWarning, OutOfMemory
from forebay.errors import ForebayError
from forebay.records.model import SEGMENT
from forebay.runtime.allocator import oom_message
from forebay.runtime.allocator.heap_allocator import HeapAllocator
from forebay.runtime.allocator.segment_allocator import SegmentAllocator
from forebay.runtime.allocator.statistics import flat_stats
from forebay.runtime.allocator.torch_iteration_order import pool_set, stream_set
from forebay.runtime.settings.configuration import parse
from forebay.spi import Heaps
from forebay.testing.fake import FakePort

MIB = 1 << 20
TOTAL = 100 * MIB
RULES = {
    "segments": "max_split_size_mb:24,garbage_collection_threshold:0.4,per_process_memory_fraction:0.99",
    "expandable": "expandable_segments:True,expandable_segments_reserve:0.3",
    "heaps": "heaps",
}


HEAPS = Heaps(recommended=180 * MIB, longest=2000 * MIB)  # the limit is 306 MiB, with constant memory pressure


class Scene:
    """An allocator over a fake port, with queues 0, 1 and 2 and three private pools, one of them lending."""

    def __init__(self, rules: str = "") -> None:
        self.port = FakePort(2000 * MIB if rules == "heaps" else TOTAL)
        self.queues = {handle: self.port.queue() for handle in range(3)}
        orders = (lambda: stream_set(0), pool_set)
        if rules == "heaps":
            self.allocator = HeapAllocator("fake:0", self.port, HEAPS, self.queues, orders=orders)
        else:
            self.allocator = SegmentAllocator("fake:0", self.port, self.queues, parse(rules), orders)
        self.pools = [(0, 1), (0, 2), (7, 0)]
        for pool in self.pools:
            self.allocator.private.create_or_incref(pool, use_on_oom=pool == (0, 1), no_split=pool == (0, 2))
        self.blocks: dict[int, object] = {}
        self.failed: list[BaseException] = []
        self.lost = 0  # bytes whose release was interrupted

    def run(self, program) -> None:
        for number, (name, *arguments) in enumerate(program):
            try:
                getattr(self, name)(number, *arguments)
            except (ForebayError, KeyboardInterrupt) as error:
                error.__traceback__ = error.__context__ = None  # which reference the blocks
                self.failed.append(error)
                error = None

    def allocate(self, number, nbytes, queue, pool=None):
        with self.allocator.private.use(pool) if pool else contextlib.nullcontext():
            self.blocks[number] = self.allocator.allocate(nbytes, queue)

    def free(self, _, block):
        self.blocks.pop(block, None)

    def use(self, _, block, queue):
        if block in self.blocks:
            self.queues[queue].fill(self.blocks[block].address, 1, 512)
            self.blocks[block].record_stream(queue)

    def finish(self, _, queue):
        self.queues[queue].finish()

    def empty(self, _):
        self.allocator.empty()

    def settings(self, _, text):
        self.allocator.apply_settings(parse(text))

    def release(self, _, pool):
        self.allocator.release_pool(pool)

    def stat(self, name):
        return flat_stats(self.allocator)[name]

    def pending_release(self) -> int:
        """Return the bytes of segments that are evicted from the pool and still reserved from the port."""
        return sum(self.size_of(address) for address, _ in self.allocator.pending_releases.entries())

    def size_of(self, address) -> int:
        return dict(self.port._memory._taken)[address]

    def check(self) -> None:
        """Check the tables, the statistics, and that the port has the memory of the pool and of pending releases."""
        assert self.allocator.check_invariants() is None
        rows = np.frombuffer(self.allocator.tables(trace=False)[0], SEGMENT)
        assert self.stat("reserved_bytes.all.current") == rows["nbytes"].sum()
        assert self.port.reserved == rows["nbytes"].sum() + self.pending_release() + self.lost
        if isinstance(self.allocator, SegmentAllocator):
            port_spaces, expandable = self.port._spaces._spaces, self.allocator._expandable
            assert port_spaces.keys() == {*expandable._spaces, *expandable._spaces_to_release}

    def end(self) -> None:
        """Free all blocks and pools on a working device, and check that all memory is released."""
        self.blocks.clear()
        gc.collect()
        for pool in self.pools:
            if pool in {found.id for found in self.allocator.private} and self.allocator.private[pool].users:
                with contextlib.suppress(DeviceError):  # the failing call may be this one
                    self.allocator.release_pool(pool)
        for _ in range(3):
            with contextlib.suppress(DeviceError, KeyboardInterrupt):
                self.allocator.empty()
        self.check()
        assert (self.stat("active.all.current"), self.stat("inactive_split.all.current")) == (0, 0)
        assert not self.allocator._deferred_frees
        assert self.allocator.deferred() == []
        for found in self.allocator.private:  # PyTorch keeps a space without pages, too
            assert (found.users, self.allocator.reserved_by(found.pool_number)[0]) == (0, 0)


def program(expandable: bool):
    """Return some 250 operations: mostly random, plus sequences that random choice rarely produces."""
    chance, live, operations = random.Random(5), [], []

    def allocate(nbytes, queue=0, pool=None):
        live.append(len(operations))
        operations.append(("allocate", nbytes, queue, pool))

    for step in range(180):
        at = chance.random()
        if at < 0.5 or not live:
            size = int(chance.choice((2 ** chance.uniform(9, 20), chance.uniform(1, 12) * MIB)))
            allocate(size, chance.randrange(3), chance.choice((None, None, None, (0, 1), (0, 2), (7, 0))))
        elif at < 0.75:
            operations.append(("free", live.pop(chance.randrange(len(live)))))
        elif at < 0.95:
            operations.append(("use", chance.choice(live), chance.randrange(3)))
        else:
            operations.append(("finish", chance.randrange(3)))
        if step % 20 == 19:
            operations.append(("empty",))
    for nbytes in (30 * MIB, 60 * MIB, 28 * MIB):  # out of memory, garbage collection, oversize release, borrowing
        allocate(nbytes)
        operations += [("free", block) for block in live[-4::2]]
        allocate(nbytes // 2, 1)
        allocate(4 * MIB, 2)
    operations += [("free", live.pop()) for _ in range(len(live) - 4)]
    operations += [("settings", "" if expandable else "expandable_segments:True"), ("empty",)]
    for nbytes in (3 * MIB, 5 * MIB, 9 * MIB, 1000, 40 * MIB):
        allocate(nbytes, chance.randrange(3))
        operations.append(("use", live[-1], chance.randrange(3)))
        operations.append(("free", live.pop()))
    operations += [("free", block) for block in live[::2]]
    operations += [("release", (0, 1)), ("empty",), ("release", (7, 0))]
    allocate(70 * MIB, 2)
    return [*operations, *(("free", block) for block in live), ("empty",)]


def heap_program():
    """Return operations like `program`, with larger sizes: reuse, release, garbage collection, out of memory."""
    chance, live, operations = random.Random(6), [], []
    for step in range(160):
        if chance.random() < 0.55 or not live:
            live.append(len(operations))
            size = int(2 ** chance.choice((chance.uniform(0, 20), chance.uniform(20, 27))))
            operations.append(
                ("allocate", size, chance.choice((0, 0, 0, 1)), chance.choice((None, None, None, (7, 0))))
            )
            operations.append(("use", live[-1], chance.randrange(3)))
        else:
            operations.append(("free", live.pop(chance.randrange(len(live)))))
        if step % 3 == 0:
            operations.append(("finish", chance.randrange(3)))
        if step % 60 == 59:
            operations.append(("empty",))
    return [*operations, *(("free", block) for block in live), ("release", (7, 0)), ("empty",)]


PROGRAMS = {name: heap_program() if name == "heaps" else program(name == "expandable") for name in RULES}


@pytest.fixture(autouse=True)
def low_watermark(monkeypatch):
    monkeypatch.setenv("PYTORCH_MPS_LOW_WATERMARK_RATIO", "0.001")


@pytest.fixture(autouse=True)
def no_advice(monkeypatch):
    """Disable the adviser, whose replays take long."""
    monkeypatch.setattr(oom_message, "ADVISERS", [])


@pytest.mark.parametrize("name", RULES)
def test_program_reaches_every_port_call(name):
    scene = Scene(RULES[name])
    scene.run(PROGRAMS[name])
    scene.check()
    names = {call for call, *_ in scene.port.calls}
    assert {"reserve", "release", "signal", "wait", "memory_info"} <= names
    assert name == "heaps" or {"reserve_space", "commit", "decommit"} <= names
    assert {type(error) for error in scene.failed} == {OutOfMemory}
    assert len(PROGRAMS[name]) > 200
    assert min(scene.stat("num_alloc_retries"), scene.stat("num_ooms")) > 1
    scene.end()
    assert scene.port.reserved == 0


FAILURES = [
    DeviceError("the device is gone", code=7, call="call"),
    OutOfMemory("no memory for that", code=12, call="call"),
    KeyboardInterrupt(),
]


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("failure", FAILURES, ids=lambda failure: type(failure).__name__)
def test_no_memory_is_lost_whichever_call_fails(name, failure, monkeypatch):
    monkeypatch.setattr("sys.unraisablehook", lambda _: None)  # a destructor may be interrupted
    monkeypatch.setattr(gc, "collect", lambda: 0)  # there is no cyclic garbage
    n = 0
    while True:
        n += 1
        scene = Scene(RULES[name])
        before = len(scene.port.calls)
        fault = scene.port.fail_call(n, error=failure)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            scene.run(PROGRAMS[name])
            failure.__traceback__ = failure.__context__ = None
            if not fault.hit:
                break
            if isinstance(failure, KeyboardInterrupt) and scene.port.calls[before + n - 1][0] == "release":
                # It is unknown whether the memory was released, and releasing an address twice would be an error.
                scene.lost = scene.size_of(scene.port.calls[before + n - 1][1])
            if isinstance(failure, KeyboardInterrupt) and scene.port.calls[before + n - 1][0] == "release_space":
                del scene.port._spaces._spaces[scene.port.calls[before + n - 1][1]]  # likewise
            scene.check()
            scene.end()
        assert all(issubclass(warning.category, ForebayWarning) for warning in caught)
        assert scene.port.reserved == scene.lost
    assert n > 150


# Threads


@pytest.fixture
def frequent_thread_switches():
    """Switch threads a hundred times as often."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(5e-5)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("frequent_thread_switches")
@pytest.mark.parametrize("rules", ["", "expandable_segments:True", RULES["segments"], "heaps"])
def test_eight_threads_with_private_pools(rules, eight_threads):
    """Threads free each other's blocks, use private pools, empty the cache and change the settings."""
    scene = Scene(rules)
    allocator = scene.allocator
    shared = []

    def work(seed):
        chance, held = random.Random(seed), []
        private = (3, seed)
        allocator.private.create_or_incref(private, use_on_oom=seed % 2 == 0)
        try:
            for step in range(300):
                with allocator.private.use(private) if chance.random() < 0.3 else contextlib.nullcontext():
                    try:
                        block = allocator.allocate(int(2 ** chance.uniform(9, 23)), seed % 3)
                    except OutOfMemory:
                        held.clear()
                        continue
                if chance.random() < 0.3:
                    block.record_stream(chance.randrange(3))
                (shared if chance.random() < 0.2 else held).append(block)
                if len(held) > 4:
                    held.pop(chance.randrange(len(held)))
                if step % 20 == 0:
                    del shared[: len(shared) // 2]
                    allocator.empty()
                if step % 50 == 49:
                    allocator.apply_settings(parse(chance.choice([RULES["segments"], "expandable_segments:True", ""])))
                    allocator.check_invariants()
        finally:
            held.clear()
            block = None
            allocator.release_pool(private)

    eight_threads(work)
    scene.check()
    shared.clear()
    scene.end()
    assert scene.port.reserved == 0
