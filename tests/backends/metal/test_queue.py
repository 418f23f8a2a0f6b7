"""Queues of the Metal backend: batches, order, interrupts, threads, and what the host does at once."""

from __future__ import annotations

import ctypes
import gc
import random
import signal
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from support.metal_scenario import KEPT, MIB, Scenario

from forebay.backends.metal.queue import MOST_IN_FLIGHT
from forebay.errors import DeviceError, WrongState
from forebay.testing.conformance.helpers import Gate, drain


def bytes_at(address: int, nbytes: int) -> bytes:
    return ctypes.string_at(address, nbytes)


def test_work_behind_a_busy_gpu_shares_command_buffers(mac, port):
    queue, address = port.queue(), port.reserve(MIB)
    with mac.held():
        before = mac.calls("commit")
        for byte in range(200):
            queue.fill(address + 4 * byte, byte, 4)
        assert mac.calls("commit") - before == 1
    drain(queue)
    assert mac.calls("commit") - before <= 3
    assert bytes_at(address, 800) == b"".join(bytes([byte]) * 4 for byte in range(200))


def test_more_ticks_than_metal_permits_command_buffers_do_not_block(mac, port):
    queue, address = port.queue(), port.reserve(MIB)
    with mac.held():
        for byte in range(200):
            queue.fill(address, byte, 64)
            assert queue.signal() == byte + 1
        assert mac.calls("commit") <= MOST_IN_FLIGHT
        assert queue.reached() == 0
    queue.wait(200)
    assert bytes_at(address, 64) == bytes([199]) * 64


def test_idle_queue_needs_no_gpu_for_ticks_and_copies_of_the_host(mac, port):
    queue, address = port.queue(), port.reserve(MIB)
    host = ctypes.create_string_buffer(b"x" * 4096, 4096)
    queue.copy(address, ctypes.addressof(host), 4096)
    tick = queue.signal()
    assert queue.reached() == tick
    assert mac.calls("commit") == 0
    assert bytes_at(address, 4096) == b"x" * 4096


def test_copies_of_any_alignment_equal_numpys(mac, port):
    chance, queue = random.Random(5), port.queue()
    memory = [port.reserve(MIB), port.reserve_private(MIB), port.pin(MIB)]
    data = np.frombuffer(random.Random(6).randbytes(3 * 65536), np.uint8).reshape(3, -1).copy()
    host = data.copy()
    for address, row in zip(memory, host, strict=True):
        queue.copy(address, row.ctypes.data, row.size)
    for _ in range(150):
        to, source = chance.randrange(3), chance.randrange(3)
        nbytes = chance.choice([1, 3, 4, 64, 1001, 8192])
        at, start = chance.randrange(65536 - nbytes), chance.randrange(65536 - nbytes)
        if chance.random() < 0.3:
            queue.fill(memory[to] + at, nbytes % 256, nbytes)
            data[to, at : at + nbytes] = nbytes % 256
        else:
            queue.copy(memory[to] + at, memory[source] + start, nbytes)
            data[to, at : at + nbytes] = data[source, start : start + nbytes].copy()
    found = np.zeros_like(data)
    for address, row in zip(memory, found, strict=True):
        queue.copy(row.ctypes.data, address, row.size)
    drain(queue)
    assert np.array_equal(found, data)


@pytest.mark.parametrize("byte", [0, 127, 128, 255])
def test_fill_with_any_byte(mac, port, byte):
    queue, address = port.queue(), port.reserve(MIB)
    queue.fill(address, byte, MIB)
    drain(queue)
    assert bytes_at(address, MIB) == bytes([byte]) * MIB


def test_range_beyond_the_memory_is_refused(mac, port):
    queue, address = port.queue(), port.reserve(MIB)
    with pytest.raises(DeviceError, match=r"end beyond the memory"):
        queue.fill(address + MIB - 8, 0, 16)
    assert queue.idle()


def test_private_memory_has_addresses_that_the_host_cannot_read(mac, port):
    address, queue = port.reserve_private(MIB), port.queue()
    assert port.memory_device(address + 5) == 0
    assert not any(line for line in Path("/proc/self/maps").read_text().splitlines() if _is_readable(line, address))
    queue.fill(address, 3, 100)
    target = ctypes.create_string_buffer(100)
    queue.copy(ctypes.addressof(target), address, 100)
    drain(queue)
    assert target.raw == b"\3" * 100
    port.release(address)
    assert port.memory_device(address) is None


def _is_readable(line: str, address: int) -> bool:
    span, access = line.split()[:2]
    first, end = (int(part, 16) for part in span.split("-"))
    return first <= address < end and access.startswith("r")


def test_function_cannot_wait_for_its_own_queue(mac, port):
    queue, caught = port.queue(), list[BaseException]()
    gate = Gate()

    def work():
        gate()
        try:
            queue.wait(queue.signal())
        except WrongState as error:
            caught.append(error)

    queue.call(work)
    gate.open()
    drain(queue)
    assert "cannot wait for the queue itself" in str(caught[0])


def test_host_functions_and_gpu_work_keep_their_order(mac, port):
    queue, address, seen = port.queue(), port.reserve(MIB), list[bytes]()
    for byte in range(50):
        queue.fill(address, byte, 64)
        queue.call(lambda: seen.append(bytes_at(address, 64)))
        if byte % 3 == 0:
            queue.call(lambda: ctypes.memset(address, 255, 64))
            queue.copy(address + 64, address, 64)
            queue.call(lambda: seen.append(bytes_at(address + 64, 64)))
    drain(queue)
    expected = [value for byte in range(50) for value in ([byte, 255] if byte % 3 == 0 else [byte])]
    assert seen == [bytes([value]) * 64 for value in expected]


def test_gpu_never_waits_for_a_host_function(mac, port):
    """A command buffer that waits for longer than some seconds fails with a timeout; here, if it waits at all."""
    queue, other, address, gate = port.queue(), port.queue(), port.reserve(MIB), Gate()
    mac.event_timeout = 0.0
    queue.fill(address, 1, 64)
    queue.call(gate)
    queue.copy(address + 64, address, 64)
    other.wait_for(queue, queue.signal())
    other.copy(address + 128, address + 64, 64)
    tick = other.signal()
    assert other.reached() < tick
    gate.open()
    other.wait(tick)
    queue.wait(queue.signal())
    assert bytes_at(address, 192) == b"\1" * 192


def test_failure_between_two_host_functions_does_not_end_their_thread(mac, port, monkeypatch):
    queue, address, gate, seen = port.queue(), port.reserve(MIB), Gate(), list[bytes]()
    advance, failures = queue._advance, [RuntimeError("no memory")]

    def failing():
        if queue._lane.is_current() and failures:
            raise failures.pop()
        return advance()

    monkeypatch.setattr(queue, "_advance", failing)
    queue.call(gate)
    queue.fill(address, 1, 64)
    gate.open()
    with pytest.raises(DeviceError, match="no memory"):
        queue.wait(queue.signal())
    queue.call(lambda: seen.append(bytes_at(address, 64)))
    drain(queue)
    assert seen == [b"\1" * 64]


def test_failure_of_a_host_function_is_known_before_the_queue_is_idle(mac, port, monkeypatch):
    """Else a wait that follows at once would not raise it."""
    queue, idle = port.queue(), list[bool]()
    note = queue._note_failure

    def noting(failure):
        idle.append(queue._lane.idle())
        note(failure)

    monkeypatch.setattr(queue, "_note_failure", noting)
    queue.call(lambda: 1 // 0)
    with pytest.raises(DeviceError, match="ZeroDivisionError"):
        queue.wait(queue.signal())
    assert idle == [False]


def test_close_with_a_time_limit_drops_work(mac, port):
    queue, other, address = port.queue(), port.queue(), port.reserve(MIB)
    ctypes.memset(address, 0, MIB)
    with mac.held():
        queue.fill(address, 1, 64)
        for byte in range(MOST_IN_FLIGHT + 5):
            queue.fill(address + 64 * byte, 2, 64)
            tick = queue.signal()
        other.wait_for(queue, tick)
        assert queue.close(0.01) is False
        assert queue.close()
    drain(other)  # what waits for a dropped tick continues
    assert bytes_at(address + 64 * (MOST_IN_FLIGHT + 4), 64) == bytes(64)


def test_close_waits_for_the_handlers_of_command_buffers(mac, port, monkeypatch):
    """A thread of Metal that needs the interpreter when it ends would be the end of the process."""
    queue, address, gate, running = port.queue(), port.reserve(MIB), threading.Event(), threading.Event()
    completed = queue._completed

    def slow():
        completed()
        running.set()
        assert gate.wait(20)

    monkeypatch.setattr(queue, "_completed", slow)
    queue.fill(address, 1, MIB)
    assert running.wait(20)
    drain(queue)
    with ThreadPoolExecutor(1) as pool:
        closed = pool.submit(queue.close)
        with pytest.raises(TimeoutError):
            closed.result(0.05)
        gate.set()
        assert closed.result(20)


def test_threads_share_a_port(mac, port):
    def work(number: int) -> bool:
        queue, chance = port.queue(), random.Random(number)
        for _ in range(20):
            nbytes = chance.choice([64, 4096, 65536])
            address = port.reserve(nbytes)
            queue.fill(address, number, nbytes)
            seen = list[bytes]()
            queue.call(lambda address=address, nbytes=nbytes, seen=seen: seen.append(bytes_at(address, nbytes)))
            drain(queue)
            port.release(address)
            if seen != [bytes([number]) * nbytes]:
                return False
        return queue.close()

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(work, range(8)))


def _interrupt(number, frame):
    """Raise KeyboardInterrupt at the next instruction of forebay: PyObjC is C code, which a handler cannot leave."""
    while "/src/forebay/" not in frame.f_code.co_filename and not frame.f_code.co_filename.endswith(
        "metal_scenario.py"
    ):
        frame = frame.f_back

    def raise_interrupt(_frame, event, _argument):
        if event == "opcode":
            sys.settrace(None)
            raise KeyboardInterrupt
        return raise_interrupt

    frame.f_trace, frame.f_trace_opcodes = raise_interrupt, True
    sys.settrace(lambda *_: None)


def test_interrupts_during_calls_of_metal_lose_nothing(mac):
    """A handler of SIGINT raises during a call of each selector. The work is then complete, and nothing is left."""
    gc.unfreeze()  # what earlier tests have left would keep objects of this one alive
    before = signal.signal(signal.SIGINT, _interrupt)
    try:
        _interrupt_each_call(mac)
    finally:
        signal.signal(signal.SIGINT, before)


def _interrupt_each_call(mac):
    expected = Scenario().run().read
    calls = {name: number for name, number in mac.calls().items() if number}
    for name, number in calls.items():
        for after in sorted({0, number // 2}):
            mac.interrupt(name, after)
            run = Scenario()
            try:
                run.run()
            except KeyboardInterrupt:
                pass
            finally:
                mac._interrupts.clear()
            assert run.failures == [], (name, after, run.failures)
            del run
            mac.check()
    again = Scenario().run()
    assert (again.failures, again.read) == ([], expected)
    del again
    for _ in range(200):
        gc.collect()
        if not {*mac.live()} - KEPT:
            break
        threading.Event().wait(0.005)
    assert {*mac.live()} <= KEPT
