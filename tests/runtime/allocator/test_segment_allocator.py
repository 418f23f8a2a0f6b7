"""The allocator's ladder over the fake backend, rung by rung, and what it keeps apart while queues use it.

All of it is played in one scene, hence the many lines.
"""

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
from forebay.runtime.allocator.segment_allocator import SegmentAllocator
from forebay.runtime.allocator.statistics import flat
from forebay.snapshot.model import SEGMENT
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
        return flat(self.allocator)[name]

    def calls(self, name: str) -> list[tuple[object, ...]]:
        return [call for call in self.port.calls if call[0] == name]

    def check(self) -> None:
        """The tables hold, and agree with the port; only what is on its way out may be the port's alone."""
        assert self.allocator.broken() is None
        segments = np.frombuffer(self.allocator.tables(trace=False)[0], SEGMENT)
        theirs = dict(self.port._memory._taken)
        ours = dict(zip(segments["address"].tolist(), segments["nbytes"].tolist(), strict=True))
        assert {address: theirs[address] for address in ours} == ours
        assert theirs.keys() - ours.keys() == {address for address, _ in self.allocator.leaving.entries()}
        assert self.stat("reserved_bytes.all.current") == sum(ours.values())


@pytest.fixture
def scene():
    scene = Scene()
    yield scene
    scene.check()


# The rungs


def test_a_free_block_asks_nobody(scene):
    scene.allocate(1000)
    scene.port.calls.clear()
    scene.allocate(1000)
    assert scene.port.calls == []


def test_first_it_grows(scene):
    block = scene.allocate(1000)
    assert scene.calls("reserve") == [("reserve", 2 * MIB)]
    assert (block.size, scene.stat("num_device_alloc"), scene.stat("segment.small_pool.current")) == (1024, 1, 1)


def test_then_it_empties_the_cache(scene):
    del_me = scene.allocate(40 * MIB)
    del del_me
    kept = scene.allocate(30 * MIB, 1)
    assert [call[0] for call in scene.port.calls if call[0] in {"reserve", "release"}] == [
        "reserve", "reserve", "release", "reserve",
    ]  # fmt: skip
    assert (scene.stat("num_alloc_retries"), scene.stat("num_ooms"), scene.stat("num_device_free")) == (1, 0, 1)
    assert kept.queue == 1


def test_then_it_waits_for_blocks_that_other_queues_use(scene):
    block = scene.allocate(60 * MIB)
    block.used_on(1)
    scene.busy(1)
    del block
    scene.allocate(50 * MIB)
    assert scene.queues[1].idle()
    assert scene.stat("num_alloc_retries") == 1


@pytest.mark.parametrize("fine", [True, False])
def test_then_it_looks_at_what_the_waiting_freed(fine):
    """In a segment that stays, as part of it is in use. PyTorch gives up before, and so do we where segments are so."""
    scene = Scene(20 * MIB, fine=fine)
    scene.allocate(20 * MIB)
    kept, block = scene.allocate(2 * MIB), scene.allocate(9 * MIB)
    address = block.address
    block.used_on(1)
    scene.busy(1)
    del block
    if fine:
        assert scene.allocate(15 * MIB).address == address
    else:
        with pytest.raises(OutOfMemory):
            scene.allocate(15 * MIB)
    assert (kept.size, scene.stat("num_ooms")) == (2 * MIB, 0 if fine else 1)
    scene.check()


def test_at_last_it_gives_up(scene):
    kept = scene.allocate(60 * MIB)
    with pytest.raises(OutOfMemory):
        scene.allocate(50 * MIB)
    assert kept.size == 60 * MIB
    assert (scene.stat("num_alloc_retries"), scene.stat("num_ooms")) == (1, 1)
    scene.allocate(MIB)  # and goes on


def test_a_segment_with_a_block_in_use_stays(scene):
    first, second = scene.allocate(30 * MIB), scene.allocate(1000)
    scene.allocate(30 * MIB)
    del first
    scene.allocator.empty()
    assert scene.stat("reserved_bytes.all.current") == 2 * MIB
    assert second.size == 1024


def test_other_failures_than_a_full_device_are_not_remedied(scene):
    scene.port.fail("reserve")
    with pytest.raises(DeviceError, match="scripted") as caught:
        scene.allocate(1000)
    assert not isinstance(caught.value, OutOfMemory)
    assert len(scene.calls("reserve")) == 1
    assert (scene.stat("num_ooms"), scene.stat("num_alloc_retries")) == (0, 0)


@pytest.mark.parametrize("failures", [1, 2, 3])
def test_a_device_that_is_full_for_a_while(scene, failures):
    for _ in range(failures):
        scene.port.fail("reserve", error=OutOfMemory("full"))
    for _ in range(2):
        with contextlib.suppress(OutOfMemory):
            scene.allocate(1000)
    ooms = failures // 2
    assert (scene.stat("num_ooms"), scene.stat("num_alloc_retries")) == (ooms, (failures + 1) // 2)


def test_new_memory_is_for_who_asked_for_it(scene):
    """A signal handler wants the same at the worst moment: both get what they asked for."""
    others = []
    reserve = scene.port.reserve

    def reserve_and_be_interrupted(nbytes):
        address = reserve(nbytes)
        if len(scene.calls("reserve")) < 3:
            others.append(scene.allocate(20 * MIB))
        return address

    scene.port.reserve = reserve_and_be_interrupted
    block = scene.allocate(20 * MIB)
    assert len({block.address, *(other.address for other in others)}) == 3
    assert (scene.stat("num_device_alloc"), scene.stat("num_alloc_retries")) == (3, 0)
    del scene.port.reserve


def scenario(scene: Scene) -> None:
    """Every rung, and cross-queue frees."""
    kept = [scene.allocate(1000 * i) for i in range(1, 20)]
    large = scene.allocate(30 * MIB)
    large.used_on(1)
    large.used_on(2)
    scene.busy(1)
    del large
    medium = scene.allocate(5 * MIB, 1)
    medium.used_on(0)
    del kept[::2], medium
    scene.busy(2)
    scene.allocate(40 * MIB)
    with contextlib.suppress(OutOfMemory):
        scene.allocate(70 * MIB)
    scene.allocator.empty()


def test_whatever_call_fails_nothing_is_lost():
    """Each call to the port fails once, in one run each; afterwards everything can be had again."""
    n, seen = 0, set()
    while True:
        n += 1
        scene = Scene()
        fault = scene.port.fail_call(n)
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            try:
                scenario(scene)
            except DeviceError as error:
                seen.add((type(error), str(error)))
            fault.error.__traceback__ = None  # it knows the scenario's frame, and so the blocks
            scene.check()
            gc.collect()
            scene.check()
            for _ in range(2):
                with contextlib.suppress(DeviceError):  # the failure may come as late as here
                    scene.allocator.empty()
        assert all(issubclass(warning.category, ForebayWarning) for warning in told)
        assert scene.stat("reserved_bytes.all.current") == scene.stat("active.all.current") == 0
        assert scene.port._reserved == 0
        if not fault.hit:
            break
    assert n > 20
    assert seen == {(DeviceError, "fake:0: scripted failure of call")}


@pytest.mark.parametrize("kind", [OutOfMemory, DeviceError])
def test_whichever_reserve_fails(kind):
    for n in range(1, 100):
        scene = Scene()
        fault = scene.port.fail("reserve", after=n - 1, error=kind("scripted"))
        with contextlib.suppress(DeviceError):
            scenario(scene)
        scene.check()
        if not fault.hit:
            break
    assert n > 5


def test_a_segment_that_cannot_be_adopted_goes_back(scene):
    scene.port.reserve = lambda nbytes: 12345  # not aligned
    released = []
    scene.port.release = released.append
    with pytest.raises(ValueError, match="multiples of"):
        scene.allocate(1000)
    assert released == [12345]
    del scene.port.reserve, scene.port.release


# Other queues


def test_a_block_used_elsewhere_waits_for_that_queue(scene):
    """record_stream: given back early, handed out again only when the other queue has passed the mark."""
    block = scene.allocate(512)
    address = block.address
    scene.busy(1, 2)
    block.used_on(1)
    del block
    assert scene.allocate(512).address != address
    scene.port.clock.advance(scene.port.command_ns)  # one of the two
    assert scene.allocate(512).address != address
    scene.busy(1)  # behind the mark
    scene.port.clock.advance(scene.port.command_ns)
    assert scene.allocate(512).address == address
    assert not scene.queues[1].idle()


def test_a_block_used_by_two_queues_waits_for_both(scene):
    for first, last in ((1, 2), (2, 1)):
        block = scene.allocate(512)
        address = block.address
        scene.busy(1)
        scene.busy(2)
        block.used_on(1)
        block.used_on(2)
        del block
        scene.queues[first].finish()
        other = scene.allocate(512)
        assert other.address != address
        scene.queues[last].finish()
        assert scene.allocate(512).address == address
        del other


def test_a_slow_queue_holds_up_only_its_own_blocks(scene):
    slow, quick = scene.allocate(512), scene.allocate(512)
    slow.used_on(1)
    quick.used_on(2)
    address = quick.address
    scene.busy(1)
    del slow, quick
    scene.queues[2].finish()
    assert scene.allocate(512).address == address


def test_its_own_queue_needs_no_waiting(scene):
    block = scene.allocate(512)
    address = block.address
    scene.busy(0)
    block.used_on(0)
    del block
    assert scene.allocate(512).address == address
    assert scene.calls("signal") == []


def test_what_waits_is_active_and_not_allocated(scene):
    block = scene.allocate(512)
    block.used_on(1)
    scene.busy(1)
    del block
    assert (scene.stat("allocation.all.current"), scene.stat("active.all.current")) == (0, 1)
    scene.queues[1].finish()
    scene.allocator.empty()
    assert (scene.stat("active.all.current"), scene.stat("reserved_bytes.all.current")) == (0, 0)


def test_a_queue_that_nobody_knows_is_not_waited_for(scene):
    block = scene.allocate(512)
    address = block.address
    block.used_on(77)
    del block
    assert scene.allocate(512).address == address


def test_a_mark_that_could_not_be_set_is_set_later(scene):
    block = scene.allocate(512)
    address = block.address
    block.used_on(1)
    scene.busy(1)
    scene.port.fail("signal")
    with pytest.warns(ForebayWarning, match="fake:0: blocks given back wait"):
        del block
    assert scene.allocate(512).address != address
    scene.queues[1].finish()
    assert scene.allocate(512).address == address


def test_a_queue_closed_at_exit_is_not_waited_for(scene):
    block = scene.allocate(512)
    address = block.address
    block.used_on(1)
    scene.queues[1].close()
    del block
    assert scene.allocate(512).address == address


def test_many_waiting_blocks_are_not_all_looked_at(scene):
    """An allocation asks each queue about its oldest block only."""
    blocks = [scene.allocate(512) for _ in range(1000)]
    for block in blocks:
        block.used_on(1)
    scene.busy(1)
    del block, blocks
    asked = 0
    reached = type(scene.queues[1]).reached

    class Counting(type(scene.queues[1])):
        def reached(self):
            nonlocal asked
            asked += 1
            return reached(self)

    scene.queues[1].__class__ = Counting
    scene.allocate(512)
    assert asked == 1


# Memory leaves only when nobody can be at work in it


def test_memory_is_not_released_under_queued_work(scene):
    """A block is free when its queue will come to it, not when its queue is done with it."""
    block = scene.allocate(20 * MIB, 1)
    scene.queues[1].fill(block.address, 1, 20 * MIB)
    del block
    scene.allocator.empty()
    assert scene.queues[1].idle()
    scene.queues[1].wait(0)  # and it did not fail


def test_emptying_an_empty_cache_waits_for_nobody(scene):
    kept = scene.allocate(512)
    scene.busy(1)
    scene.allocator.empty()
    assert not scene.queues[1].idle()
    assert kept.size == 512


def test_failed_work_that_the_ladder_met_is_told_by_synchronize(fake):
    stream = forebay.Stream("fake:0")
    block = forebay.allocate(60 * MIB, "fake:0")
    block.used_on(stream.handle)
    stream.queue.call(lambda: 1 / 0)
    del block
    forebay.allocate(50 * MIB, "fake:0")  # waits for the stream
    assert stream.query()
    with pytest.raises(DeviceError, match="ZeroDivisionError"):
        stream.synchronize()
    stream.synchronize()
    forebay.synchronize("fake:0")


def test_a_queues_own_thread_cannot_wait_for_itself():
    """A callable in a queue asks for the memory that work behind it in the same queue still uses."""
    stream = forebay.Stream("host:0")
    allocator = stream.opened.allocator
    block = forebay.allocate(30 * MIB, "host:0")
    block.used_on(stream.handle)
    gate, failures = threading.Event(), []

    def inside():
        gate.wait(30)
        try:
            allocator.empty()
        except BaseException as error:  # noqa: BLE001 -- told to the test
            failures.append(error)

    stream.queue.call(inside)
    del block
    gate.set()
    stream.synchronize()
    assert failures == []
    assert allocator.broken() is None
    allocator.empty()
    assert allocator.leaving.entries() == ()


# Interruptions


class Interrupted(BaseException):
    pass


@pytest.mark.parametrize("call", ["reserve", "release", "signal", "wait", "memory_info"])
def test_an_interruption_in_the_ladder_loses_nothing(call, monkeypatch):
    monkeypatch.setattr("sys.unraisablehook", lambda _: None)  # a destructor may be what is interrupted
    for after in range(30):
        scene = Scene()
        fault = scene.port.fail(call, after=after, error=Interrupted())
        with contextlib.suppress(Interrupted), warnings.catch_warnings():
            scenario(scene)
        fault.error.__traceback__ = None  # it knows the scenario's frame, and so the blocks
        if call == "release":  # before it took effect: only the port knows of that one
            assert scene.allocator.broken() is None
        else:
            scene.check()
            gc.collect()
            scene.allocator.empty()
            assert scene.stat("reserved_bytes.all.current") == 0
            assert scene.port._reserved == 0
        if not fault.hit:
            break
    assert after > 0


def test_ctrl_c_while_the_ladder_waits():
    forebay.memory.empty_cache("host:0")
    stream, gate = forebay.Stream("host:0"), threading.Event()
    block = forebay.allocate(1000, "host:0")
    block.used_on(stream.handle)
    stream.queue.call(lambda: gate.wait(30))
    del block
    timer = threading.Timer(0.1, signal.raise_signal, [signal.SIGINT])
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        forebay.memory.empty_cache("host:0")
    timer.join()
    assert stream.opened.allocator.broken() is None
    assert forebay.memory.memory_stats("host:0")["active.all.current"] == 1
    gate.set()
    forebay.memory.empty_cache("host:0")
    assert forebay.memory.memory_stats("host:0")["active.all.current"] == 0


def test_ctrl_c_while_synchronizing():
    stream, gate = forebay.Stream("host:0"), threading.Event()
    stream.queue.call(lambda: gate.wait(30))
    timer = threading.Timer(0.1, signal.raise_signal, [signal.SIGINT])
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        stream.synchronize()
    timer.join()
    gate.set()
    stream.synchronize()


def test_a_signal_handler_may_allocate(scene):
    """It comes between any two steps of the main thread."""
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
            block.used_on(1)
            del block
            scene.allocator.empty()
    finally:
        signal.signal(signal.SIGALRM, signal.SIG_IGN)
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_destructors_in_the_middle_of_the_ladder(scene):
    """The collector may free blocks of other queues while the ladder runs."""

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
        node.block.used_on((i + 1) % 3)
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
def test_sizes_beyond_any_device(nbytes):
    with pytest.raises(OutOfMemory, match=r"^host out of memory\. Tried to allocate more than 1EB memory\.$") as caught:
        forebay.allocate(nbytes, "host:0")
    assert caught.value.wanted == nbytes


@pytest.mark.parametrize(("nbytes", "kind"), [(0, ValueError), (-1, ValueError), (1.5, TypeError), ("1", TypeError)])
def test_what_is_no_size(nbytes, kind):
    with pytest.raises(kind):
        forebay.allocate(nbytes, "host:0")


def test_a_block_says_what_it_is():
    block = forebay.allocate(1000, "host:0")
    assert (block.nbytes, block.size, block.queue, block.freed) == (1000, 1024, 0, False)
    block.free()
    assert block.freed
    with pytest.raises(ValueError, match="given back already"):
        block.used_on(1)


# Threads


def test_eight_threads(scene, eight_threads):
    """Different sizes on different queues, freed across queues and by other threads."""
    handed = []

    def run(seed):
        rng = np.random.default_rng(seed)
        held = []
        for _ in range(400):
            try:
                block = scene.allocate(int(rng.integers(1, 3 * MIB)), int(rng.integers(3)))
            except OutOfMemory:
                return
            if rng.random() < 0.5:
                block.used_on(int(rng.integers(3)))
                scene.busy(int(rng.integers(3)))
            held.append(block)
            del block
            if rng.random() < 0.2:
                handed.append(held.pop())
            if rng.random() < 0.2:
                del handed[:1]
            if len(held) > 3:
                del held[0]
            if rng.random() < 0.02:
                scene.allocator.empty()

    eight_threads(run)
    handed.clear()
    scene.check()
    scene.allocator.empty()
    assert scene.stat("reserved_bytes.all.current") == 0


@pytest.mark.parametrize("used", [(), (1,), (2, 1), (1, 2)])
def test_memory_on_its_way_out_is_not_missing(used):
    """One thread has emptied the cache and waits for a queue; the other needs that memory now."""
    scene = Scene()
    block = scene.allocate(60 * MIB)
    for queue in used:
        block.used_on(queue)
        scene.busy(queue)
    del block
    waiting, go_on = threading.Event(), threading.Event()
    wait = scene.queues[1].wait

    def slow_wait(tick):
        if threading.current_thread() is emptying:
            waiting.set()
            assert go_on.wait(30)
        wait(tick)

    scene.queues[1].wait = slow_wait
    scene.busy(1)
    emptying = threading.Thread(target=scene.allocator.empty)
    emptying.start()
    assert waiting.wait(30)
    block = scene.allocate(50 * MIB)
    go_on.set()
    emptying.join()
    assert (block.size, scene.stat("num_ooms"), scene.stat("num_device_free")) == (50 * MIB, 0, 1)
    scene.check()


def test_memory_that_is_being_released_is_waited_for():
    scene = Scene()
    scene.allocate(60 * MIB)
    releasing, go_on = threading.Event(), threading.Event()
    release = scene.port.release

    def slow_release(address):
        releasing.set()
        assert go_on.wait(30)
        release(address)

    scene.port.release = slow_release
    emptying = threading.Thread(target=scene.allocator.empty)
    emptying.start()
    assert releasing.wait(30)
    threading.Timer(0.05, go_on.set).start()
    block = scene.allocate(50 * MIB)
    emptying.join()
    assert (block.size, scene.stat("num_ooms")) == (50 * MIB, 0)
    del scene.port.release
    scene.check()


def test_a_closed_port_tells(scene):
    other = Scene()
    other.port.close()
    with pytest.raises(WrongState, match="was closed"):
        other.allocate(1000)
