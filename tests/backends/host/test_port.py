"""The CPU device beyond the contract: configuration, threads, mappings, failures and closing."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from forebay.backends.common import mmap as common_mmap
from forebay.backends.host.driver import HostDriver, HostPort
from forebay.errors import DeviceError, ForebayWarning, OutOfMemory, WrongState
from forebay.spi import DeviceProps, Growable, Launches, PinnedHost, Resizable, SurvivesFork, Timing
from forebay.testing.conformance.helpers import run_in_child
from forebay.testing.fake import FakePort

MIB = 1 << 20
LINUX = Path("/proc/self/task").exists()


@pytest.fixture
def port():
    port = HostPort(DeviceProps("cpu", 0, "test", 64 * MIB, host_visible=True))
    yield port
    port.close()


def threads() -> set[str]:
    return {path.name for path in Path("/proc/self/task").iterdir()}


def test_host_port_has_its_abilities(port):
    for ability in (PinnedHost, Growable, Resizable, SurvivesFork):
        assert isinstance(port, ability)
    for ability in (Timing, Launches):
        assert isinstance(port.queue(), ability)


def test_props_describe_the_machine():
    port = HostDriver().open(0)
    assert port.props.kind == "cpu"
    assert port.props.name
    assert port.props.host_visible
    port.close()


def test_environment_sets_device_count_and_memory(monkeypatch):
    monkeypatch.setenv("FOREBAY_CPU_DEVICES", "3")
    monkeypatch.setenv("FOREBAY_CPU_MEMORY", "10MiB")
    driver = HostDriver()
    assert (driver.count(), driver.why_not()) == (3, "")
    port = driver.open(2)
    assert port.memory_info() == (10 * MIB, 10 * MIB)
    port.close()
    with pytest.raises(DeviceError, match="numbered from 0 to 2") as caught:
        driver.open(3)
    assert caught.value.device == "cpu:3"


def test_invalid_environment_variable_is_reported(monkeypatch):
    monkeypatch.setenv("FOREBAY_CPU_DEVICES", "many")
    driver = HostDriver()
    assert driver.count() == 0
    assert "FOREBAY_CPU_DEVICES" in driver.why_not()
    with pytest.raises(ValueError, match="FOREBAY_CPU_DEVICES"):
        driver.open(0)


def test_port_can_have_another_kind():
    port = HostPort(DeviceProps("cuda", 1, "emulated H200", MIB))
    with pytest.raises(OutOfMemory, match=r"cuda:1: requested 2\.00 MiB, 1\.00 MiB free") as caught:
        port.reserve(2 * MIB)
    assert caught.value.device == "cuda:1"
    port.close()


@pytest.mark.skipif(not LINUX, reason="threads are counted in /proc")
def test_idle_port_has_no_threads(port):
    before = threads()
    queues = [port.queue() for _ in range(8)]
    assert threads() <= before
    for queue in queues:
        queue.wait(queue.signal())
    assert len(threads() - before) == 8
    for queue in queues:
        queue.close()
    port.queue().close()
    assert threads() <= before


@pytest.mark.skipif(not LINUX, reason="mappings are listed in /proc")
def test_closed_port_unmaps_all_memory():
    def mapped() -> set[str]:
        return {line.split()[0] for line in Path("/proc/self/maps").read_text().splitlines()}

    port = HostPort(DeviceProps("cpu", 0, "test", 1 << 30))
    addresses = [port.reserve(nbytes) for nbytes in (1, 4097, 2 * MIB, 7 * MIB + 1)]
    ends = [(address, address + nbytes) for address, nbytes in port.segments()]
    port.release(addresses[1])
    port.close()
    spans = [tuple(int(part, 16) for part in span.split("-")) for span in mapped()]
    assert [span for span in spans for low, high in ends if span[0] < high and low < span[1]] == []


@pytest.mark.skipif(not LINUX, reason="the size of the address space is read from /proc")
def test_mapping_has_no_more_than_its_pages():
    """The excess that alignment needs is unmapped at once."""

    def address_space() -> int:
        return int(Path("/proc/self/statm").read_text().split()[0]) * mmap.PAGESIZE

    before = address_space()
    address = common_mmap.map_memory(4 * MIB + 1)
    assert address_space() - before == 4 * MIB + mmap.PAGESIZE
    assert address % common_mmap.ALIGNMENT == 0
    common_mmap.unmap_memory(address, 4 * MIB + 1)
    assert address_space() == before


def test_new_memory_is_zeroed(port):
    assert ctypes.string_at(port.reserve(4 * MIB), 4 * MIB) == bytes(4 * MIB)


def test_reserve_fails_if_the_system_has_no_memory():
    port = HostPort(DeviceProps("cpu", 0, "test", 1 << 62))
    before = port.memory_info()
    with pytest.raises(OutOfMemory, match="the system has no memory: mmap failed") as caught:
        port.reserve(1 << 60)
    assert (caught.value.code, caught.value.call) == (errno.ENOMEM, "mmap")
    assert (caught.value.wanted, caught.value.reserved) == (1 << 60, 0)
    assert port.memory_info() == before
    port.close()


def test_pin_beyond_the_limit_names_the_remedy(port, monkeypatch):
    unmapped = []
    unmap = common_mmap.unmap_memory

    def refuse(address, nbytes):
        raise OSError(errno.EPERM, os.strerror(errno.EPERM), "mlock")

    monkeypatch.setattr("forebay.backends.host.port.lock_memory", refuse)
    monkeypatch.setattr(
        "forebay.backends.host.port.unmap_memory", lambda *where: (unmapped.append(where), unmap(*where))
    )
    with pytest.raises(DeviceError, match="ulimit -l") as caught:
        port.pin(MIB)
    assert (caught.value.code, caught.value.call) == (errno.EPERM, "mlock")
    assert len(unmapped) == 1


@pytest.mark.skipif(not LINUX, reason="the limit on mappings is Linux's")
def test_segment_that_cannot_be_unmapped_stays_counted():
    """At its limit of mappings, a process cannot unmap the middle of a mapping."""
    limit = int(Path("/proc/sys/vm/max_map_count").read_text())
    if limit > 1 << 17:
        pytest.skip(f"this system's limit of {limit:,} mappings takes too long to reach")

    def check() -> None:
        port = HostPort(DeviceProps("cpu", 0, "test", 1 << 40, fine_segments=True))
        segments = sorted(port.reserve(4 * MIB) for _ in range(40))
        middles = [one for one in segments[1:-1] if {one - 4 * MIB, one + 4 * MIB} <= {*segments}]
        space, pages = port.reserve_space(1 << 38, 2 * MIB), 1 << 17
        for page in range(0, pages, 2):  # until every second page would be a mapping of its own
            try:
                port.commit(space + page * 2 * MIB, 2 * MIB)
            except OutOfMemory:
                break
        for middle in middles[::2]:  # the interpreter may have returned a few mappings of its own, so one may not do
            before = port.memory_info()
            try:
                port.release(middle)
            except DeviceError as error:
                message = str(error)
                break
        else:
            pytest.fail(f"{len(middles)} segments were unmapped at the limit of mappings")
        assert "cannot be unmapped: munmap" in message
        assert port.memory_info() == before
        assert middle in dict(port.segments())
        port.decommit(space, 2 * MIB)
        port.release(middle)
        assert middle not in dict(port.segments())

    assert run_in_child(check) == ""


def test_concurrent_reserves_never_exceed_the_capacity(port):
    def greedy(_):
        held = []
        with pytest.raises(OutOfMemory) as caught:
            held.extend(port.reserve(3 * MIB) for _ in range(100))
        return len(held), caught.value

    with ThreadPoolExecutor(4) as pool:
        counts, errors = zip(*pool.map(greedy, range(8)), strict=True)
    assert sum(counts) == 64 // 3
    assert [(error.free, error.reserved) for error in errors] == [(MIB, 63 * MIB)] * 8
    assert port.memory_info() == (MIB, 64 * MIB)


def test_wait_raises_the_first_failure(port):
    queue = port.queue()
    queue.call(lambda: 1 / 0)
    queue.call(lambda: {}[1])
    tick = queue.signal()
    with pytest.raises(DeviceError, match="work of queue 0 failed with ZeroDivisionError") as caught:
        queue.wait(tick)
    assert (caught.value.call, caught.value.device) == ("call", "cpu")
    queue.wait(tick)


def test_close_warns_about_unreported_failure(port):
    queue = port.queue()
    queue.call(lambda: 1 / 0)
    with pytest.warns(ForebayWarning, match="ZeroDivisionError.*no wait reported it"):
        queue.close()
    assert queue.close()


def test_port_close_closes_all_queues_despite_warnings(port):
    queues = [port.queue() for _ in range(3)]
    port.reserve(MIB)
    for queue in queues:
        queue.call(lambda: 1 / 0)
    with pytest.warns(ForebayWarning, match="ZeroDivisionError") as warned:
        port.close()
    assert len(warned) == 3
    assert [queue.closed for queue in queues] == [True] * 3
    assert not port.segments()


def test_close_with_timeout_drops_work(port):
    queue, gate, seen = port.queue(), threading.Event(), []
    queue.call(lambda: gate.wait(20))
    queue.call(lambda: seen.append(1))
    tick = queue.signal()
    assert not queue.close(0.01)
    with pytest.raises(WrongState, match="never reaches tick 1"):
        queue.wait(tick)
    address = port.reserve(MIB)
    port.close()
    ctypes.memset(address, 1, MIB)  # still mapped: the queue's thread may use it
    gate.set()
    assert seen == []


def test_work_fails_if_the_awaited_queue_is_closed(port):
    first, second, gate = port.queue(), port.queue(), threading.Event()
    first.call(lambda: gate.wait(20))
    second.wait_for(first, first.signal())
    assert not first.close(0)
    gate.set()
    with pytest.raises(DeviceError, match="queue 1 failed: it waited for another queue") as caught:
        second.wait(second.signal())
    assert (caught.value.call, caught.value.code) == ("wait_for", 0)


def test_closed_queue_releases_dropped_work(port):
    class Work:
        def __call__(self):
            pass

    queue, gate, work = port.queue(), threading.Event(), Work()
    gone = weakref.ref(work)
    queue.call(lambda: gate.wait(20))
    queue.call(work)
    with pytest.raises(WrongState, match="cpu: queue 0 was closed"):
        (queue.close(0), queue.call(work))
    del work
    assert gone() is None
    gate.set()


def test_queue_can_be_closed_by_its_own_work(port):
    queue, seen = port.queue(), []
    queue.call(lambda: seen.append(queue.close()))
    queue.call(lambda: seen.append("later"))
    tick = queue.signal()
    queue.wait(tick)
    assert seen == [False, "later"]
    assert queue.close()


def test_port_drops_closed_queues(port):
    queues = [port.queue() for _ in range(3)]
    queues[1].close()
    assert {*port._queues} == {0, 2}
    assert port.queue().handle == 3


def test_objects_of_other_kinds_are_rejected(port):
    queue, fake = port.queue(), FakePort().queue()
    with pytest.raises(TypeError, match="FakeQueue"):
        queue.wait_for(fake, 0)
    with pytest.raises(TypeError, match="start must be a mark of a host queue"):
        queue.elapsed_ms(fake.mark(), queue.mark())


def test_queue_waits_for_queue_of_another_port(port):
    other = HostPort(DeviceProps("cpu", 1, "test", MIB))
    first, second = port.queue(), other.queue()
    second.wait_for(first, first.signal())
    second.wait(second.signal())
    other.close()


@pytest.mark.parametrize("priority", [None, "high", 1.5])
def test_priority_must_be_an_int(port, priority):
    with pytest.raises(TypeError, match="priority must be an int"):
        port.queue(priority)
