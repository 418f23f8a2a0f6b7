"""Tests of the fake backend beyond the contract: the virtual clock, the log of calls, scripted failures."""

from __future__ import annotations

import itertools

import pytest

from forebay.errors import DeviceError, OutOfMemory, WrongState
from forebay.spi import Growable, Launches, PinnedHost, Resizable, SurvivesFork, Timing
from forebay.testing.fake import FakeDriver, FakePort

MIB = 1 << 20


@pytest.fixture
def port() -> FakePort:
    return FakePort(total=64 * MIB)


def test_fake_backend_has_all_abilities_without_hardware(port):
    assert all(isinstance(port, ability) for ability in (PinnedHost, Growable, Resizable, SurvivesFork))
    assert all(isinstance(port.queue(), ability) for ability in (Timing, Launches))


def test_work_runs_only_on_request(port):
    first, second = port.queue(), port.queue()
    assert (first.signal(), first.signal(), second.signal()) == (1, 1 + 1, 1)
    assert (first.reached(), second.reached()) == (0, 0)
    first.finish(1)
    assert (first.reached(), second.reached()) == (1, 0)
    port.finish_all()
    assert (first.reached(), second.reached()) == (2, 1)


def test_wait_runs_only_the_work_it_needs(port):
    first, second, third = port.queue(), port.queue(), port.queue()
    tick = first.signal()
    first.signal()
    third.signal()
    second.wait_for(first, tick)
    second.wait(second.signal())
    assert [queue.reached() for queue in (first, second, third)] == [1, 1, 0]


def test_long_chain_of_waits_completes(port):
    first, second = port.queue(), port.queue()
    for _ in range(5000):
        second.wait_for(first, first.signal())
        first.wait_for(second, second.signal())
    first.wait(first.signal())
    assert second.reached() == 5000


def test_advance_runs_work_that_ends_in_time(port):
    queue, memory = port.queue(), port.reserve(MIB)
    port.command_ns = 300
    for _ in range(3):
        queue.fill(memory, 0, 8)
        queue.signal()
    port.clock.advance(299)
    assert (queue.reached(), port.clock.now) == (0, 299)
    port.clock.advance(1)
    assert queue.reached() == 1
    port.clock.advance(10_000)
    assert (queue.reached(), port.clock.now) == (3, 10_300)


def test_queues_run_concurrently_unless_they_wait(port):
    first, second, memory = port.queue(), port.queue(), port.reserve(MIB)
    marks = [first.mark(), second.mark()]
    for queue in (first, second):
        queue.fill(memory, 0, 8)
        marks.append(queue.mark())
    second.wait_for(first, marks[2].tick)
    second.fill(memory, 0, 8)
    marks.append(second.mark())
    port.finish_all()
    assert [first.elapsed_ms(marks[0], mark) for mark in marks] == [0, 0, 0.001, 0.001, 0.002]


def test_devices_of_one_driver_share_the_clock():
    driver = FakeDriver(count=2)
    queues = [driver.open(index).queue() for index in range(2)]
    queues[1].wait_for(queues[0], queues[0].signal())
    queues[1].signal()
    driver.clock.advance(0)
    assert [queue.reached() for queue in queues] == [1, 1]
    assert [port.props.index for port in driver.ports] == [0, 1]


def test_addresses_are_first_fit(port):
    a, b, c = port.reserve(4 * MIB), port.reserve(MIB), port.reserve(MIB)
    assert (b - a, c - b) == (4 * MIB, 2 * MIB)
    port.release(a)
    assert port.reserve(5 * MIB) == c + 2 * MIB
    assert port.reserve(MIB) == a
    assert port.reserve(3 * MIB) == c + 8 * MIB
    assert port.reserve(2 * MIB) == a + 2 * MIB


def test_devices_share_no_addresses():
    driver = FakeDriver(count=2)
    ports = [driver.open(index) for index in range(2)]
    addresses = [take(MIB) for port in ports for take in (port.reserve, port.pin)]
    addresses += [port.reserve_space(MIB, MIB) for port in ports]
    assert len({*addresses}) == 6
    assert all(1 << 47 < address < 1 << 53 for address in addresses)


def test_every_call_is_logged(port):
    queue = port.queue(-1)
    address = port.reserve(MIB)
    queue.copy(address, 4096, 512)
    queue.fill(address, 7, 512)
    queue.wait(queue.signal())
    queue.reached()
    port.release(address)
    queue.close()
    queue.close()
    assert port.calls == [
        ("queue", -1),
        ("reserve", MIB),
        ("copy", 0, address, 4096, 512),
        ("fill", 0, address, 7, 512),
        ("signal", 0),
        ("wait", 0, 1),
        ("release", address),
        ("close", 0, None),
    ]


def test_scripted_failure_is_raised_once_without_side_effects(port):
    error = OutOfMemory("no", wanted=1)
    fault = port.fail("reserve", after=2, error=error)
    addresses = [port.reserve(MIB), port.reserve(MIB)]
    before = port.memory_info()
    assert not fault.hit
    with pytest.raises(OutOfMemory) as caught:
        port.reserve(MIB)
    assert caught.value is error
    assert fault.hit
    assert port.memory_info() == before
    assert port.reserve(MIB) not in addresses


def test_each_call_in_turn_can_fail():
    def use_all_calls(port: FakePort) -> None:
        queue, address = port.queue(), port.reserve(MIB)
        queue.fill(address, 0, 8)
        queue.wait(queue.signal())
        port.release(address)
        port.close()

    hits = 0
    for n in itertools.count(1):
        port = FakePort()
        fault = port.fail_call(n)
        if not (caught := raised(use_all_calls, port)):
            break
        assert fault.hit
        assert "scripted failure" in str(caught)
        hits += 1
    assert not fault.hit
    assert hits == 8


def raised(function, *arguments) -> DeviceError | None:
    try:
        function(*arguments)
    except DeviceError as error:
        return error
    return None


def test_work_can_fail_when_it_runs(port):
    queue, memory = port.queue(), port.reserve(MIB)
    port.fail_work("fill", after=1)
    queue.fill(memory, 0, 8)
    queue.wait(queue.signal())
    queue.fill(memory, 0, 8)
    tick = queue.signal()
    with pytest.raises(DeviceError, match="scripted failure of fill"):
        queue.wait(tick)
    queue.wait(tick)


def test_work_on_released_memory_fails(port):
    """Release a segment while a copy into it is queued, which on a real device corrupts memory silently."""
    queue, memory, host = port.queue(), port.reserve(MIB), port.pin(4096)
    queue.copy(memory, host, 4096)
    queue.wait(queue.signal())
    queue.copy(memory, host, 4096)
    port.release(memory)
    tick = queue.signal()
    with pytest.raises(DeviceError, match="not reserved"):
        queue.wait(tick)
    other = port.reserve(MIB)
    queue.fill(other + MIB - 8, 1, 9)
    tick = queue.signal()
    with pytest.raises(DeviceError, match="not reserved"):
        queue.wait(tick)


def test_work_on_decommitted_pages_fails(port):
    queue, space = port.queue(), port.reserve_space(8 * MIB, 2 * MIB)
    port.commit(space + 2 * MIB, 4 * MIB)
    queue.fill(space + 2 * MIB, 1, 4 * MIB)
    queue.wait(queue.signal())
    for address, nbytes in [(space, 8), (space + 2 * MIB, 4 * MIB + 1), (space + 2 * MIB - 1, 1), (space, 9 * MIB)]:
        queue.fill(address, 1, nbytes)
        tick = queue.signal()
        with pytest.raises(DeviceError, match="not reserved"):
            queue.wait(tick)
    port.decommit(space + 4 * MIB, 2 * MIB)
    queue.fill(space + 4 * MIB - 8, 1, 9)
    tick = queue.signal()
    with pytest.raises(DeviceError, match="not reserved"):
        queue.wait(tick)


@pytest.mark.parametrize("call", ["reserve_space", "commit", "decommit", "release_space"])
def test_each_growable_call_can_fail(port, call):
    fault = port.fail(call)

    def use_all_calls() -> None:
        space = port.reserve_space(4 * MIB, 2 * MIB)
        port.commit(space, 4 * MIB)
        port.decommit(space, 4 * MIB)
        port.release_space(space)

    assert "scripted failure" in str(raised(use_all_calls))
    assert fault.hit
    assert port.memory_info()[0] == (60 if call == "decommit" else 64) * MIB
    assert raised(use_all_calls) is None


def test_invalid_arguments_are_rejected(port):
    queue = port.queue()
    with pytest.raises(WrongState, match="tick 1 was not signalled"):
        queue.finish(1)
    with pytest.raises(ValueError, match="ns"):
        port.clock.advance(-1)
    with pytest.raises(ValueError, match="after -1"):
        port.fail("reserve", after=-1)
    with pytest.raises(TypeError, match="fake queue"):
        queue.wait_for(object(), 0)


def test_driver_may_have_no_devices():
    driver = FakeDriver(count=0)
    assert driver.count() == 0
    assert driver.why_not() != ""
