"""The order of decommits and releases among queued work: Note [Decommit protocol], one step at a time."""

from __future__ import annotations

import ctypes
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from forebay.backends.common.cuda_errors import ILLEGAL_ADDRESS
from forebay.backends.common.mmap import commit_pages
from forebay.backends.common.page_ledger import PageLedger
from forebay.backends.emulated.driver import EmulatedDriver
from forebay.backends.host import address_space
from forebay.backends.host.driver import HostPort
from forebay.errors import DeviceError, WrongState
from forebay.spi import DeviceProps
from forebay.testing.conformance.helpers import Gate, run_in_child

MIB = 1 << 20
PAGE = 2 * MIB
TOTAL = 64 * MIB
LIMIT = 20  # seconds


@pytest.fixture(params=["cpu", "emulated"])
def port(request):
    if request.param == "cpu":
        port = HostPort(DeviceProps("cpu", 0, "test", TOTAL, host_visible=True))
    else:
        port = EmulatedDriver("cuda", 1, "h200", TOTAL).open(0)
    yield port
    port.close()


class Memory:
    """A page of memory, as a segment or in expandable address space."""

    def __init__(self, port, how: str) -> None:
        self.port, self.how = port, how
        self.space = 0
        if how == "segment":
            self.address = port.reserve(PAGE)
        elif how == "managed":
            self.address = port.reserve_managed(PAGE)
        else:
            self.address = self.space = port.reserve_space(TOTAL, PAGE)
            port.commit(self.address, PAGE)

    def release(self) -> None:
        if self.how == "segment":
            self.port.release(self.address)
        elif self.how == "managed":
            self.port.release_managed(self.address)
        else:
            self.port.decommit(self.address, PAGE)

    @property
    def listed(self) -> bool:
        return any(start <= self.address < start + nbytes for start, nbytes in self.port.memory())


@pytest.fixture(params=["segment", "pages"])
def memory(request, port):
    return Memory(port, request.param)


def graph_over(memory, queue=None):
    """Return a graph that fills the memory."""
    queue = queue or memory.port.queue()
    queue.begin_capture()
    queue.fill(memory.address, 7, PAGE)
    return queue.end_capture()


@pytest.fixture
def thread():
    with ThreadPoolExecutor(1) as pool:
        yield pool


def wait_until_noted(port, count: int) -> None:
    """Wait until another thread has noted a release, after which it waits for the queues."""
    pause = threading.Event()
    for _ in range(LIMIT * 1000):
        if port.releases.count > count:
            return
        pause.wait(0.001)
    pytest.fail("no release was noted")


def test_release_waits_for_a_launch_before_it_and_refuses_later_ones(memory, thread):
    port, queue, gate = memory.port, memory.port.queue(), Gate()
    graph, count = graph_over(memory), port.releases.count
    queue.call(gate)
    graph.launch(queue)
    released = thread.submit(memory.release)
    wait_until_noted(port, count)
    assert not memory.listed
    with pytest.raises(DeviceError, match="has released that memory") as raised:
        graph.launch(queue)
    assert raised.value.code == ILLEGAL_ADDRESS
    assert not released.done()
    assert port.reserved == PAGE  # it is still used
    gate.open()
    released.result(LIMIT)
    assert port.reserved == 0
    queue.wait(queue.signal())


def test_launch_checks_and_submits_in_one_step(memory, monkeypatch):
    """Memory that is released during the launch, after its first check, is found missing by the second one."""
    queue, graph = memory.port.queue(), graph_over(memory)
    submitted = queue.last_work_number()
    cls = type(queue)
    monkeypatch.setattr(cls, "ensure_programs_backed", lambda self, programs: memory.release())
    with pytest.raises(DeviceError, match="has released that memory"):
        graph.launch(queue)
    assert queue.last_work_number() == submitted


def test_launch_ignores_the_release_of_other_memory(memory, monkeypatch):
    queue, graph, other = memory.port.queue(), graph_over(memory), memory.port.reserve(PAGE)
    monkeypatch.setattr(type(queue), "ensure_programs_backed", lambda self, programs: memory.port.release(other))
    graph.launch(queue)
    queue.wait(queue.signal())
    assert graph.memory.checked_at == memory.port.releases.count


def test_memory_released_during_the_capture_is_refused(memory):
    queue = memory.port.queue()
    queue.begin_capture()
    queue.fill(memory.address, 7, PAGE)
    memory.release()
    graph = queue.end_capture()
    with pytest.raises(DeviceError, match="has released that memory"):
        graph.launch(queue)


def test_memory_of_an_inner_graph_is_refused(memory):
    queue, graph = memory.port.queue(), graph_over(memory)
    memory.release()
    queue.begin_capture()
    graph.launch(queue)
    outer = queue.end_capture()
    with pytest.raises(DeviceError, match="has released that memory"):
        outer.launch(queue)


def test_pages_are_listed_when_the_system_has_committed_them(port, monkeypatch):
    """A graph over the addresses of pages that were released may be launched at any moment of a commit."""
    memory = Memory(port, "pages")
    graph, queue = graph_over(memory), port.queue()
    memory.release()
    seen = []

    def commit(address, nbytes):
        seen.append((memory.listed, port.reserved))
        with pytest.raises(DeviceError, match="has released that memory"):
            graph.launch(queue)
        commit_pages(address, nbytes)

    monkeypatch.setattr(address_space, "commit_pages", commit)
    port.commit(memory.address, PAGE)
    assert seen == [(False, PAGE)]
    assert memory.listed
    graph.launch(queue)
    queue.wait(queue.signal())


def test_pages_that_are_committed_stay_listed_when_more_are(port, monkeypatch):
    memory = Memory(port, "pages")
    seen = []
    monkeypatch.setattr(
        address_space, "commit_pages", lambda *given: (seen.append(memory.listed), commit_pages(*given))
    )
    port.commit(memory.address, 2 * PAGE)
    assert (seen, port.reserved) == ([True], 2 * PAGE)


def test_capture_that_ends_while_its_pages_are_withdrawn_is_refused(port, monkeypatch):
    """Memory that is neither listed nor released would be taken for the host's, which is not checked."""
    memory, queue, made = Memory(port, "pages"), port.queue(), []
    exchange = PageLedger._exchange

    def withdraw(self, *given):
        exchange(self, *given)
        if queue.capture is not None:
            made.append(queue.end_capture())

    queue.begin_capture()
    queue.fill(memory.address, 7, PAGE)
    monkeypatch.setattr(PageLedger, "_exchange", withdraw)
    memory.release()
    (graph,) = made
    with pytest.raises(DeviceError, match="has released that memory"):
        graph.launch(queue)


@pytest.mark.parametrize("pinned", [False, True])
def test_managed_and_pinned_memory_waits_for_a_launch_before_its_release(port, thread, pinned):
    address = port.pin(4096) if pinned else port.reserve_managed(4096)
    queue, gate, count = port.queue(), Gate(), port.releases.count
    queue.begin_capture()
    queue.fill(address, 7, 4096)
    graph = queue.end_capture()
    queue.call(gate)
    graph.launch(queue)
    released = thread.submit(port.unpin if pinned else port.release_managed, address)
    wait_until_noted(port, count)
    assert not released.done()
    gate.open()
    released.result(LIMIT)
    queue.wait(queue.signal())
    assert b"%x-" % address not in Path("/proc/self/maps").read_bytes()


@pytest.mark.parametrize("pinned", [False, True])
def test_managed_and_pinned_memory_is_refused(port, pinned):
    address = port.pin(4096) if pinned else port.reserve_managed(4096)
    queue = port.queue()
    queue.begin_capture()
    queue.fill(address, 7, 4096)
    graph = queue.end_capture()
    graph.launch(queue)
    queue.wait(queue.signal())
    assert ctypes.string_at(address, 2) == b"\7\7"
    port.unpin(address) if pinned else port.release_managed(address)
    with pytest.raises(DeviceError, match="has released that memory"):
        graph.launch(queue)


def test_release_waits_for_work_before_a_capture(memory, thread):
    """The queue is being captured when the release begins; what was queued before is executed."""
    port, queue, gate, count = memory.port, memory.port.queue(), Gate(), memory.port.releases.count
    queue.call(gate)
    queue.fill(memory.address, 7, PAGE)
    queue.begin_capture()
    released = thread.submit(memory.release)
    wait_until_noted(port, count)
    assert not released.done()
    gate.open()
    released.result(LIMIT)
    queue.end_capture()


def test_release_waits_for_graphs_on_other_devices(memory, thread):
    port, gate, count = memory.port, Gate(), memory.port.releases.count
    other = HostPort(DeviceProps("cpu", 1, "test", TOTAL, host_visible=True))
    try:
        queue = other.queue()
        graph = graph_over(memory, other.queue())
        queue.call(gate)
        graph.launch(queue)
        released = thread.submit(memory.release)
        wait_until_noted(port, count)
        assert not released.done()
        gate.open()
        released.result(LIMIT)
        with pytest.raises(DeviceError, match="has released that memory"):
            graph.launch(queue)
        queue.close()
        port.drain()
        assert not port.visitors
    finally:
        gate.open()
        other.close()


def test_own_thread_leaves_its_memory_to_a_later_call(memory):
    """A queue's thread cannot wait for itself: pages stay committed, and a segment is released by a later call."""
    port, queue, graph = memory.port, memory.port.queue(), graph_over(memory)
    queue.call(memory.release)
    if memory.how == "pages":
        with pytest.raises(DeviceError, match="WrongState"):
            queue.wait(queue.signal())
        graph.launch(queue)  # the pages are memory again
        queue.wait(queue.signal())
        memory.release()
    else:
        queue.wait(queue.signal())
        assert port.reserved == PAGE
        with pytest.raises(DeviceError, match="has released that memory"):
            graph.launch(queue)
        port.release(port.reserve(PAGE))
    assert port.reserved == 0


def test_interrupted_wait_loses_no_memory(memory, monkeypatch):
    port, cls = memory.port, type(memory.port)
    queue, gate, drain = port.queue(), Gate(), cls.drain

    def interrupted(self) -> None:
        monkeypatch.setattr(cls, "drain", drain)
        raise KeyboardInterrupt

    queue.call(gate)
    monkeypatch.setattr(cls, "drain", interrupted)
    with pytest.raises(KeyboardInterrupt):
        memory.release()
    assert port.reserved == PAGE
    gate.open()
    queue.wait(queue.signal())
    if memory.how == "pages":
        assert memory.listed
        memory.release()
    else:
        assert not memory.listed
        port.release(port.reserve(PAGE))
    assert port.reserved == 0


def test_port_that_is_closed_unmaps_what_was_leaving():
    def close() -> None:
        port = HostPort(DeviceProps("cpu", 0, "test", TOTAL, host_visible=True))
        queue, address = port.queue(), port.reserve(PAGE)
        queue.call(lambda: port.release(address))
        queue.wait(queue.signal())
        assert port.reserved == PAGE
        port.close()
        assert b"%x-" % address not in open("/proc/self/maps", "rb").read()  # noqa: SIM115, PTH123 -- of the system

    run_in_child(close)


def test_drain_raises_if_dropped_work_is_running(port):
    queue, gate = port.queue(), Gate()
    started = threading.Event()
    queue.call(lambda: (started.set(), gate()))
    assert started.wait(LIMIT)
    try:
        assert not queue.close(0.0)
        with pytest.raises(WrongState, match="closed while its work was running"):
            port.drain()
    finally:
        gate.open()
