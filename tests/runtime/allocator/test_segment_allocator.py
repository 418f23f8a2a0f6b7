"""The segment allocator over the fake backend: recovery steps, deferred frees, interruptions and threads."""

from __future__ import annotations

import contextlib
import gc
import signal
import threading
import warnings
from dataclasses import replace

import numpy as np
import pytest

import forebay
from forebay import DeviceError, ForebayWarning, OutOfMemory
from forebay.errors import WrongState
from forebay.records.model import SEGMENT
from forebay.runtime.allocator.segment_allocator import SegmentAllocator
from forebay.runtime.allocator.statistics import flat_stats
from forebay.testing.fake import FakePort

MIB = 1 << 20
pytestmark = pytest.mark.usefixtures("clean")


class Scene:
    """A fake port of `total` bytes, an allocator over it, and three queues: 0, 1, 2."""

    def __init__(self, total: int = 64 * MIB, *, fine: bool = False) -> None:
        self.port = FakePort(total)
        self.port.props = replace(self.port.props, fine_segments=fine)
        self.queues = {handle: self.port.queue() for handle in range(3)}
        self.allocator = SegmentAllocator("fake:0", self.port, self.queues)

    def allocate(self, nbytes: int, queue: int = 0):
        return self.allocator.allocate(nbytes, queue)

    def busy(self, queue: int, n: int = 1) -> None:
        for _ in range(n):
            self.queues[queue].call(lambda: None)

    def stat(self, name: str) -> int:
        return flat_stats(self.allocator)[name]

    def calls(self, name: str) -> list[tuple[object, ...]]:
        return [call for call in self.port.calls if call[0] == name]

    def check(self) -> None:
        """Check the tables, and that the port has just the memory of the pool and of pending releases."""
        assert self.allocator.check_invariants() is None
        segments = np.frombuffer(self.allocator.tables(trace=False)[0], SEGMENT)
        port_segments = dict(self.port._memory._taken)
        pool_segments = dict(zip(segments["address"].tolist(), segments["nbytes"].tolist(), strict=True))
        assert {address: port_segments[address] for address in pool_segments} == pool_segments
        assert port_segments.keys() - pool_segments.keys() == {
            address for address, _ in self.allocator.pending_releases.entries()
        }
        assert self.stat("reserved_bytes.all.current") == sum(pool_segments.values())


@pytest.fixture
def scene():
    scene = Scene()
    yield scene
    scene.check()


# Recovery steps


def test_cached_block_needs_no_port_call(scene):
    scene.allocate(1000)
    scene.port.calls.clear()
    scene.allocate(1000)
    assert scene.port.calls == []


def test_first_a_segment_is_reserved(scene):
    block = scene.allocate(1000)
    assert scene.calls("reserve") == [("reserve", 2 * MIB)]
    assert (block.size, scene.stat("num_device_alloc"), scene.stat("segment.small_pool.current")) == (1024, 1, 1)


def test_then_the_cache_is_emptied(scene):
    scene.allocate(40 * MIB)
    kept = scene.allocate(30 * MIB, 1)
    assert [call[0] for call in scene.port.calls if call[0] in {"reserve", "release"}] == [
        "reserve", "reserve", "release", "reserve",
    ]  # fmt: skip
    assert (scene.stat("num_alloc_retries"), scene.stat("num_ooms"), scene.stat("num_device_free")) == (1, 0, 1)
    assert kept.queue == 1


def test_then_pending_frees_are_waited_for(scene):
    block = scene.allocate(60 * MIB)
    block.record_stream(1)
    scene.busy(1)
    del block
    scene.allocate(50 * MIB)
    assert scene.queues[1].idle()
    assert scene.stat("num_alloc_retries") == 1


@pytest.mark.parametrize("fine", [True, False])
def test_then_blocks_freed_by_waiting_are_used(fine):
    """The block is in a segment in use. PyTorch fails here, as does forebay on devices without fine segments."""
    scene = Scene(20 * MIB, fine=fine)
    scene.allocate(20 * MIB)
    kept, block = scene.allocate(2 * MIB), scene.allocate(9 * MIB)
    address = block.address
    block.record_stream(1)
    scene.busy(1)
    del block
    if fine:
        assert scene.allocate(15 * MIB).address == address
    else:
        with pytest.raises(OutOfMemory):
            scene.allocate(15 * MIB)
    assert (kept.size, scene.stat("num_ooms")) == (2 * MIB, 0 if fine else 1)
    scene.check()


def test_finally_out_of_memory_is_raised(scene):
    kept = scene.allocate(60 * MIB)
    with pytest.raises(OutOfMemory):
        scene.allocate(50 * MIB)
    assert kept.size == 60 * MIB
    assert (scene.stat("num_alloc_retries"), scene.stat("num_ooms")) == (1, 1)
    scene.allocate(MIB)


def test_segment_with_a_live_block_is_kept(scene):
    first, second = scene.allocate(30 * MIB), scene.allocate(1000)
    scene.allocate(30 * MIB)
    del first
    scene.allocator.empty()
    assert scene.stat("reserved_bytes.all.current") == 2 * MIB
    assert second.size == 1024


def test_other_device_errors_are_raised_without_recovery(scene):
    scene.port.fail("reserve")
    with pytest.raises(DeviceError, match="scripted") as caught:
        scene.allocate(1000)
    assert not isinstance(caught.value, OutOfMemory)
    assert len(scene.calls("reserve")) == 1
    assert (scene.stat("num_ooms"), scene.stat("num_alloc_retries")) == (0, 0)


@pytest.mark.parametrize("failures", [1, 2, 3])
def test_allocation_recovers_from_temporary_out_of_memory(scene, failures):
    for _ in range(failures):
        scene.port.fail("reserve", error=OutOfMemory("full"))
    for _ in range(2):
        with contextlib.suppress(OutOfMemory):
            scene.allocate(1000)
    ooms = failures // 2
    assert (scene.stat("num_ooms"), scene.stat("num_alloc_retries")) == (ooms, (failures + 1) // 2)


def test_new_segment_serves_the_request_that_reserved_it(scene):
    """A signal handler allocates the same size right after `reserve`: both get memory of their own."""
    others = []
    reserve = scene.port.reserve

    def interrupted_reserve(nbytes):
        address = reserve(nbytes)
        if len(scene.calls("reserve")) < 3:
            others.append(scene.allocate(20 * MIB))
        return address

    scene.port.reserve = interrupted_reserve
    block = scene.allocate(20 * MIB)
    assert len({block.address, *(other.address for other in others)}) == 3
    assert (scene.stat("num_device_alloc"), scene.stat("num_alloc_retries")) == (3, 0)
    del scene.port.reserve


def scenario(scene: Scene) -> None:
    """Run every recovery step and free blocks that other queues use."""
    kept = [scene.allocate(1000 * i) for i in range(1, 20)]
    large = scene.allocate(30 * MIB)
    large.record_stream(1)
    large.record_stream(2)
    scene.busy(1)
    del large
    medium = scene.allocate(5 * MIB, 1)
    medium.record_stream(0)
    del kept[::2], medium
    scene.busy(2)
    scene.allocate(40 * MIB)
    with contextlib.suppress(OutOfMemory):
        scene.allocate(70 * MIB)
    scene.allocator.empty()


@pytest.mark.slow
def test_no_memory_is_lost_whichever_call_fails():
    """Each call to the port fails in a run of its own; afterwards all memory can be released."""
    n, seen = 0, set()
    while True:
        n += 1
        scene = Scene()
        fault = scene.port.fail_call(n)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                scenario(scene)
            except DeviceError as error:
                seen.add((type(error), str(error)))
            fault.error.__traceback__ = None  # it references the frame of `scenario` and thereby the blocks
            scene.check()
            gc.collect()
            scene.check()
            for _ in range(2):
                with contextlib.suppress(DeviceError):  # the failing call may be this one
                    scene.allocator.empty()
        assert all(issubclass(warning.category, ForebayWarning) for warning in caught)
        assert scene.stat("reserved_bytes.all.current") == scene.stat("active.all.current") == 0
        assert scene.port._reserved == 0
        if not fault.hit:
            break
    assert n > 20
    assert seen == {(DeviceError, "fake:0: scripted failure of call")}


@pytest.mark.parametrize("kind", [OutOfMemory, DeviceError])
def test_no_memory_is_lost_whichever_reserve_fails(kind):
    for n in range(1, 100):
        scene = Scene()
        fault = scene.port.fail("reserve", after=n - 1, error=kind("scripted"))
        with contextlib.suppress(DeviceError):
            scenario(scene)
        scene.check()
        if not fault.hit:
            break
    assert n > 5


def test_segment_that_cannot_be_adopted_is_released(scene):
    scene.port.reserve = lambda nbytes: 12345  # not aligned
    released = []
    scene.port.release = released.append
    with pytest.raises(ValueError, match="multiples of"):
        scene.allocate(1000)
    assert released == [12345]
    del scene.port.reserve, scene.port.release


# Other queues


def test_block_used_by_another_queue_waits_for_it(scene):
    """Like `record_stream`: the block is reused only after the other queue has reached the tick of the free."""
    block = scene.allocate(512)
    address = block.address
    scene.busy(1, 2)
    block.record_stream(1)
    del block
    assert scene.allocate(512).address != address
    scene.port.clock.advance(scene.port.command_ns)  # completes one of the two
    assert scene.allocate(512).address != address
    scene.busy(1)  # after the tick of the free
    scene.port.clock.advance(scene.port.command_ns)
    assert scene.allocate(512).address == address
    assert not scene.queues[1].idle()


def test_block_used_by_two_queues_waits_for_both(scene):
    for first, last in ((1, 2), (2, 1)):
        block = scene.allocate(512)
        address = block.address
        scene.busy(1)
        scene.busy(2)
        block.record_stream(1)
        block.record_stream(2)
        del block
        scene.queues[first].finish()
        other = scene.allocate(512)
        assert other.address != address
        scene.queues[last].finish()
        assert scene.allocate(512).address == address
        del other


def test_slow_queue_delays_only_its_own_blocks(scene):
    slow, quick = scene.allocate(512), scene.allocate(512)
    slow.record_stream(1)
    quick.record_stream(2)
    address = quick.address
    scene.busy(1)
    del slow, quick
    scene.queues[2].finish()
    assert scene.allocate(512).address == address


def test_block_does_not_wait_for_its_own_queue(scene):
    block = scene.allocate(512)
    address = block.address
    scene.busy(0)
    block.record_stream(0)
    del block
    assert scene.allocate(512).address == address
    assert scene.calls("signal") == []


def test_pending_block_is_active_and_not_allocated(scene):
    block = scene.allocate(512)
    block.record_stream(1)
    scene.busy(1)
    del block
    assert (scene.stat("allocation.all.current"), scene.stat("active.all.current")) == (0, 1)
    scene.queues[1].finish()
    scene.allocator.empty()
    assert (scene.stat("active.all.current"), scene.stat("reserved_bytes.all.current")) == (0, 0)


def test_unknown_queue_is_not_waited_for(scene):
    block = scene.allocate(512)
    address = block.address
    block.record_stream(77)
    del block
    assert scene.allocate(512).address == address


def test_failed_signal_is_retried(scene):
    block = scene.allocate(512)
    address = block.address
    block.record_stream(1)
    scene.busy(1)
    scene.port.fail("signal")
    with pytest.warns(ForebayWarning, match="fake:0: freed blocks stay pending"):
        del block
    assert scene.allocate(512).address != address
    scene.queues[1].finish()
    assert scene.allocate(512).address == address


def test_closed_queue_is_not_waited_for(scene):
    block = scene.allocate(512)
    address = block.address
    block.record_stream(1)
    scene.queues[1].close()
    del block
    assert scene.allocate(512).address == address


def test_only_the_oldest_pending_block_of_a_queue_is_polled(scene):
    """An allocation polls each queue once, for its oldest block."""
    blocks = [scene.allocate(512) for _ in range(1000)]
    for block in blocks:
        block.record_stream(1)
    scene.busy(1)
    del block, blocks
    polls = 0
    reached = type(scene.queues[1]).reached

    class Counting(type(scene.queues[1])):
        def reached(self):
            nonlocal polls
            polls += 1
            return reached(self)

    scene.queues[1].__class__ = Counting
    scene.allocate(512)
    assert polls == 1


# Releasing memory after queued work


def test_memory_is_released_after_queued_work(scene):
    """A block is free in the order of its queue, so earlier work on it may still be queued."""
    block = scene.allocate(20 * MIB, 1)
    scene.queues[1].fill(block.address, 1, 20 * MIB)
    del block
    scene.allocator.empty()
    assert scene.queues[1].idle()
    scene.queues[1].wait(0)  # raises if the work failed


def test_emptying_an_empty_cache_does_not_wait(scene):
    kept = scene.allocate(512)
    scene.busy(1)
    scene.allocator.empty()
    assert not scene.queues[1].idle()
    assert kept.size == 512


def test_work_failure_found_during_recovery_is_raised_by_synchronize(fake):
    stream = forebay.Stream("fake:0")
    block = forebay.allocate(60 * MIB, "fake:0")
    block.record_stream(stream.handle)
    stream.queue.call(lambda: 1 / 0)
    del block
    forebay.allocate(50 * MIB, "fake:0")  # waits for the stream
    assert stream.query()
    with pytest.raises(DeviceError, match="ZeroDivisionError"):
        stream.synchronize()
    stream.synchronize()
    forebay.synchronize("fake:0")


def test_queue_thread_does_not_wait_for_its_own_queue():
    """A queued function empties the cache while a block waits for its own queue."""
    stream = forebay.Stream("cpu")
    allocator = stream.opened.allocator
    block = forebay.allocate(30 * MIB, "cpu")
    block.record_stream(stream.handle)
    gate, failures = threading.Event(), []

    def inside():
        gate.wait(30)
        try:
            allocator.empty()
        except BaseException as error:  # noqa: BLE001 -- the test checks it
            failures.append(error)

    stream.queue.call(inside)
    del block
    gate.set()
    stream.synchronize()
    assert failures == []
    assert allocator.check_invariants() is None
    allocator.empty()
    assert allocator.pending_releases.entries() == ()


# Interruptions


class Interrupted(BaseException):
    pass


@pytest.mark.slow
@pytest.mark.parametrize("call", ["reserve", "release", "signal", "wait", "memory_info"])
def test_no_memory_is_lost_by_an_interruption(call, monkeypatch):
    monkeypatch.setattr("sys.unraisablehook", lambda _: None)  # a destructor may be interrupted
    for after in range(30):
        scene = Scene()
        fault = scene.port.fail(call, after=after, error=Interrupted())
        with contextlib.suppress(Interrupted), warnings.catch_warnings():
            scenario(scene)
        fault.error.__traceback__ = None  # it references the frame of `scenario` and thereby the blocks
        if call == "release":  # the interrupted segment is still reserved, in no table
            assert scene.allocator.check_invariants() is None
        else:
            scene.check()
            gc.collect()
            scene.allocator.empty()
            assert scene.stat("reserved_bytes.all.current") == 0
            assert scene.port._reserved == 0
        if not fault.hit:
            break
    assert after > 0


def test_keyboard_interrupt_while_emptying_the_cache():
    forebay.memory.empty_cache("cpu")
    stream, gate = forebay.Stream("cpu"), threading.Event()
    block = forebay.allocate(1000, "cpu")
    block.record_stream(stream.handle)
    stream.queue.call(lambda: gate.wait(30))
    del block
    timer = threading.Timer(0.1, signal.raise_signal, [signal.SIGINT])
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        forebay.memory.empty_cache("cpu")
    timer.join()
    assert stream.opened.allocator.check_invariants() is None
    assert forebay.memory.memory_stats("cpu")["active.all.current"] == 1
    gate.set()
    forebay.memory.empty_cache("cpu")
    assert forebay.memory.memory_stats("cpu")["active.all.current"] == 0


def test_keyboard_interrupt_while_synchronizing():
    stream, gate = forebay.Stream("cpu"), threading.Event()
    stream.queue.call(lambda: gate.wait(30))
    timer = threading.Timer(0.1, signal.raise_signal, [signal.SIGINT])
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        stream.synchronize()
    timer.join()
    gate.set()
    stream.synchronize()


def test_signal_handler_may_allocate(scene):
    """The handler runs between any two steps of the main thread."""
    handled = 0

    def handler(*_):
        nonlocal handled
        handled += 1
        scene.allocate(3 * MIB)
        signal.setitimer(signal.ITIMER_REAL, 0.0005)

    before = signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, 0.0005)
    try:
        while handled < 100:
            block = scene.allocate(25 * MIB)
            block.record_stream(1)
            del block
            scene.allocator.empty()
    finally:
        signal.signal(signal.SIGALRM, signal.SIG_IGN)
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@pytest.mark.slow
def test_destructors_may_free_blocks_during_recovery(scene):
    """The garbage collector may free blocks that other queues use during the recovery steps."""

    class Node:
        def __init__(self, block):
            self.block, self.me = block, self

    reserve = scene.port.reserve

    def collecting_reserve(nbytes):
        gc.collect()
        return reserve(nbytes)

    scene.port.reserve = collecting_reserve
    for i in range(50):
        node = Node(scene.allocate(5 * MIB, i % 3))
        node.block.record_stream((i + 1) % 3)
        scene.busy((i + 1) % 3)
        del node
        scene.allocate(25 * MIB)
    gc.collect()
    scene.allocator.empty()
    assert scene.stat("active.all.current") == 0
    assert scene.stat("num_ooms") == 0
    del scene.port.reserve


# Sizes


@pytest.mark.parametrize("nbytes", [1 << 60, (1 << 60) + 1, (1 << 63) - 1, 1 << 63, 1 << 100])
def test_size_beyond_any_device_raises_out_of_memory(nbytes):
    with pytest.raises(OutOfMemory, match=r"^cpu out of memory\. Tried to allocate more than 1EB memory\.$") as caught:
        forebay.allocate(nbytes, "cpu")
    assert caught.value.wanted == nbytes


@pytest.mark.parametrize(("nbytes", "kind"), [(0, ValueError), (-1, ValueError), (1.5, TypeError), ("1", TypeError)])
def test_invalid_size_is_rejected(nbytes, kind):
    with pytest.raises(kind):
        forebay.allocate(nbytes, "cpu")


def test_block_attributes():
    block = forebay.allocate(1000, "cpu")
    assert (block.nbytes, block.size, block.queue, block.freed) == (1000, 1024, 0, False)
    block.free()
    assert block.freed
    with pytest.raises(ValueError, match="already freed"):
        block.record_stream(1)


# Threads


def test_eight_threads_share_blocks(scene, eight_threads):
    """Threads allocate different sizes on different queues and free each other's blocks."""
    shared = []

    def run(seed):
        rng = np.random.default_rng(seed)
        held = []
        for _ in range(400):
            try:
                block = scene.allocate(int(rng.integers(1, 3 * MIB)), int(rng.integers(3)))
            except OutOfMemory:
                return
            if rng.random() < 0.5:
                block.record_stream(int(rng.integers(3)))
                scene.busy(int(rng.integers(3)))
            held.append(block)
            del block
            if rng.random() < 0.2:
                shared.append(held.pop())
            if rng.random() < 0.2:
                del shared[:1]
            if len(held) > 3:
                del held[0]
            if rng.random() < 0.02:
                scene.allocator.empty()

    eight_threads(run)
    shared.clear()
    scene.check()
    scene.allocator.empty()
    assert scene.stat("reserved_bytes.all.current") == 0


@pytest.mark.parametrize("used", [(), (1,), (2, 1), (1, 2)])
def test_memory_pending_release_is_available_to_other_threads(used):
    """One thread empties the cache and waits for a queue while another allocates."""
    scene = Scene()
    block = scene.allocate(60 * MIB)
    for queue in used:
        block.record_stream(queue)
        scene.busy(queue)
    del block
    waiting, proceed = threading.Event(), threading.Event()
    wait = scene.queues[1].wait

    def slow_wait(tick):
        if threading.current_thread() is emptying:
            waiting.set()
            assert proceed.wait(30)
        wait(tick)

    scene.queues[1].wait = slow_wait
    scene.busy(1)
    emptying = threading.Thread(target=scene.allocator.empty)
    emptying.start()
    assert waiting.wait(30)
    block = scene.allocate(50 * MIB)
    proceed.set()
    emptying.join()
    assert (block.size, scene.stat("num_ooms"), scene.stat("num_device_free")) == (50 * MIB, 0, 1)
    scene.check()


def test_allocation_waits_for_memory_being_released():
    scene = Scene()
    scene.allocate(60 * MIB)
    releasing, proceed = threading.Event(), threading.Event()
    release = scene.port.release

    def slow_release(address):
        releasing.set()
        assert proceed.wait(30)
        release(address)

    scene.port.release = slow_release
    emptying = threading.Thread(target=scene.allocator.empty)
    emptying.start()
    assert releasing.wait(30)
    threading.Timer(0.05, proceed.set).start()
    block = scene.allocate(50 * MIB)
    emptying.join()
    assert (block.size, scene.stat("num_ooms")) == (50 * MIB, 0)
    del scene.port.release
    scene.check()


def test_closed_port_raises_wrong_state(scene):
    other = Scene()
    other.port.close()
    with pytest.raises(WrongState, match="was closed"):
        other.allocate(1000)
