"""Tests of the ability Captures: recording work instead of running it, launching it, and the errors of captures."""

from __future__ import annotations

import threading
from typing import Protocol, cast

import pytest

from forebay.errors import DeviceError, WrongState
from forebay.spi import Captures, Draw, Launches, Port, Queue, RandomNumbers
from forebay.testing.conformance.helpers import Scratch, drain, needs, needs_memory, read_back

__all__ = [
    "test_abandoned_capture_leaves_queue_usable",
    "test_capture_must_end_on_its_queue_and_thread",
    "test_captured_work_does_not_run",
    "test_each_launch_calls_functions_of_events",
    "test_invalidated_capture_rejects_work",
    "test_launch_inside_capture_is_recorded",
    "test_launch_repeats_recorded_work",
    "test_launches_of_one_recording_do_not_overlap",
    "test_queue_joins_capture_by_waiting",
    "test_recorded_draw_uses_seed_and_offset_of_launch",
    "test_unjoined_queue_fails_the_capture",
    "test_waits_across_capture_boundary_raise",
    "test_while_loop_runs_until_its_condition_is_zero",
]

_OVERLAP_TIMEOUT = 0.1  # seconds

# CUDA error codes of stream capture
_UNSUPPORTED, _INVALIDATED, _MERGE, _UNMATCHED, _UNJOINED, _ISOLATION, _CAPTURED_EVENT, _WRONG_THREAD = (
    *range(900, 906),
    907,
    908,
)


class _CapturingQueue(Captures, Queue, Protocol):
    """A queue with the ability Captures."""


def _new_queue(port: Port) -> _CapturingQueue:
    return cast("_CapturingQueue", port.queue())


def _new_capture(port: Port) -> _CapturingQueue:
    """Return a queue on which a capture has begun."""
    queue = _new_queue(port)
    queue.begin_capture()
    return queue


def _code_of(call: object, *arguments: object) -> int:
    """Return the code of the DeviceError that the call raises."""
    assert callable(call)
    with pytest.raises(DeviceError) as raised:
        call(*arguments)
    return raised.value.code


@needs(Captures)
@needs_memory
def test_captured_work_does_not_run(port: Port) -> None:
    memory, queue = Scratch(port, b"before"), _new_queue(port)
    assert queue.capture is None
    recorded = queue.begin_capture()
    assert queue.capture is recorded
    assert list(recorded.queues) == [queue.handle]
    queue.fill(memory.address, ord("x"), 6)
    assert queue.signal() < 0
    assert queue.end_capture() is recorded
    assert queue.capture is None
    assert [piece.op for piece in recorded.work] == ["fill"]
    assert read_back(queue, memory) == b"before"


@needs(Captures)
@needs_memory
def test_launch_repeats_recorded_work(port: Port) -> None:
    memory, queue = Scratch(port, b"abcdefgh"), _new_queue(port)
    recorded = queue.begin_capture()
    queue.copy(memory.address + 1, memory.address, 1)  # each copy depends on the one before
    queue.copy(memory.address + 2, memory.address + 1, 1)
    queue.end_capture()
    for first in b"xy":
        queue.fill(memory.address, first, 1)
        recorded.launch(queue)
        assert read_back(queue, memory) == bytes([first] * 3) + b"defgh"


@needs(Captures)
@needs_memory
def test_queue_joins_capture_by_waiting(port: Port) -> None:
    memory, one, other = Scratch(port, bytes(3)), _new_capture(port), _new_queue(port)
    one.fill(memory.address, 1, 1)
    other.wait_for(one, one.signal())
    recorded = other.capture
    assert recorded is not None
    assert recorded is one.capture
    other.fill(memory.address + 1, 2, 1)
    one.fill(memory.address + 2, 3, 1)
    filled = other.signal()
    assert recorded.precedes(filled, other)
    assert not recorded.precedes(filled, one)
    one.wait_for(other, filled)
    assert recorded.precedes(filled, one)
    one.copy(memory.address, memory.address + 1, 1)
    one.end_capture()
    assert other.capture is None
    assert [set(piece.dependencies) for piece in recorded.work] == [set(), {0}, {0}, {1, 2}]
    recorded.launch(port.queue())
    third = _new_queue(port)
    recorded.launch(third)
    assert read_back(third, memory) == b"\2\2\3"


@needs(Captures)
@needs_memory
def test_each_launch_calls_functions_of_events(port: Port) -> None:
    memory, queue, other = Scratch(port, bytes(1)), _new_capture(port), _new_queue(port)
    queue.fill(memory.address, 1, 1)
    recorded, ticks = queue.capture, list[tuple[Queue, int]]()
    assert recorded is not None
    recorded.add_event(queue, "record_event", 1, lambda on: ticks.append((on, on.signal())))
    queue.fill(memory.address, 2, 1)
    recorded.add_event(queue, "record_event", 1, lambda on: ticks.append((on, on.signal())))
    queue.end_capture()
    assert [node.op for node in recorded.work] == ["fill", "record_event", "fill", "record_event"]
    assert ticks == []
    recorded.launch(other)
    assert [on for on, _ in ticks] == [other, other]
    assert ticks[0][1] < ticks[1][1]
    other.wait(ticks[1][1])
    assert read_back(queue, memory) == b"\2"


@needs(Captures)
def test_unjoined_queue_fails_the_capture(port: Port) -> None:
    memory, one, other = Scratch(port, bytes(2)), _new_capture(port), _new_queue(port)
    other.wait_for(one, one.signal())
    other.fill(memory.address, 1, 1)
    assert _code_of(one.end_capture) == _UNJOINED
    for queue in (one, other):
        queue.fill(memory.address, 2, 1)
        drain(queue)


@needs(Captures)
def test_waits_across_capture_boundary_raise(port: Port) -> None:
    outside, one, other = _new_queue(port), _new_capture(port), _new_capture(port)
    tick = one.signal()
    assert _code_of(one.wait_for, outside, outside.signal()) == _ISOLATION
    assert _code_of(one.signal) == _INVALIDATED
    third = _new_capture(port)
    assert _code_of(third.wait_for, other, other.signal()) == _MERGE
    for queue in (one, other, third):
        assert _code_of(queue.end_capture) == _INVALIDATED
    assert _code_of(outside.wait_for, one, tick) == _CAPTURED_EVENT
    assert _code_of(outside.wait, tick) == _CAPTURED_EVENT
    assert outside.idle() or outside.reached() >= 0


@needs(Captures)
@pytest.mark.parametrize("query", ["idle", "wait"])
def test_invalidated_capture_rejects_work(port: Port, query: str) -> None:
    memory, queue = Scratch(port, bytes(1)), _new_capture(port)
    tick = queue.signal()
    assert _code_of(queue.idle if query == "idle" else lambda: queue.wait(tick)) == _UNSUPPORTED
    assert _code_of(queue.fill, memory.address, 1, 1) == _INVALIDATED
    assert _code_of(queue.end_capture) == _INVALIDATED
    assert queue.capture is None
    queue.fill(memory.address, 1, 1)
    drain(queue)


@needs(Captures)
def test_capture_must_end_on_its_queue_and_thread(port: Port) -> None:
    one, other = _new_capture(port), _new_queue(port)
    codes = list[int]()
    thread = threading.Thread(target=lambda: codes.append(_code_of(one.end_capture)))
    thread.start()
    thread.join(20)
    assert codes == [_WRONG_THREAD]
    other.wait_for(one, one.signal())
    assert _code_of(other.end_capture) == _UNMATCHED
    assert _code_of(one.end_capture) == _INVALIDATED
    with pytest.raises(DeviceError):
        one.end_capture()  # the capture has ended
    with pytest.raises(DeviceError):
        _new_capture(port).begin_capture()  # a capture is active


@needs(Captures)
@needs_memory
def test_abandoned_capture_leaves_queue_usable(port: Port) -> None:
    memory, queue = Scratch(port, b"a"), _new_capture(port)
    recorded = queue.capture
    queue.fill(memory.address, ord("b"), 1)
    queue.abandon_capture()
    queue.abandon_capture()
    assert recorded is not None
    with pytest.raises((WrongState, DeviceError)):
        recorded.launch(queue)
    assert read_back(queue, memory) == b"a"
    assert _new_capture(port).close()
    port.close()


@needs(Captures, Launches)
@needs_memory
def test_launches_of_one_recording_do_not_overlap(port: Port) -> None:
    """The first launch waits for the second one to begin, which must time out: launches of one recording are serial."""
    second_began, seen, queue, other = threading.Event(), list[str](), _new_queue(port), _new_queue(port)
    assert isinstance(queue, Launches)

    def begin() -> None:
        if seen:
            second_began.set()
        seen.append("begun")
        if len(seen) == 1 and second_began.wait(_OVERLAP_TIMEOUT):
            seen.append("overlap")

    recorded = queue.begin_capture()
    queue.call(begin)
    queue.call(lambda: seen.append("ended"))
    queue.end_capture()
    recorded.launch(queue)
    recorded.launch(other)
    other.wait(other.signal())
    assert seen == ["begun", "ended"] * 2


@needs(Captures)
@needs_memory
def test_launch_inside_capture_is_recorded(port: Port) -> None:
    memory, queue = Scratch(port, b"abc"), _new_queue(port)
    inner = queue.begin_capture()
    queue.copy(memory.address + 1, memory.address, 1)
    queue.end_capture()
    outer = queue.begin_capture()
    queue.fill(memory.address, ord("x"), 1)
    inner.launch(queue)
    queue.copy(memory.address + 2, memory.address + 1, 1)
    queue.end_capture()
    assert [piece.dependencies for piece in outer.work] == [(), (0,), (1,)]
    outer.launch(queue)
    assert read_back(queue, memory) == b"xxx"


@needs(Captures)
@needs_memory
def test_while_loop_runs_until_its_condition_is_zero(port: Port) -> None:
    """Each iteration shifts two rows by one byte. Of the two conditionals after the loop only the second one runs."""
    memory, queue = Scratch(port, b"\1\1\1\0\0\0\0\0abcdefgh"), _new_capture(port)
    recorded, base = queue.capture, memory.address
    assert recorded is not None
    recorded.begin_while(queue, base)
    queue.copy(base, base + 1, 4)
    queue.copy(base + 8, base + 9, 4)
    recorded.update_condition(queue, base)
    recorded.end_body(queue)
    recorded.begin_if(queue, base)
    queue.fill(base + 15, 0, 1)
    recorded.end_body(queue)
    recorded.begin_if(queue, base + 8)
    queue.fill(base + 14, ord("G"), 1)
    recorded.end_body(queue)
    with pytest.raises(WrongState):
        recorded.end_body(queue)
    queue.end_capture()
    recorded.launch(queue)
    found = read_back(queue, memory)
    assert (found[0], found[8:9], found[14:]) == (0, b"d", b"Gh")


@needs(Captures, RandomNumbers)
@needs_memory
def test_recorded_draw_uses_seed_and_offset_of_launch(port: Port) -> None:
    memory, queue = Scratch(port, bytes(64)), _new_queue(port)
    assert isinstance(queue, RandomNumbers)
    plan = Draw("uniform", "float32", memory.address, 4, (), 0, 4, 256, (0.0, 1.0, 1.0))
    recorded = queue.begin_capture()
    queue.draw(plan)
    queue.end_capture()
    for seed, offset in ((1, 0), (2, 8)):
        recorded.launch(queue, [(seed, offset)])
        queue.draw(plan._replace(address=memory.address + 32, seed=seed, offset=offset + 4))
        found = read_back(queue, memory)
        assert found[:16] == found[32:48] != bytes(16)
