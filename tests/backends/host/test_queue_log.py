"""HostLog: argument validation and lifetime."""

from __future__ import annotations

import gc
import threading

import pytest

from forebay import backends
from forebay.errors import WrongState


@pytest.fixture
def port():
    port = backends.driver("cpu").open(0)
    yield port
    port.close()


@pytest.mark.parametrize("most", [0, -1, 1.5, "many", None])
def test_log_rejects_invalid_length(port, most):
    with pytest.raises((ValueError, TypeError)):
        port.queue().log(most)


@pytest.mark.parametrize("most", [1 << 62, 1 << 63, (1 << 64) + 5])
def test_log_that_is_too_long_raises_memory_error(port, most):
    with pytest.raises(MemoryError):
        port.queue().log(most)


def test_log_outlives_a_closed_queue(port):
    queue = port.queue()
    log = queue.log(10)
    queue.call(lambda: None)
    queue.wait(queue.signal())
    number = queue.last_work_number()
    queue.close()
    with pytest.raises(WrongState, match="closed"):
        queue.log(10)
    ((begin, end),) = log([number])
    del queue
    gc.collect()
    assert log([number]) == [(begin, end)]
    assert 0 < begin <= end


@pytest.mark.parametrize("number", [-1, "one", 1.5, (1 << 64) + 1])
def test_log_rejects_invalid_number(port, number):
    with pytest.raises((ValueError, TypeError)):
        port.queue().log(10)([number])


@pytest.mark.slow
def test_logs_can_be_created_and_dropped_during_work(port):
    queue, stop = port.queue(), threading.Event()

    def create_logs():
        while not stop.is_set():
            queue.log(3)

    thread = threading.Thread(target=create_logs)
    thread.start()
    try:
        for most in range(1, 200):
            log = queue.log(most)
            queue.call(lambda: None)
            queue.wait(queue.signal())
            ((begin, end),) = log([queue.last_work_number()])
            assert 0 < begin <= end
    finally:
        stop.set()
        thread.join(20)
