"""Content of traces, decoded with Perfetto's own schema."""

from __future__ import annotations

import inspect
import random
import threading
from itertools import pairwise

import pytest
from support.perfetto_files import decode

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


@pytest.fixture(params=["cpu", "cuda:0"])
def device(request):
    if request.param == "cpu":
        yield request.param
        return
    with forebay.emulate("cuda", memory="64MiB"):
        yield request.param


def current_line():
    return inspect.currentframe().f_back.f_lineno


def test_operations_have_sizes_source_lines_and_times(path, device):
    with trace(path) as recording:
        ones = forebay.full((MIB,), 0.0, device=device)
        first = current_line() - 1
        random = forebay.rand((1000,), device=device)
        random.copy_(ones[:1000])
        ones[::2].fill_(3.5)
        forebay.randperm(10, device=device)
        forebay.synchronize(device)
    found = decode(path)
    operations = [(each.name, each.category, each.details["bytes"], each.line) for each in found.on("default stream")]
    assert operations == [
        ("fill_", "fill", 4 * MIB, first),
        ("uniform", "draw", 4000, first + 2),
        ("copy_", "copy", 4000, first + 3),
        ("fill_", "fill", 2 * MIB, first + 4),
        ("integers", "draw", operations[4][2], first + 5),
        ("randperm", "call", 80, first + 5),
    ]
    assert {each.file for each in found.executed} == {__file__}
    assert (recording.operations, recording.unfinished, recording.lost) == (6, 0, 0)
    assert found.recording["operations"] == 6
    assert "timed by the host" not in found.recording


def test_executions_are_ordered_and_follow_their_calls(path, device):
    with trace(path):
        tensor = forebay.full((MIB,), 0.0, device=device)
        for _ in range(50):
            tensor.fill_(0)
        forebay.synchronize(device)
    found = decode(path)
    calls = {each.id: each for each in found.queueing_calls}
    assert [each.id for each in found.executed] == sorted(calls)
    assert len(calls) == 51
    for each in found.executed:
        assert each.executed_ids == (each.id,) == calls[each.id].queued_ids
        assert calls[each.id].begin <= each.begin <= each.end  # an execution does not begin before its call
    assert all(first.end <= second.begin for first, second in pairwise(found.executed))
    assert found.executed[-1].end <= max(each.end for each in found.slices if each.category == "host")


@pytest.mark.parametrize("seed", range(5))
def test_operations_of_many_streams_are_complete_and_ordered(path, emulated, seed):
    rng = random.Random(seed)
    streams = [cuda.current_stream(), *(cuda.Stream() for _ in range(3))]
    tensors = [forebay.empty(size, device="cuda:0", dtype="uint8") for size in (1, 4096, MIB)]
    expected = {stream.stream_id: [] for stream in streams}
    with trace(path) as recording:
        for _ in range(200):
            stream, target = rng.choice(streams), rng.choice(tensors)
            with cuda.stream(stream):
                if rng.random() < 0.5:
                    target.fill_(rng.randrange(256))
                    expected[stream.stream_id].append(("fill_", target.nbytes))
                else:
                    target.random_(0, 200)
                    expected[stream.stream_id].append(("integers", target.nbytes))
        cuda.synchronize()
    found = decode(path)
    traced = {number: [] for number in expected}
    for each in found.executed:
        traced[each.details["stream"]].append((each.name, each.details["bytes"]))
        assert each.begin <= each.end
    assert traced == expected
    assert recording.operations == len({each.id for each in found.executed}) == 200
    total = sum(each.details["bytes"] for each in found.queueing_calls)
    assert total == sum(nbytes for operations in expected.values() for _, nbytes in operations)


def test_times_of_the_fake_clock_are_exact(path, fake):
    with trace(path, limit=0):
        tensor = forebay.empty(1000, device="fake:0")
        port = fake.ports[0]
        port.command_ns = 5_000
        tensor.fill_(0)
        tensor.fill_(0)
        fake.clock.advance(7_000)  # the device is idle
        forebay.synchronize("fake:0")
        port.command_ns = 300
        tensor.fill_(0)
        forebay.synchronize("fake:0")
    assert [each.end - each.begin for each in decode(path).executed] == [5_000, 5_000, 300]


def test_wait_names_the_stream_that_it_waits_for(path, emulated):
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
    found = decode(path)
    stream = f"cuda:0 stream {side.stream_id}"
    waits = [each for each in found.on("default stream") if each.category == "wait"]
    assert [each.details["waits for"] for each in waits] == [stream, stream]
    moments = [(each.name, each.details.get("event")) for each in found.moments]
    assert moments == [
        ("record event", 1),
        ("wait for event", 1),
        ("synchronize event", 1),
        ("query event: done", 1),
        ("synchronize cuda:0", None),
    ]
    assert {each.line for each in found.moments} <= set(range(1, 1000))


def test_new_event_gets_a_new_number_despite_a_reused_id(path):
    with trace(path):
        for _ in range(3):
            forebay.Event().record()
    assert [each.details["event"] for each in decode(path).moments] == [1, 2, 3]


def test_graph_launch_is_one_operation_and_captured_work_is_not_executed(path, emulated):
    with trace(path) as recording:
        tensor = forebay.zeros(10, device="cuda:0")
        graph = cuda.CUDAGraph()
        with cuda.graph(graph):
            tensor.fill_(0)
            tensor.fill_(0)
        graph.replay()
        graph.replay()
        cuda.synchronize()
    found = decode(path)
    assert [each.category for each in found.executed if each.category == "graph"] == ["graph"] * 2
    captured = [each for each in found.slices if each.details.get("execution") == "captured into a graph"]
    assert [(each.name, each.queued_ids) for each in captured] == [("fill_", ())] * 2
    assert recording.unfinished == 0


def test_trace_contains_all_kinds_of_devices(path):
    with (
        forebay.emulate("cuda", memory="64MiB"),
        forebay.emulate("mps", profile="apple_m3_max", memory="512MiB"),
        forebay.emulate("mtia", profile="mtia_v2", memory="64MiB"),
        trace(path) as recording,
    ):
        tensors = [forebay.full((1000,), 2.0, device=kind) for kind in ("cuda", "mps", "mtia", "cpu")]
        tensors[0].copy_(tensors[1])  # through host memory
        tensors[0].copy_(tensors[3])
        for kind in ("cuda", "mps", "mtia", "cpu"):
            forebay.synchronize(kind)
    found = decode(path)
    kinds = {each.track.split("/")[1].partition(":")[0] for each in found.executed}
    assert kinds == {"cuda", "mps", "mtia", "cpu"}
    assert [each.name for each in found.queueing_calls] == ["fill_"] * 4 + ["read", "copy_", "copy_"]
    assert recording.operations == len(found.executed)
    assert {name.rpartition("/")[2] for name in found.counters} == {"allocated", "reserved"}
    assert len(found.counters) == 8


def test_ranges_are_nested_in_their_threads_track(path):
    with trace(path):
        with cuda.nvtx.range("outer"), cuda.nvtx.range("inner"):
            forebay.zeros(10)
        ranges.mark("here")
        first, second = ranges.start("first"), ranges.start("second")
        ranges.end(first)
        ranges.end(second)
        ranges.push("open")
        unended = ranges.start("third")
    ranges.pop()
    ranges.end(unended)
    found = decode(path)
    nested = found.on(threading.current_thread().name)
    assert [(each.name, each.depth) for each in nested] == [("outer", 0), ("inner", 1), ("fill_", 2), ("open", 0)]
    assert nested[-1].end is None
    others = [each for each in found.slices if each.track.endswith("/ranges")]
    assert [(each.name, each.depth) for each in others] == [("first", 0), ("third", 0), ("second", 0)]
    assert [each.end is None for each in others] == [False, True, False]
    assert [each.name for each in found.moments] == ["here"]


def test_memory_counters_match_the_allocator(path, emulated):
    with trace(path):
        kept = forebay.empty(MIB, device="cuda:0", dtype="uint8")
        freed = forebay.empty(4 * MIB, device="cuda:0", dtype="uint8")
        del freed
        after = cuda.memory_allocated()
    found = decode(path)
    (allocated,) = (values for name, values in found.counters.items() if name.endswith("/allocated"))
    (reserved,) = (values for name, values in found.counters.items() if name.endswith("/reserved"))
    assert [value for _, value in allocated] == [MIB, 5 * MIB, MIB]
    assert allocated[-1][1] == after == kept.nbytes
    assert reserved[-1][1] == cuda.memory_reserved()
    assert sorted(allocated) == allocated


def test_each_thread_has_a_track_and_each_queue_is_ordered(path, eight_threads):
    tensor = forebay.empty(10)

    def work(number):
        threading.current_thread().name = f"worker {number}"
        for _ in range(100):
            tensor.fill_(0)

    with trace(path) as recording:
        eight_threads(work)
        forebay.synchronize("cpu")
    found = decode(path)
    assert recording.operations == 800
    assert len({each.track for each in found.queueing_calls}) == 8
    stream = found.on("default stream")
    assert len({each.id for each in stream}) == 800
    assert all(first.end <= second.begin for first, second in pairwise(stream))
    assert {each.depth for each in stream} == {0}


@pytest.mark.parametrize(
    ("options", "slices", "moments"),
    [
        ({"events": False}, {"fill", "host"}, set()),
        ({"intervals": False}, set(), {"fill", "event"}),
        ({"intervals": False, "events": False}, set(), set()),
    ],
    ids=["intervals", "events", "neither"],
)
def test_options_select_intervals_and_events(path, options, slices, moments):
    tensor = forebay.empty(10)
    with trace(path, **options):
        tensor.fill_(0)
        forebay.synchronize("cpu")
    found = decode(path)
    assert {each.category for each in found.slices} - {"recording"} == slices
    assert {each.category for each in found.moments} == moments


def test_concurrent_traces_are_both_complete(path, tmp_path):
    tensor = forebay.empty(10)
    with trace(path), trace(tmp_path / "inner.pftrace"):
        tensor.fill_(0)
    assert len(decode(path).executed) == len(decode(tmp_path / "inner.pftrace").executed) == 1


def test_tracers_added_concurrently_are_both_kept(monkeypatch):
    first, second, lock = observers.Tracer(), observers.Tracer(), observers._changing

    class ContendedLock:
        """A lock that another thread held first, to add its tracer."""

        def __enter__(self):
            monkeypatch.setattr(observers, "_changing", lock)
            observers.add_tracer(first)

        def __exit__(self, *error):
            """Do nothing: there is nothing to release."""

    monkeypatch.setattr(observers, "_changing", ContendedLock())
    observers.add_tracer(second)
    assert observers.tracer.tracers == (first, second)
    for each in (first, second):
        observers.remove_tracer(each)
    assert observers.tracer is None


def test_no_tracer_or_tool_is_left_after_a_trace(path):
    with trace(path):
        assert observers.tracer is not None
    assert observers.tracer is None
    assert ranges.push("untracked") == ranges.UNTRACKED
    ranges.pop()
