"""Ring buffer of trace entries: lifetime of its content, reentrancy and threads."""

from __future__ import annotations

import _thread
import gc
import threading
import weakref
from functools import partial

import pytest

import forebay
from forebay.observe import Trace
from forebay.observe.tracing._entries import OPERATION, RANGE, WAITED, Entries, OperationStart
from forebay.observe.tracing.recorder import Recorder

pytestmark = pytest.mark.usefixtures("clean")
LIMIT = 10  # seconds


class Thing:
    pass


def make_entries(most):
    return Entries(most, threading.local(), lambda _file: False)


@pytest.fixture
def recorder():
    made = Recorder(1000)
    made.begin()
    yield made
    made.finish(LIMIT)


def finished_rows(recorder, entry_type):
    recorder.finish(LIMIT)
    return [row for row in recorder.rows() if row[0] == entry_type]


def test_full_ring_drops_its_oldest_entries_and_their_references():
    kept, things = make_entries(2), [Thing() for _ in range(5)]
    seen = [weakref.ref(thing) for thing in things]
    while things:
        kept.add(RANGE, (things.pop(0),))
    assert [thing() is not None for thing in seen] == [False, False, False, True, True]
    kept.close()
    assert kept.rows() == [(RANGE, 3, seen[3]()), (RANGE, 4, seen[4]())]
    assert kept.lost == 3


@pytest.mark.parametrize("end", [Entries.clear, Entries.__init__, None], ids=["cleared", "initialised", "deleted"])
def test_deleted_entries_release_their_references(end):
    kept, thing = make_entries(3), Thing()
    kept.add(RANGE, (thing,))
    seen = weakref.ref(thing)
    del thing
    if end is None:
        del kept
    elif end is Entries.clear:
        kept.clear()
    else:
        kept.__init__(3, threading.local(), lambda _file: False)
    assert seen() is None


def test_destructor_may_add_to_the_ring_that_drops_it():
    kept = make_entries(2)

    class AddsWhenDeleted:
        def __del__(self):
            kept.add(RANGE, ("deleted",))

    for _ in range(3):
        kept.add(RANGE, (AddsWhenDeleted(),))
    kept.close()
    assert [fields for _, _, *fields in kept.rows()][-1] == ["deleted"]
    assert len(kept.rows()) == 2
    kept.clear()
    assert kept.rows() == []


def test_closed_ring_accepts_no_entries():
    kept = make_entries(2)
    kept.add(RANGE, (1,))
    kept.close()
    kept.add(RANGE, (2,))
    assert kept.closed
    assert kept.rows() == [(RANGE, 0, 1)]


def test_uninitialised_entries_are_empty():
    empty = Entries.__new__(Entries)
    assert (empty.rows(), empty.lost) == ([], 0)
    with pytest.raises(TypeError):
        empty.queued(None, None, "fill", "fill_")
    with pytest.raises(AttributeError, match="track"):
        empty.queueing(object())


def test_finished_recorder_is_garbage_collected():
    recorder = Recorder(10)
    recorder.begin()
    forebay.zeros(3)
    recorder.finish(LIMIT)
    seen = weakref.ref(recorder)
    del recorder
    gc.collect()
    assert seen() is None


def test_work_not_queued_by_the_program_has_no_source_line(recorder):
    tensor, done = forebay.zeros(3), threading.Event()

    class SetsWhenDeleted:
        def __del__(self):
            done.set()

    work = partial(tensor.fill_, 7)
    work.over = SetsWhenDeleted()
    _thread.start_new_thread(work, ())  # the first frame of that thread is forebay's own
    del work
    assert done.wait(LIMIT)
    forebay.synchronize("cpu")
    fill = finished_rows(recorder, OPERATION)[-1]
    assert (fill[5], fill[8]) == (None, "fill_")


def test_source_line_of_a_wait_is_the_programs(recorder):
    stream, event = forebay.current_stream("cpu"), forebay.Event()
    event.record(stream)
    event.synchronize()
    stream.synchronize()
    forebay.synchronize("cpu")
    names = {row[5].co_name for row in finished_rows(recorder, WAITED)}
    assert names == {"test_source_line_of_a_wait_is_the_programs"}


def test_concurrent_entries_are_all_counted():
    recorder, rounds = Recorder(50), 500
    recorder.begin()

    def work():
        with forebay.Stream("cpu"):
            tensor = forebay.empty(8)
            for _ in range(rounds):
                tensor.fill_(1)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT)
    recorder.finish(LIMIT)
    rows = recorder.rows()
    assert len(rows) == 50
    assert recorder.lost + len(rows) >= 4 * rounds
    assert [number for _, number, *_ in rows] == list(range(recorder.lost, recorder.lost + 50))


@pytest.mark.parametrize(
    "misuse",
    [
        lambda kept: kept.count(None),
        lambda kept: kept.queued(None, None, "fill", "fill_"),
        lambda kept: kept.queued(None, OperationStart.__new__(OperationStart), "fill", "fill_"),
        lambda kept: kept.host_waited(None, 0),
        lambda _kept: OperationStart(),
    ],
    ids=["no track", "no token", "empty token", "track() returns None", "constructed token"],
)
def test_invalid_entry_raises(misuse):
    class NoTracks(Entries):
        def track(self, _queue):
            return None

    with pytest.raises(TypeError):
        misuse(NoTracks(2, threading.local(), lambda _file: False))


def test_rows_of_open_entries_raise_value_error():
    with pytest.raises(ValueError, match="close"):
        make_entries(2).rows()


def test_written_trace_releases_the_queues_log(tmp_path):
    trace = Trace(tmp_path / "made.pftrace")
    trace.start()
    forebay.zeros(3)
    (track,) = (track for track in trace._recorder.queue_tracks.values() if track.logs)
    log = weakref.ref(track.log)
    del track
    trace.stop()
    assert log() is None
