"""The allocator with `expandable_segments:True` over growable ports: the fake one and the CPU device's."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import random
import signal
import warnings

import numpy as np
import pytest

from forebay import DeviceError, ForebayWarning, OutOfMemory
from forebay.backends.host.driver import HostPort
from forebay.records.model import SEGMENT
from forebay.runtime.allocator.segment_allocator import SegmentAllocator
from forebay.runtime.allocator.statistics import flat_stats
from forebay.runtime.settings.configuration import parse
from forebay.spi import DeviceProps
from forebay.testing.conformance.helpers import Gate, run_in_child
from forebay.testing.fake import FakePort

MIB = 1 << 20
TOTAL = 64 * MIB
PAGE = 2 * MIB


class Scene:
    """An allocator with expandable segments over a port, with queues 0, 1 and 2."""

    def __init__(self, port) -> None:
        self.port = port
        self.queues = {handle: port.queue() for handle in range(3)}
        self.allocator = SegmentAllocator("test:0", port, self.queues, settings=parse("expandable_segments:True"))

    def allocate(self, nbytes: int, queue: int = 0):
        return self.allocator.allocate(nbytes, queue)

    def stat(self, name: str) -> int:
        return flat_stats(self.allocator)[name]

    @property
    def reserved(self) -> int:
        return self.stat("reserved_bytes.all.current")

    @property
    def used(self) -> int:
        """Return the bytes reserved according to the port."""
        return self.port.reserved

    def segments(self) -> list[int]:
        return np.frombuffer(self.allocator.tables(trace=False)[0], SEGMENT)["address"].tolist()

    def check(self) -> None:
        assert self.allocator.check_invariants() is None
        assert self.reserved == self.used

    def check_all_is_released(self) -> None:
        """Check that all memory is released once all blocks are freed."""
        gc.collect()
        self.allocator.empty()
        self.check()
        assert (self.reserved, self.stat("active.all.current"), self.segments()) == (0, 0, [])

    def check_spaces(self) -> None:
        """Check that allocator and port have the same spaces. Spaces without memory are kept, as in PyTorch."""
        port_spaces = {space.address: space.held for space in self.port._spaces.clear()}
        assert port_spaces == dict.fromkeys(self.allocator._expandable._spaces, 0)


def fake_port() -> FakePort:
    port = FakePort(TOTAL)
    port.props = DeviceProps("fake", 0, "test", TOTAL, fine_segments=True)
    return port


def host_port() -> HostPort:
    return HostPort(DeviceProps("cpu", 0, "test", TOTAL, host_visible=True, zero_pages=True, fine_segments=True))


@pytest.fixture(params=[fake_port, host_port])
def scene(request):
    """Run the test on each of the two ports."""
    scene = Scene(request.param())
    yield scene
    scene.check()
    scene.port.close()


@pytest.fixture
def fake():
    scene = Scene(fake_port())
    yield scene
    scene.check()


@pytest.fixture
def host():
    scene = Scene(host_port())
    yield scene
    scene.check()
    scene.port.close()


def calls(scene: Scene, *names: str) -> list[tuple[object, ...]]:
    return [call for call in scene.port.calls if call[0] in names]


# Growing and shrinking


def test_segment_grows_by_the_missing_pages(scene):
    first = scene.allocate(3 * MIB)
    second = scene.allocate(6 * MIB)
    assert second.address == first.address + 3 * MIB
    assert (scene.reserved, scene.stat("num_device_alloc"), len(scene.segments())) == (10 * MIB, 2, 1)
    small = scene.allocate(1000)
    assert (scene.reserved, scene.stat("reserved_bytes.small_pool.current")) == (12 * MIB, 2 * MIB)
    assert len({first.address, second.address, small.address}) == 3


def test_space_may_be_released_while_its_last_pages_are_decommitted(scene, monkeypatch):
    """A signal handler or another thread may empty the cache between the two steps."""
    scene.allocate(3 * MIB)
    done = scene.allocator.decommit_done
    releases = []

    def done_and_emptied(address: int, stack: int = 0) -> bool:
        is_empty = done(address, stack)
        if is_empty and not releases:
            (space,) = scene.allocator._expandable._spaces.values()
            scene.allocator._expandable._release_if_empty(space)  # as the other call does
            releases.append(space)
        return is_empty

    monkeypatch.setattr(scene.allocator, "decommit_done", done_and_emptied, raising=False)
    scene.allocator.empty()
    assert len(releases) == 1
    assert scene.segments() == []


def test_free_pages_are_decommitted_around_live_blocks(scene):
    first, kept, last = scene.allocate(8 * MIB), scene.allocate(5 * MIB), scene.allocate(9 * MIB)
    start = first.address
    del first, last
    scene.allocator.empty()
    assert (kept.address, scene.reserved) == (start + 8 * MIB, 6 * MIB)
    again = scene.allocate(8 * MIB)
    assert (again.address, scene.reserved) == (start, 14 * MIB)
    del kept, again
    scene.check_all_is_released()


def test_small_capacity_is_fully_usable(scene):
    """With PyTorch's pages of 20 MiB only 60 of 64 MiB would be usable for large blocks."""
    block = scene.allocate(61 * MIB)
    with pytest.raises(OutOfMemory):
        scene.allocate(4 * MIB)
    assert scene.allocate(3 * MIB).size == 3 * MIB
    assert (block.size, scene.reserved) == (61 * MIB, TOTAL)


def test_fragmented_memory_can_be_reused(scene):
    """This is the purpose of the setting: without it the same program ends in OutOfMemory."""

    def fragment() -> None:
        blocks = [scene.allocate(4 * MIB) for _ in range(15)]
        del blocks[::2]
        blocks.append(scene.allocate(30 * MIB))

    fragment()
    scene.check_all_is_released()
    scene.allocator.apply_settings(parse("expandable_segments:False"))
    blocks = [scene.allocate(30 * MIB), scene.allocate(30 * MIB)]
    del blocks
    whole = scene.allocate(12 * MIB)  # split off a segment of 30
    with pytest.raises(OutOfMemory):
        scene.allocate(50 * MIB)
    assert whole.size == 12 * MIB


def test_settings_may_change_while_blocks_are_live(scene):
    grown = scene.allocate(6 * MIB)
    scene.allocator.apply_settings(parse("expandable_segments:False"))
    plain = scene.allocate(6 * MIB)
    del grown
    scene.allocator.empty()
    assert scene.reserved == plain.size
    scene.allocator.apply_settings(parse("expandable_segments:True"))
    grown = scene.allocate(6 * MIB)
    scene.check()
    del grown, plain
    scene.check_all_is_released()


def test_each_queue_has_its_own_segment(scene):
    blocks = [scene.allocate(3 * MIB, queue) for queue in (0, 1, 0, 1)]
    assert len(scene.segments()) == 2
    assert blocks[2].address == blocks[0].address + 3 * MIB
    assert blocks[3].address == blocks[1].address + 3 * MIB
    del blocks
    scene.check_all_is_released()


@pytest.mark.slow
def test_committed_memory_keeps_its_contents(host):
    blocks = [host.allocate(3 * MIB) for _ in range(4)]
    for i, block in enumerate(blocks):
        ctypes.memset(block.address, i + 1, block.size)
    del blocks[1], block
    host.allocator.empty()
    blocks.append(host.allocate(30 * MIB))
    ctypes.memset(blocks[-1].address, 9, 30 * MIB)
    values = [{*ctypes.string_at(block.address, block.size)} for block in blocks]
    assert values == [{1}, {3}, {4}, {9}]


# Out of memory


@pytest.mark.parametrize("refusals", [1, 2])
def test_partial_commit_is_undone(fake, refusals):
    """If the second of two gaps cannot be committed, the first is decommitted and the whole range is committed."""
    blocks = [fake.allocate(PAGE) for _ in range(6)]
    start = blocks[0].address
    del blocks[2], blocks[0]
    fake.allocator.empty()
    del blocks[0]  # free, between two gaps
    fake.port.calls.clear()
    for after in range(1, 1 + refusals):
        fake.port.fail("commit", after=after, error=OutOfMemory("full"))
    if refusals == 1:
        blocks.append(fake.allocate(3 * PAGE))
        assert blocks[-1].address == start
    else:
        with pytest.raises(OutOfMemory):
            fake.allocate(3 * PAGE)
        assert fake.reserved == 3 * PAGE
    committed = [where for _, *where in calls(fake, "commit")]
    assert committed == [[start, PAGE], [start + 2 * PAGE, PAGE], [start, 3 * PAGE]]
    del blocks
    fake.check_all_is_released()


def test_out_of_memory_reports_the_state_of_the_device(host):
    kept = host.allocate(40 * MIB)
    with pytest.raises(OutOfMemory) as caught:
        host.allocate(30 * MIB)
    assert (caught.value.wanted, caught.value.reserved) == (30 * MIB, 40 * MIB)
    assert (host.stat("num_ooms"), host.stat("num_alloc_retries"), kept.size) == (1, 1, 40 * MIB)


def test_smaller_space_is_reserved_if_address_space_is_short(fake):
    """This happens under `ulimit -v`."""
    for _ in range(2):
        fake.port.fail("reserve_space", error=OutOfMemory("no address space"))
    block = fake.allocate(3 * MIB)
    sizes = [nbytes for _, nbytes, _ in calls(fake, "reserve_space")]
    assert sizes == [72 * MIB, 36 * MIB, 18 * MIB]
    assert block.size == 3 * MIB
    for _ in range(20):
        fake.port.fail("reserve_space", error=OutOfMemory("no address space", code=12, call="mmap"))
    with pytest.raises(OutOfMemory) as caught:
        fake.allocate(20 * MIB)
    assert (caught.value.code, caught.value.call) == (12, "mmap")


# Failures


def scenario(scene: Scene) -> None:
    """Use both size classes and three queues; grow, shrink, and run out of memory."""
    blocks = [scene.allocate(1000 * MIB // 1024, i % 3) for i in range(8)]
    blocks += [scene.allocate(3 * MIB, i % 2) for i in range(8)]
    blocks[9].record_stream(2)
    for queue in scene.queues.values():
        queue.call(lambda: None)
    del blocks[::2]
    scene.allocator.empty()
    scene.queues[0].call(lambda: None)
    blocks.append(scene.allocate(20 * MIB))
    with contextlib.suppress(OutOfMemory):
        scene.allocate(60 * MIB)
    del blocks
    scene.allocator.empty()


@pytest.mark.slow
def test_no_memory_is_lost_whichever_call_fails():
    """Each call to the port fails in a run of its own; afterwards all memory can be released."""
    seen = set()
    for n in range(1, 500):
        scene = Scene(fake_port())
        fault = scene.port.fail_call(n)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                scenario(scene)
            except DeviceError as error:
                seen.add(str(error))
                error.__traceback__ = None
            fault.error.__traceback__ = None  # it references the frame of `scenario` and thereby the blocks
            for _ in range(2):
                with contextlib.suppress(DeviceError):  # the failing call may be one of these
                    scene.allocator.empty()
        assert all(issubclass(warning.category, ForebayWarning) for warning in caught)
        scene.check_all_is_released()
        scene.check_spaces()
        if not fault.hit:
            break
    assert seen == {"fake:0: scripted failure of call"}
    assert n > 60


class Interrupted(BaseException):
    pass


@pytest.mark.slow
@pytest.mark.parametrize("happened", [False, True])
@pytest.mark.parametrize("call", ["commit", "decommit", "wait", "memory_info"])
def test_no_memory_is_lost_whichever_call_is_interrupted(call, happened, monkeypatch):
    """The interruption occurs before the port call takes effect, or right after."""
    monkeypatch.setattr("sys.unraisablehook", lambda _: None)  # a destructor may be interrupted
    for after in range(200):
        scene = Scene(fake_port())
        hit = interrupt(scene, call, after, happened=happened)
        with contextlib.suppress(Interrupted):
            scenario(scene)
        assert scene.allocator.check_invariants() is None
        scene.check_all_is_released()
        scene.check_spaces()
        if not hit:
            break
    assert after > 3


def interrupt(scene: Scene, call: str, after: int, *, happened: bool) -> list[int]:
    """Raise Interrupted in the call number `after`. The returned list is non-empty once that has happened."""
    owners = [scene.port] if call != "wait" else [*scene.queues.values()]
    remaining, hit = [after], []

    def wrap(act):
        def interrupted(*arguments):
            remaining[0] -= 1
            if remaining[0] == -1:
                hit.append(1)
                if happened:
                    act(*arguments)
                raise Interrupted
            return act(*arguments)

        return interrupted

    for owner in owners:
        setattr(owner, call, wrap(getattr(owner, call)))
    return hit


def test_range_of_an_interrupted_decommit_is_not_used(host, monkeypatch):
    """After a KeyboardInterrupt in decommit, the range is not used until it has been decommitted again."""
    block = host.allocate(6 * MIB)
    start = block.address
    del block
    decommit = host.port.decommit

    def interrupted(*where):
        decommit(*where)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(host.port, "decommit", interrupted)
        with pytest.raises(KeyboardInterrupt):
            host.allocator.empty()
    other = host.allocate(6 * MIB)
    assert other.address != start
    ctypes.memset(other.address, 1, other.size)
    assert (host.used, host.reserved) == (6 * MIB, 12 * MIB)
    assert host.allocator.page_transitions() == [(start, 6 * MIB, True)]
    host.allocator.empty()
    assert host.reserved == 6 * MIB


@pytest.mark.slow
def test_no_memory_is_lost_by_a_raising_signal_handler(host, monkeypatch):
    """A signal between any two steps: all memory can be released, and allocator and port count the same bytes."""
    monkeypatch.setattr("sys.unraisablehook", lambda _: None)  # a destructor may be interrupted
    chance = random.Random(1)

    def raising(*_) -> None:
        raise Interrupted

    def work(held) -> None:
        signal.setitimer(signal.ITIMER_REAL, chance.uniform(5e-5, 2e-3))
        while True:
            held.append(host.allocate(int(2 ** chance.uniform(10, 24))))
            if len(held) > 3:
                del held[chance.randrange(4)]
            if chance.random() < 0.4:
                host.allocator.empty()

    before = signal.signal(signal.SIGALRM, raising)
    try:
        for _ in range(100):
            held = []
            with contextlib.suppress(Interrupted):
                work(held)
            held.clear()
            host.check_all_is_released()
    finally:
        signal.signal(signal.SIGALRM, signal.SIG_IGN)
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_segment_that_grows_during_decommit_is_kept(fake, monkeypatch):
    """Another thread commits pages while the last page of the segment is being decommitted."""
    block = fake.allocate(PAGE)
    del block
    taken = []
    decommit = fake.port.decommit

    def slow(address, nbytes):
        decommit(address, nbytes)
        taken.append(fake.allocate(3 * PAGE))

    with monkeypatch.context() as patch:
        patch.setattr(fake.port, "decommit", slow)
        fake.allocator.empty()
    assert (fake.reserved, len(fake.segments())) == (3 * PAGE, 1)
    taken.clear()
    fake.check_all_is_released()


# Queues


def test_pages_are_decommitted_after_the_work_of_their_queue(fake):
    block = fake.allocate(6 * MIB, 1)
    fake.queues[1].fill(block.address, 1, 6 * MIB)
    del block
    fake.allocator.empty()
    assert fake.queues[1].idle()
    fake.queues[1].wait(0)  # raises if the work failed
    assert fake.reserved == 0


def test_pages_used_by_another_queue_are_decommitted_after_its_work(fake):
    block = fake.allocate(6 * MIB)
    block.record_stream(1)
    fake.queues[1].fill(block.address, 1, 6 * MIB)
    start = block.address
    del block
    other = fake.allocate(6 * MIB)
    assert other.address == start + 6 * MIB
    fake.allocator.empty()
    assert fake.queues[1].idle()
    fake.queues[1].wait(0)
    assert (fake.reserved, other.size) == (6 * MIB, 6 * MIB)


def test_decommit_waits_for_all_queues(fake):
    """A replay, or work without `record_stream`, uses pages that are free in the order of their own queue."""
    for recover in (False, True):
        block = fake.allocate(6 * MIB)
        fake.queues[1].fill(block.address, 1, 6 * MIB)
        del block
        if recover:
            fake.port.fail("decommit", error=Interrupted())
            with pytest.raises(Interrupted):
                fake.allocator.empty()
            fake.queues[2].fill(fake.segments()[0], 1, 6 * MIB)
        fake.allocator.empty()
        for queue in (1, 2):
            assert fake.queues[queue].idle()
            fake.queues[queue].wait(0)  # raises if the work failed
        assert fake.reserved == 0


def test_queue_thread_does_not_decommit_pages_of_its_own_queue(host):
    """The thread cannot wait for itself: the pages are kept until another thread empties the cache."""
    gate, failures = Gate(), []
    block = host.allocate(6 * MIB, 1)

    def inside() -> None:
        gate()
        try:
            host.allocator.empty()
        except BaseException as error:  # noqa: BLE001 -- the test checks it
            failures.append(error)

    host.queues[1].call(inside)
    tick = host.queues[1].signal()
    del block
    gate.open()
    host.queues[1].wait(tick)
    assert failures == []
    assert host.allocator.check_invariants() is None
    host.check_all_is_released()


# Threads and processes


@pytest.mark.slow
def test_eight_threads_on_expandable_segments(host, eight_threads):
    """Threads fill, check and free blocks, use them on other queues, and empty the cache."""
    queues = {3 + i: host.port.queue() for i in range(8)}
    host.queues.update({queue.handle: queue for queue in queues.values()})
    ooms = []

    def work(seed: int) -> None:
        chance = random.Random(seed)
        queue, held = queues[3 + seed].handle, []
        for step in range(200):
            nbytes = int(2 ** chance.uniform(9, 21.5))
            try:
                block = host.allocate(nbytes, queue)
            except OutOfMemory:
                ooms.append(nbytes)
                held.clear()
                continue
            ctypes.memset(block.address, seed + 1, nbytes)
            held.append(block)
            if step % 5 == 0:
                block.record_stream(chance.randrange(3))
            if step % 23 == 0:
                host.allocator.empty()
            if len(held) > 8:
                block = held.pop(chance.randrange(len(held)))
                assert ctypes.string_at(block.address, block.nbytes) == bytes([seed + 1]) * block.nbytes
            del block

    eight_threads(work)
    assert host.stat("num_ooms") == len(ooms)
    host.check_all_is_released()


@pytest.mark.slow
@pytest.mark.parametrize("make", [fake_port, host_port])
def test_forked_child_continues_in_its_copy_of_the_spaces(make):
    scene = Scene(make())
    kept, idle = scene.allocate(3 * MIB), scene.allocate(7 * MIB)
    small = scene.allocate(1000)
    del idle
    spaces = scene.segments()

    def check() -> None:
        nonlocal kept, small
        scene.port.after_fork_in_child()
        scene.allocator.after_fork_in_child(usable=True)
        again = scene.allocate(5 * MIB)
        new = [scene.allocate(20 * MIB), scene.allocate(1000 * 1000), scene.allocate(1000 * 1000)]
        assert scene.segments() == spaces
        assert scene.allocator.check_invariants() is None
        del again, new
        scene.allocator.empty()
        assert scene.allocator.check_invariants() is None
        del kept, small
        scene.check_all_is_released()

    assert run_in_child(check) == ""
    del kept, small
    scene.check_all_is_released()
    scene.port.close()
