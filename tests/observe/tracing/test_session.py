"""Traces: what is in them of what a program did, read again from the file by Perfetto's own schema."""

from __future__ import annotations

import inspect
import random
import threading
from itertools import pairwise

import pytest
from support.perfetto_files import decoded

import forebay
from forebay import cuda
from forebay.observe import trace
from forebay.observe.ranges import ranges
from forebay.runtime.base import observers

pytestmark = pytest.mark.usefixtures("clean")

MIB = 1 << 20


@pytest.fixture
def path(tmp_path):
    return tmp_path / "made.pftrace"


@pytest.fixture(params=["host:0", "cuda:0"])
def device(request):
    if request.param == "host:0":
        yield request.param
        return
    with forebay.emulate("cuda", memory="64MiB"):
        yield request.param


def line_here():
    return inspect.currentframe().f_back.f_lineno


def test_every_operation_has_its_size_its_line_and_its_time(path, device):
    with trace(path) as made:
        ones = forebay.full((MIB,), 0.0, device=device)
        first = line_here() - 1
        drawn = forebay.rand((1000,), device=device)
        drawn.copy_(ones[:1000])
        ones[::2].fill_(3.5)
        forebay.randperm(10, device=device)
        forebay.synchronize(device)
    found = decoded(path)
    done = [(each.name, each.category, each.details["bytes"], each.line) for each in found.on("default stream")]
    assert done == [
        ("fill_", "fill", 4 * MIB, first),
        ("uniform", "draw", 4000, first + 2),
        ("copy_", "copy", 4000, first + 3),
        ("fill_", "call", 2 * MIB, first + 4),
        ("integers", "draw", done[4][2], first + 5),
        ("randperm", "call", 80, first + 5),
    ]
    assert {each.file for each in found.executed} == {__file__}
    assert (made.operations, made.unfinished, made.lost) == (6, 0, 0)
    assert found.recording["operations"] == 6
    assert "timed by the host" not in found.recording


def test_executions_follow_each_other_and_their_calls(path, device):
    with trace(path):
        tensor = forebay.full((MIB,), 0.0, device=device)
        for _ in range(50):
            tensor.fill_(0)
        forebay.synchronize(device)
    found = decoded(path)
    calls = {each.id: each for each in found.asked}
    assert [each.id for each in found.executed] == sorted(calls)
    assert len(calls) == 51
    for each in found.executed:
        assert each.does == (each.id,) == calls[each.id].asks
        assert calls[each.id].begin <= each.begin <= each.end  # nothing is done before it is asked for
    assert all(one.end <= other.begin for one, other in pairwise(found.executed))
    assert found.executed[-1].end <= max(each.end for each in found.slices if each.category == "host")


@pytest.mark.parametrize("seed", range(5))
def test_a_program_of_many_streams_is_told_whole_and_in_order(path, emulated, seed):
    draw = random.Random(seed)
    streams = [cuda.current_stream(), *(cuda.Stream() for _ in range(3))]
    tensors = [forebay.empty(size, device="cuda:0", dtype="uint8") for size in (1, 4096, MIB)]
    did = {stream.stream_id: [] for stream in streams}
    with trace(path) as made:
        for _ in range(200):
            stream, target = draw.choice(streams), draw.choice(tensors)
            with cuda.stream(stream):
                if draw.random() < 0.5:
                    target.fill_(draw.randrange(256))
                    did[stream.stream_id].append(("fill_", target.nbytes))
                else:
                    target.random_(0, 200)
                    did[stream.stream_id].append(("integers", target.nbytes))
        cuda.synchronize()
    found = decoded(path)
    told = {number: [] for number in did}
    for each in found.executed:
        told[each.details["stream"]].append((each.name, each.details["bytes"]))
        assert each.begin <= each.end
    assert told == did
    assert made.operations == len({each.id for each in found.executed}) == 200
    asked = sum(each.details["bytes"] for each in found.asked)
    assert asked == sum(nbytes for some in did.values() for _, nbytes in some)


def test_the_fakes_clock_is_told_exactly(path, fake):
    with trace(path, limit=0):
        tensor = forebay.empty(1000, device="fake:0")
        port = fake.ports[0]
        port.command_ns = 5_000
        tensor.fill_(0)
        tensor.fill_(0)
        fake.clock.advance(7_000)  # nobody is at work
        forebay.synchronize("fake:0")
        port.command_ns = 300
        tensor.fill_(0)
        forebay.synchronize("fake:0")
    assert [each.end - each.begin for each in decoded(path).executed] == [5_000, 5_000, 300]


def test_a_stream_that_waits_is_told_for_what(path, emulated):
    gate = threading.Event()
    with trace(path):
        side = cuda.Stream()
        side.queue.call(lambda: gate.wait(30))
        event = side.record_event()
        cuda.current_stream().wait_stream(side)
        cuda.current_stream().wait_event(event)
        forebay.zeros(10, device="cuda:0")
        gate.set()
        event.synchronize()
        assert event.query()
        cuda.synchronize()
    found = decoded(path)
    stream = f"cuda:0 stream {side.stream_id}"
    waits = [each for each in found.on("default stream") if each.category == "wait"]
    assert [each.details["waits for"] for each in waits] == [stream, stream]
    happened = [(each.name, each.details.get("event")) for each in found.moments]
    assert happened == [
        ("record event", 1),
        ("wait for event", 1),
        ("synchronize event", 1),
        ("query event: done", 1),
        ("synchronize cuda:0", None),
    ]
    assert {each.line for each in found.moments} <= set(range(1, 1000))


def test_a_new_event_has_a_new_number_though_another_had_its_place(path):
    with trace(path):
        for _ in range(3):
            forebay.Event().record()
    assert [each.details["event"] for each in decoded(path).moments] == [1, 2, 3]


def test_a_graph_is_one_operation_and_what_it_records_is_not_done(path, emulated):
    with trace(path) as made:
        tensor = forebay.zeros(10, device="cuda:0")
        graph = cuda.CUDAGraph()
        with cuda.graph(graph):
            tensor.fill_(0)
            tensor.fill_(0)
        graph.replay()
        graph.replay()
        cuda.synchronize()
    found = decoded(path)
    assert [each.category for each in found.executed if each.category == "graph"] == ["graph"] * 2
    recorded = [each for each in found.slices if each.details.get("execution") == "recorded for a graph"]
    assert [(each.name, each.asks) for each in recorded] == [("fill_", ())] * 2
    assert made.unfinished == 0


def test_three_kinds_of_device_and_the_host_are_in_one_trace(path):
    with (
        forebay.emulate("cuda", memory="64MiB"),
        forebay.emulate("mps", profile="apple_m3_max", memory="512MiB"),
        forebay.emulate("mtia", profile="mtia_v2", memory="64MiB"),
        trace(path) as made,
    ):
        there = [forebay.full((1000,), 2.0, device=kind) for kind in ("cuda", "mps", "mtia", "host")]
        there[0].copy_(there[1])  # by way of the host
        there[0].copy_(there[3])
        for kind in ("cuda", "mps", "mtia", "host"):
            forebay.synchronize(kind)
    found = decoded(path)
    of_kinds = {each.track.split("/")[1].partition(":")[0] for each in found.executed}
    assert of_kinds == {"cuda", "mps", "mtia", "host"}
    assert [each.name for each in found.asked] == ["fill_"] * 4 + ["read", "copy_", "copy_"]
    assert made.operations == len(found.executed)
    assert {name.rpartition("/")[2] for name in found.counters} == {"allocated", "reserved"}
    assert len(found.counters) == 8


def test_ranges_are_nested_in_their_thread_with_the_calls_inside(path):
    with trace(path):
        with cuda.nvtx.range("outer"), cuda.nvtx.range("inner"):
            forebay.zeros(10)
        ranges.mark("here")
        one, other = ranges.start("first"), ranges.start("second")
        ranges.end(one)
        ranges.end(other)
        ranges.push("open")
        going_on = ranges.start("third")
    ranges.pop()
    ranges.end(going_on)
    found = decoded(path)
    mine = found.on(threading.current_thread().name)
    assert [(each.name, each.depth) for each in mine] == [("outer", 0), ("inner", 1), ("fill_", 2), ("open", 0)]
    assert mine[-1].end is None
    apart = [each for each in found.slices if each.track.endswith("/ranges")]
    assert [(each.name, each.depth) for each in apart] == [("first", 0), ("third", 0), ("second", 0)]
    assert [each.end is None for each in apart] == [False, True, False]
    assert [each.name for each in found.moments] == ["here"]


def test_memory_is_counted_as_the_allocator_does(path, emulated):
    with trace(path):
        kept = forebay.empty(MIB, device="cuda:0", dtype="uint8")
        gone = forebay.empty(4 * MIB, device="cuda:0", dtype="uint8")
        del gone
        after = cuda.memory_allocated()
    found = decoded(path)
    (allocated,) = (values for name, values in found.counters.items() if name.endswith("/allocated"))
    (reserved,) = (values for name, values in found.counters.items() if name.endswith("/reserved"))
    assert [value for _, value in allocated] == [MIB, 5 * MIB, MIB]
    assert allocated[-1][1] == after == kept.nbytes
    assert reserved[-1][1] == cuda.memory_reserved()
    assert sorted(allocated) == allocated


def test_each_thread_has_its_track_and_a_queue_keeps_its_order(path, eight_threads):
    tensor = forebay.empty(10)

    def work(number):
        threading.current_thread().name = f"worker {number}"
        for _ in range(100):
            tensor.fill_(0)

    with trace(path) as made:
        eight_threads(work)
        forebay.synchronize("host:0")
    found = decoded(path)
    assert made.operations == 800
    assert len({each.track for each in found.asked}) == 8
    stream = found.on("default stream")
    assert len({each.id for each in stream}) == 800
    assert all(one.end <= other.begin for one, other in pairwise(stream))
    assert {each.depth for each in stream} == {0}


@pytest.mark.parametrize(
    ("what", "slices", "moments"),
    [
        ({"events": False}, {"fill", "host"}, set()),
        ({"intervals": False}, set(), {"fill", "event"}),
        ({"intervals": False, "events": False}, set(), set()),
    ],
    ids=["intervals", "events", "neither"],
)
def test_intervals_or_events_or_neither(path, what, slices, moments):
    tensor = forebay.empty(10)
    with trace(path, **what):
        tensor.fill_(0)
        forebay.synchronize("host:0")
    found = decoded(path)
    assert {each.category for each in found.slices} - {"recording"} == slices
    assert {each.category for each in found.moments} == moments


def test_two_traces_at_once_are_both_whole(path, tmp_path):
    tensor = forebay.empty(10)
    with trace(path), trace(tmp_path / "inner.pftrace"):
        tensor.fill_(0)
    assert len(decoded(path).executed) == len(decoded(tmp_path / "inner.pftrace").executed) == 1


def test_two_tracers_that_begin_at_once_are_both_told(monkeypatch):
    first, second, lock = observers.Tracer(), observers.Tracer(), observers._changing

    class Late:
        """A lock that another thread had first: to begin, too."""

        def __enter__(self):
            monkeypatch.setattr(observers, "_changing", lock)
            observers.trace(first)

        def __exit__(self, *error):
            """It is nobody's."""

    monkeypatch.setattr(observers, "_changing", Late())
    observers.trace(second)
    assert observers.tracer.tracers == (first, second)
    for each in (first, second):
        observers.trace_no_more(each)
    assert observers.tracer is None


def test_afterwards_nobody_listens(path):
    with trace(path):
        assert observers.tracer is not None
    assert observers.tracer is None
    assert ranges.push("nobody hears") == ranges.UNTRACKED
    ranges.pop()
