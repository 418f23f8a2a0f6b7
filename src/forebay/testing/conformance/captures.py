"""Captures: what is recorded instead of done, what comes of it when it is launched, and what cannot be recorded."""

from __future__ import annotations

import threading
from typing import Protocol, cast

import pytest

from forebay.errors import DeviceError, WrongState
from forebay.spi import Captures, Draw, Launches, Port, Queue, Randoms
from forebay.testing.conformance.scenes import Scratch, drain, needs, not_imaginary, read

__all__ = [
    "test_a_broken_recording_takes_nothing_more",
    "test_a_launch_repeats_what_was_recorded",
    "test_a_loop_goes_on_until_its_byte_is_zero",
    "test_a_queue_takes_part_by_waiting",
    "test_a_recorded_draw_gets_its_numbers_at_the_launch",
    "test_a_recording_ends_where_and_by_whom_it_began",
    "test_a_recording_within_a_recording",
    "test_an_abandoned_recording_leaves_the_queue_at_work",
    "test_launches_on_two_queues_do_not_overlap",
    "test_nothing_is_done_while_it_is_recorded",
    "test_what_is_not_joined_is_told",
    "test_what_outside_a_recording_cannot_be_waited_for",
]

_IN_VAIN = 0.1  # seconds

_UNSUPPORTED, _BROKEN, _MERGE, _UNMATCHED, _UNJOINED, _ISOLATED, _CAPTURED, _WRONG_THREAD = *range(900, 906), 907, 908


class _Recorder(Captures, Queue, Protocol):
    """A queue that can record."""


def _recorder(port: Port) -> _Recorder:
    return cast("_Recorder", port.queue())


def _recording(port: Port) -> _Recorder:
    """A queue that does."""
    queue = _recorder(port)
    queue.begin_capture()
    return queue


def _code_of(call: object, *arguments: object) -> int:
    """The number of the error that the call raises."""
    assert callable(call)
    with pytest.raises(DeviceError) as raised:
        call(*arguments)
    return raised.value.code


@needs(Captures)
@not_imaginary
def test_nothing_is_done_while_it_is_recorded(port: Port) -> None:
    memory, queue = Scratch(port, b"before"), _recorder(port)
    assert queue.capture is None
    recorded = queue.begin_capture()
    assert queue.capture is recorded
    assert list(recorded.queues) == [queue.handle]
    queue.fill(memory.address, ord("x"), 6)
    assert queue.signal() < 0
    assert queue.end_capture() is recorded
    assert queue.capture is None
    assert [piece.what for piece in recorded.work] == ["fill"]
    assert read(queue, memory) == b"before"


@needs(Captures)
@not_imaginary
def test_a_launch_repeats_what_was_recorded(port: Port) -> None:
    memory, queue = Scratch(port, b"abcdefgh"), _recorder(port)
    recorded = queue.begin_capture()
    queue.copy(memory.address + 1, memory.address, 1)  # each comes after the one before
    queue.copy(memory.address + 2, memory.address + 1, 1)
    queue.end_capture()
    for first in b"xy":
        queue.fill(memory.address, first, 1)
        recorded.launch(queue)
        assert read(queue, memory) == bytes([first] * 3) + b"defgh"


@needs(Captures)
@not_imaginary
def test_a_queue_takes_part_by_waiting(port: Port) -> None:
    memory, one, other = Scratch(port, bytes(3)), _recording(port), _recorder(port)
    one.fill(memory.address, 1, 1)
    other.wait_for(one, one.signal())
    recorded = other.capture
    assert recorded is not None
    assert recorded is one.capture
    other.fill(memory.address + 1, 2, 1)
    one.fill(memory.address + 2, 3, 1)
    one.wait_for(other, other.signal())
    one.copy(memory.address, memory.address + 1, 1)
    one.end_capture()
    assert other.capture is None
    assert [set(piece.after) for piece in recorded.work] == [set(), {0}, {0}, {1, 2}]
    recorded.launch(port.queue())
    third = _recorder(port)
    recorded.launch(third)
    assert read(third, memory) == b"\2\2\3"


@needs(Captures)
def test_what_is_not_joined_is_told(port: Port) -> None:
    memory, one, other = Scratch(port, bytes(2)), _recording(port), _recorder(port)
    other.wait_for(one, one.signal())
    other.fill(memory.address, 1, 1)
    assert _code_of(one.end_capture) == _UNJOINED
    for queue in (one, other):
        queue.fill(memory.address, 2, 1)
        drain(queue)


@needs(Captures)
def test_what_outside_a_recording_cannot_be_waited_for(port: Port) -> None:
    outside, one, other = _recorder(port), _recording(port), _recording(port)
    tick = one.signal()
    assert _code_of(one.wait_for, outside, outside.signal()) == _ISOLATED
    assert _code_of(one.signal) == _BROKEN
    third = _recording(port)
    assert _code_of(third.wait_for, other, other.signal()) == _MERGE
    for queue in (one, other, third):
        assert _code_of(queue.end_capture) == _BROKEN
    assert _code_of(outside.wait_for, one, tick) == _CAPTURED
    assert _code_of(outside.wait, tick) == _CAPTURED
    assert outside.idle() or outside.reached() >= 0


@needs(Captures)
@pytest.mark.parametrize("asked", ["idle", "wait"])
def test_a_broken_recording_takes_nothing_more(port: Port, asked: str) -> None:
    memory, queue = Scratch(port, bytes(1)), _recording(port)
    tick = queue.signal()
    assert _code_of(queue.idle if asked == "idle" else lambda: queue.wait(tick)) == _UNSUPPORTED
    assert _code_of(queue.fill, memory.address, 1, 1) == _BROKEN
    assert _code_of(queue.end_capture) == _BROKEN
    assert queue.capture is None
    queue.fill(memory.address, 1, 1)
    drain(queue)


@needs(Captures)
def test_a_recording_ends_where_and_by_whom_it_began(port: Port) -> None:
    one, other = _recording(port), _recorder(port)
    codes = list[int]()
    thread = threading.Thread(target=lambda: codes.append(_code_of(one.end_capture)))
    thread.start()
    thread.join(20)
    assert codes == [_WRONG_THREAD]
    other.wait_for(one, one.signal())
    assert _code_of(other.end_capture) == _UNMATCHED
    assert _code_of(one.end_capture) == _BROKEN
    with pytest.raises(DeviceError):
        one.end_capture()  # there is none any more
    with pytest.raises(DeviceError):
        _recording(port).begin_capture()  # there is one


@needs(Captures)
@not_imaginary
def test_an_abandoned_recording_leaves_the_queue_at_work(port: Port) -> None:
    memory, queue = Scratch(port, b"a"), _recording(port)
    recorded = queue.capture
    queue.fill(memory.address, ord("b"), 1)
    queue.abandon_capture()
    queue.abandon_capture()
    assert recorded is not None
    with pytest.raises((WrongState, DeviceError)):
        recorded.launch(queue)
    assert read(queue, memory) == b"a"
    assert _recording(port).close()
    port.close()


@needs(Captures, Launches)
@not_imaginary
def test_launches_on_two_queues_do_not_overlap(port: Port) -> None:
    """The first launch waits for the second one in vain, which is elsewhere, and waits for it."""
    second, seen, queue, other = threading.Event(), list[str](), _recorder(port), _recorder(port)
    assert isinstance(queue, Launches)

    def begin() -> None:
        if seen:
            second.set()
        seen.append("begun")
        if len(seen) == 1 and second.wait(_IN_VAIN):
            seen.append("the other one has begun")

    recorded = queue.begin_capture()
    queue.call(begin)
    queue.call(lambda: seen.append("ended"))
    queue.end_capture()
    recorded.launch(queue)
    recorded.launch(other)
    other.wait(other.signal())
    assert seen == ["begun", "ended"] * 2


@needs(Captures)
@not_imaginary
def test_a_recording_within_a_recording(port: Port) -> None:
    memory, queue = Scratch(port, b"abc"), _recorder(port)
    inner = queue.begin_capture()
    queue.copy(memory.address + 1, memory.address, 1)
    queue.end_capture()
    outer = queue.begin_capture()
    queue.fill(memory.address, ord("x"), 1)
    inner.launch(queue)
    queue.copy(memory.address + 2, memory.address + 1, 1)
    queue.end_capture()
    assert [piece.after for piece in outer.work] == [(), (0,), (1,)]
    outer.launch(queue)
    assert read(queue, memory) == b"xxx"


@needs(Captures)
@not_imaginary
def test_a_loop_goes_on_until_its_byte_is_zero(port: Port) -> None:
    """Two rows are moved on by one byte each time; behind the loop stands a part that is not done."""
    memory, queue = Scratch(port, b"\1\1\1\0\0\0\0\0abcdefgh"), _recording(port)
    recorded, base = queue.capture, memory.address
    assert recorded is not None
    recorded.begin_while(queue, base)
    queue.copy(base, base + 1, 4)
    queue.copy(base + 8, base + 9, 4)
    recorded.set_again(queue, base)
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
    found = read(queue, memory)
    assert (found[0], found[8:9], found[14:]) == (0, b"d", b"Gh")


@needs(Captures, Randoms)
@not_imaginary
def test_a_recorded_draw_gets_its_numbers_at_the_launch(port: Port) -> None:
    memory, queue = Scratch(port, bytes(64)), _recorder(port)
    assert isinstance(queue, Randoms)
    plan = Draw("uniform", "float32", memory.address, 4, (), 0, 4, 256, (0.0, 1.0, 1.0))
    recorded = queue.begin_capture()
    queue.draw(plan)
    queue.end_capture()
    for seed, offset in ((1, 0), (2, 8)):
        recorded.launch(queue, [(seed, offset)])
        queue.draw(plan._replace(address=memory.address + 32, seed=seed, offset=offset + 4))
        found = read(queue, memory)
        assert found[:16] == found[32:48] != bytes(16)
