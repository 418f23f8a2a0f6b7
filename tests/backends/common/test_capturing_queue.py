"""Classes of queues during a capture: layout, abilities, and return to the queue's own class."""

from __future__ import annotations

import pytest

from forebay.backends.common.capture_recorder import CaptureRecorder
from forebay.backends.common.capturing_queue import CaptureMixin, capturing_class
from forebay.errors import DeviceError
from forebay.spi import Captures, Launches, RandomNumbers, StridedCopies


class Graph(CaptureRecorder):
    def launch(self, queue, sources=()): ...


class Port:
    def new_graph(self, first, mode, queues):
        return Graph(first, mode, queues)


class Queue(CaptureMixin):
    """A queue without abilities but `Captures`, whose work is a list."""

    def __init__(self):
        self.owner, self.handle, self.done = Port(), id(self), []

    def copy(self, dst, src, nbytes):
        self.done.append("copy")

    def fill(self, dst, byte, nbytes):
        self.done.append("fill")

    def signal(self):
        return len(self.done)

    def reached(self):
        return len(self.done)

    def idle(self):
        return True

    def wait(self, tick):
        self.check_not_captured(tick)
        self.done.append("wait")

    def wait_for(self, other, tick): ...

    def close(self, timeout=None):
        self.done.append("close")
        return True

    def same_kind(self, other):
        if not isinstance(other, Queue):
            raise TypeError("another kind")
        return other

    def check_usable(self): ...

    def driver_error(self, code, call):
        return DeviceError(f"code {code}", code=code, call=call)


class SlottedQueue(Queue):
    __slots__ = ("more",)


@pytest.mark.parametrize("queue_class", [Queue, SlottedQueue])
def test_work_of_a_capture_is_recorded_and_not_executed(queue_class):
    queue = queue_class()
    queue.fill(1, 2, 3)
    graph = queue.begin_capture()
    assert queue.capture is graph
    assert isinstance(queue, queue_class)
    queue.copy(1, 2, 3)
    queue.fill(4, 5, 6)
    assert queue.signal() < 0
    assert queue.end_capture() is graph
    assert [node.op for node in graph.work] == ["copy", "fill"]
    assert graph.work[1].details == {"to": 4, "byte": 5, "nbytes": 6}
    assert (queue.done, type(queue), queue.capture) == (["fill"], queue_class, None)
    assert not hasattr(queue, "recording")


def test_queue_gets_no_ability_by_a_capture():
    queue = Queue()
    queue.begin_capture()
    assert isinstance(queue, Captures)
    assert not isinstance(queue, (Launches, RandomNumbers, StridedCopies))
    assert not hasattr(queue, "mark")
    queue.abandon_capture()


def test_queue_waits_for_ticks_from_before_the_capture():
    queue = Queue()
    tick = queue.signal()
    queue.begin_capture()
    queue.wait(tick)
    assert queue.done == ["wait"]
    with pytest.raises(DeviceError, match="code 900"):
        queue.wait(queue.signal())
    queue.abandon_capture()


CALLS = {"copy": (1, 2, 3), "fill": (1, 2, 3), "signal": (), "idle": (), "wait": (0,), "wait_for": (None, 0)}


@pytest.mark.parametrize("name", CALLS)
def test_call_that_began_in_a_capture_is_executed_after_its_end(name):
    queue = Queue()
    graph = queue.begin_capture()
    call = getattr(queue, name)  # as another thread has looked it up
    queue.end_capture()
    arguments = tuple(queue if argument is None else argument for argument in CALLS[name])
    assert call(*arguments) == getattr(queue, name)(*arguments)
    assert queue.done == [name] * (0 if name in ("signal", "idle", "wait_for") else 2)
    assert (graph.work, queue.capture) == ([], None)


@pytest.mark.parametrize("ends", ["end_capture", "abandon_capture"])
def test_graph_gets_no_work_after_the_end_of_its_capture(ends):
    class Address:
        def __index__(self):  # is read while the call is under way
            getattr(queue, ends)()
            return 1

    queue = Queue()
    graph = queue.begin_capture()
    with pytest.raises(DeviceError, match="code 901"):
        queue.copy(Address(), 2, 3)
    assert (graph.work, queue.done, type(queue)) == ([], [], Queue)
    with pytest.raises(DeviceError, match="code 901"):
        graph.signal(queue)


def test_closed_queue_leaves_its_capture():
    queue = Queue()
    graph = queue.begin_capture()
    assert queue.close()
    assert (queue.done, type(queue)) == (["close"], Queue)
    with pytest.raises(DeviceError, match="code 401"):
        queue.end_capture()
    assert graph.queues == {}


def test_capturing_queue_refuses_queues_of_other_kinds():
    queue = Queue()
    queue.begin_capture()
    with pytest.raises(TypeError, match="another kind"):
        queue.wait_for(object(), 1)
    queue.abandon_capture()


def test_interrupt_before_the_class_changes_leaves_the_queue_as_it_was(monkeypatch):
    def interrupted(_):
        raise KeyboardInterrupt

    queue = Queue()
    with monkeypatch.context() as planted:
        planted.setattr("forebay.backends.common.capturing_queue.capturing_class", interrupted)
        with pytest.raises(KeyboardInterrupt):
            queue.begin_capture()
    assert (type(queue), hasattr(queue, "recording")) == (Queue, False)
    queue.begin_capture()
    queue.end_capture()


def test_each_class_has_one_capturing_class():
    assert capturing_class(Queue) is capturing_class(Queue)
    assert capturing_class(SlottedQueue).__base__ is SlottedQueue
    assert capturing_class(Queue).__name__ == "CapturingQueue"
