"""A host queue's log, as Python asks for it: what is refused, and that it outlives its queue."""

from __future__ import annotations

import gc
import threading

import pytest

from forebay import backends
from forebay.errors import WrongState


@pytest.fixture
def port():
    port = backends.driver("host").open(0)
    yield port
    port.close()


@pytest.mark.parametrize("most", [0, -1, 1.5, "many", None])
def test_nonsense_is_refused(port, most):
    with pytest.raises((ValueError, TypeError)):
        port.queue().log(most)


@pytest.mark.parametrize("most", [1 << 62, 1 << 63, (1 << 64) + 5])
def test_more_than_there_can_be_is_refused(port, most):
    with pytest.raises(MemoryError):
        port.queue().log(most)


def test_a_closed_queue_begins_no_log_and_an_old_one_remains(port):
    queue = port.queue()
    log = queue.log(10)
    queue.call(lambda: None)
    queue.wait(queue.signal())
    number = queue.given()
    queue.close()
    with pytest.raises(WrongState, match="closed"):
        queue.log(10)
    begin, end = log(number)
    del queue
    gc.collect()
    assert log(number) == (begin, end)
    assert 0 < begin <= end


@pytest.mark.parametrize("number", [-1, "one", 1.5, (1 << 64) + 1])
def test_a_number_is_one(port, number):
    with pytest.raises((ValueError, TypeError)):
        port.queue().log(10)(number)


def test_logs_come_and_go_while_the_queue_works(port):
    queue, stop = port.queue(), threading.Event()

    def come_and_go():
        while not stop.is_set():
            queue.log(3)

    thread = threading.Thread(target=come_and_go)
    thread.start()
    try:
        for most in range(1, 200):
            log = queue.log(most)
            queue.call(lambda: None)
            queue.wait(queue.signal())
            begin, end = log(queue.given())
            assert 0 < begin <= end
    finally:
        stop.set()
        thread.join(20)
