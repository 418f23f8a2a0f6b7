"""Objects that wait for queued work, also after failures to signal their queue."""

from __future__ import annotations

import weakref

import pytest

from forebay.errors import DeviceError
from forebay.runtime.base.deferred_frees import DeferredFrees
from forebay.testing.fake import FakePort


class Kept:
    pass


@pytest.fixture
def port():
    return FakePort(1 << 20)


@pytest.fixture
def table():
    return DeferredFrees[tuple[object, ...]]()


def test_objects_behind_a_failed_signal_wait_for_a_later_tick(port, table):
    queue = port.queue()
    port.fail("signal")
    with pytest.raises(DeviceError), table.keep_alive(queue, (Kept(),)):
        queue.call(lambda: None)
    with table.keep_alive(queue, (Kept(),)):
        queue.call(lambda: None)
    table.discard_reached(queue)
    assert len(table.fifos[queue.handle]) == 2
    queue.finish()
    table.discard_reached(queue)
    assert not table


def test_objects_behind_a_failed_signal_are_kept_until_the_queue_can_be_signalled(port, table):
    queue = port.queue()
    for _ in range(2):
        port.fail("signal")
    with pytest.raises(DeviceError), table.keep_alive(queue, (Kept(),)):
        queue.call(lambda: None)
    with pytest.raises(DeviceError):
        table.discard_reached(queue)
    assert table
    queue.close()
    assert [*table.reached()] != []


def test_object_is_kept_while_its_work_is_queued(port, table):
    queue, kept = port.queue(), Kept()
    reference = weakref.ref(kept)
    with table.keep_alive(queue, (kept,)):
        del kept
        queue.finish()
        table.discard_reached(queue)
        assert reference() is not None
    queue.finish()
    table.discard_reached(queue)
    assert reference() is None
