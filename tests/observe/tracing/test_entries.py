"""The ring that a trace is kept in: what it holds, what it lets go, and who may come in between."""

from __future__ import annotations

import _thread
import gc
import threading
import weakref
from functools import partial

import pytest

import forebay
from forebay.observe import Trace
from forebay.observe.tracing._entries import OPERATION, RANGE, WAITED, Begun, Entries
from forebay.observe.tracing.recorder import Recorder

pytestmark = pytest.mark.usefixtures("clean")
LIMIT = 10  # seconds


class Thing:
    pass


def entries(most):
    return Entries(most, threading.local(), lambda _file: False)


@pytest.fixture
def recorder():
    made = Recorder(1000)
    made.begin()
    yield made
    made.finish(LIMIT)


def of(recorder, about):
    recorder.finish(LIMIT)
    return [row for row in recorder.rows() if row[0] == about]


def test_the_oldest_go_when_there_is_no_room_and_so_does_what_they_held():
    kept, things = entries(2), [Thing() for _ in range(5)]
    seen = [weakref.ref(thing) for thing in things]
    while things:
        kept.add(RANGE, (things.pop(0),))
    assert [thing() is not None for thing in seen] == [False, False, False, True, True]
    kept.close()
    assert kept.rows() == [(RANGE, 3, seen[3]()), (RANGE, 4, seen[4]())]
    assert kept.lost == 3


@pytest.mark.parametrize("end", [Entries.clear, Entries.__init__, None], ids=["cleared", "begun anew", "dropped"])
def test_the_end_of_entries_is_the_end_of_what_they_held(end):
    kept, thing = entries(3), Thing()
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


def test_a_destructor_may_add_to_the_ring_that_drops_it():
    kept = entries(2)

    class Telling:
        def __del__(self):
            kept.add(RANGE, ("gone",))

    for _ in range(3):
        kept.add(RANGE, (Telling(),))
    kept.close()
    assert [fields for _, _, *fields in kept.rows()][-1] == ["gone"]
    assert len(kept.rows()) == 2
    kept.clear()
    assert kept.rows() == []


def test_what_was_closed_keeps_no_more():
    kept = entries(2)
    kept.add(RANGE, (1,))
    kept.close()
    kept.add(RANGE, (2,))
    assert kept.closed
    assert kept.rows() == [(RANGE, 0, 1)]


def test_one_that_was_never_begun_holds_nothing():
    never = Entries.__new__(Entries)
    assert (never.rows(), never.lost) == ([], 0)
    with pytest.raises(TypeError):
        never.queued(None, None, "fill", "fill_")
    with pytest.raises(AttributeError, match="line"):
        never.queueing(object())


def test_a_forgotten_recorder_is_collected():
    recorder = Recorder(10)
    recorder.begin()
    forebay.zeros(3)
    recorder.finish(LIMIT)
    seen = weakref.ref(recorder)
    del recorder
    gc.collect()
    assert seen() is None


def test_work_that_no_line_of_the_program_asked_for_has_none(recorder):
    tensor, done = forebay.zeros(3), threading.Event()

    class Done:
        def __del__(self):
            done.set()

    work = partial(tensor.fill_, 7)
    work.over = Done()
    _thread.start_new_thread(work, ())  # the first frame of that thread is forebay's own
    del work
    assert done.wait(LIMIT)
    forebay.synchronize("host:0")
    fill = of(recorder, OPERATION)[-1]
    assert (fill[5], fill[8]) == (None, "fill_")


def test_the_line_is_the_callers_however_deep_the_wait_is(recorder):
    stream, event = forebay.current_stream("host:0"), forebay.Event()
    event.record(stream)
    event.synchronize()
    stream.synchronize()
    forebay.synchronize("host:0")
    names = {row[5].co_name for row in of(recorder, WAITED)}
    assert names == {"test_the_line_is_the_callers_however_deep_the_wait_is"}


def test_threads_lose_no_entry():
    recorder, rounds = Recorder(50), 500
    recorder.begin()

    def work():
        with forebay.Stream("host:0"):
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
        lambda kept: kept.queued(None, Begun.__new__(Begun), "fill", "fill_"),
        lambda kept: kept.host_waited(None, 0),
        lambda _kept: Begun(),
    ],
    ids=["no line", "nothing begun", "an empty beginning", "a line that is none", "a beginning of one's own"],
)
def test_nothing_is_refused(misuse):
    class Careless(Entries):
        def line(self, _queue):
            return None

    with pytest.raises(TypeError):
        misuse(Careless(2, threading.local(), lambda _file: False))


def test_open_entries_are_not_told():
    with pytest.raises(ValueError, match="close"):
        entries(2).rows()


def test_a_queue_keeps_no_log_for_a_trace_that_was_written(tmp_path):
    made = Trace(tmp_path / "made.pftrace")
    made.start()
    forebay.zeros(3)
    (line,) = (line for line in made._recorder.lines.values() if line.logs)
    log = weakref.ref(line.log)
    del line
    made.stop()
    assert log() is None
