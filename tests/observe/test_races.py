"""Race detection: accesses that race, synchronization that orders them, and the memory of the detector."""

from __future__ import annotations

import gc
import os
import random
import subprocess
import sys
import threading
import warnings

import pytest

import forebay
from forebay.observe.races.detector import Detector, detected
from forebay.observe.races.report import AccessType, CUDASanitizerErrors
from forebay.runtime.base import observers

CPU = "cpu"


@pytest.fixture(params=["cpu", "cuda"])
def device(request, clean):
    """A device whose tensors are checked."""
    if request.param == "cpu":
        with detected("cpu"):
            yield "cpu"
        return
    with forebay.emulate("cuda", count=2, memory=64 << 20), detected("cuda"):
        yield "cuda:0"


@pytest.fixture
def side(device):
    return forebay.Stream(device)


def races_of(work):
    with pytest.raises(CUDASanitizerErrors) as caught:
        work()
    return caught.value.errors


def test_unordered_read_after_write_is_a_race(device, side, capsys):
    ones = forebay.full((4,), 1.0, device=device)
    with side:
        (error,) = races_of(ones.clone)
        side.wait_stream(forebay.default_stream(device))
        ones.clone()
    assert (error.current_access.type, error.previous_access.type) == (AccessType.READ, AccessType.WRITE)
    assert (error.current_access.stream, error.previous_access.stream) == (side.handle, 0)
    text = capsys.readouterr().err
    assert text.count("test_races.py") >= 3  # two accesses and the allocation
    assert f"possible data race on tensor with data pointer {ones.data_ptr()}" in text


def test_racing_work_is_queued(device, side):
    target, zeroing = forebay.zeros(4, device=device), forebay.default_stream(device).queue
    zeroing.wait(zeroing.signal())  # so there is no actual race, but the detector cannot detect that
    with side:
        races_of(lambda: target.fill_(3.0))
    side.synchronize()
    assert target.tolist() == [3.0] * 4


def test_race_is_reported_once(device, side):
    ones = forebay.full((4,), 1.0, device=device)
    with side:
        races_of(lambda: ones.fill_(2.0))
        ones.fill_(3.0)


@pytest.mark.parametrize(
    ("first", "second", "races"),
    [
        ((slice(0, 4),), (slice(4, 8),), False),
        ((slice(0, 5),), (slice(4, 8),), True),
        ((slice(0, None, 2),), (slice(1, None, 2),), False),
        ((slice(0, None, 2),), (slice(0, None, 4),), True),
    ],
    ids=["halves", "overlap", "odd and even", "strides 2 and 4"],
)
def test_slices_race_if_they_share_an_element(device, side, first, second, races):
    whole = forebay.empty(8, device=device)
    whole[first].fill_(1.0)
    with side:
        if races:
            races_of(lambda: whole[second].fill_(2.0))
        else:
            whole[second].fill_(2.0)


def test_reads_do_not_race_but_a_write_races_with_each_read(device, side):
    third = forebay.Stream(device)
    shared = forebay.empty(4, device=device)
    outs = [forebay.empty(4, device=device) for _ in range(2)]
    shared.fill_(0.0)
    for stream in (side, third):
        stream.wait_stream(forebay.default_stream(device))
    for stream, out in zip((side, third), outs, strict=True):
        with stream:
            out.copy_(shared)
    assert len(races_of(lambda: shared.fill_(1.0))) == 2


def test_random_fill_is_a_write(device, side):
    numbers = forebay.rand(8, device=device)
    with side:
        races_of(numbers.normal_)


def test_tolist_is_a_read_on_the_current_stream(device, side):
    numbers = forebay.empty(4, device=device)
    with side:
        numbers.fill_(1.0)
    races_of(numbers.tolist)
    side.synchronize()
    assert numbers.tolist() == [1.0] * 4


def test_tolist_synchronizes_the_stream(device, side):
    numbers = forebay.full((4,), 1.0, device=device)
    numbers.tolist()
    with side:
        numbers.fill_(2.0)


def test_copy_that_the_host_waits_for_is_ordered(device, side):
    copied = forebay.tensor([1.0, 2.0], device=device)
    with side:
        assert copied.zero_().tolist() == [0, 0]


def test_chain_of_waits_orders(device, side):
    third, event = forebay.Stream(device), forebay.Event()
    numbers = forebay.full((4,), 1.0, device=device)
    side.wait_stream(forebay.default_stream(device))
    event.record(side)
    third.wait_event(event)
    with third:
        numbers.fill_(2.0)


def test_event_orders_work_before_its_last_record(device, side):
    event, numbers = forebay.Event(), forebay.empty(4, device=device)
    event.record(forebay.default_stream(device))
    numbers.fill_(1.0)
    side.wait_event(event)
    with side:
        races_of(lambda: numbers.fill_(2.0))
    others = forebay.empty(4, device=device)
    others.fill_(1.0)
    event.record(forebay.default_stream(device))
    side.wait_event(event)
    with side:
        others.fill_(2.0)


def test_new_stream_is_ordered_after_host_synchronization(device):
    numbers = forebay.full((4,), 1.0, device=device)
    forebay.synchronize(device)
    with forebay.Stream(device):
        numbers.fill_(2.0)


def free_while_side_reads(device, side, *, record_stream):
    numbers, out = forebay.full((4,), 1.0, device=device), forebay.empty(4, device=device)
    side.wait_stream(forebay.default_stream(device))
    with side:
        out.copy_(numbers)
    if record_stream:
        numbers.record_stream(side)
    address = numbers.data_ptr()
    del numbers
    gc.collect()
    return address, out


@pytest.mark.parametrize("device", ["cuda"], indirect=True)
def test_reuse_of_memory_freed_without_record_stream_is_a_race(device, side, capsys):
    address, _ = free_while_side_reads(device, side, record_stream=False)
    again = forebay.empty(4, device=device)
    assert again.data_ptr() == address
    (error,) = races_of(lambda: again.fill_(2.0))
    assert error.freed_between
    assert "Call record_stream() before it is freed." in capsys.readouterr().err


def test_memory_freed_after_record_stream_is_ordered(device, side):
    free_while_side_reads(device, side, record_stream=True)
    side.synchronize()
    forebay.empty(4, device=device).fill_(2.0)


def test_memory_freed_in_stream_order_is_ordered(device, side):
    free_while_side_reads(device, side, record_stream=False)
    forebay.default_stream(device).wait_stream(side)
    forebay.empty(4, device=device).fill_(2.0)


@pytest.mark.parametrize("device", ["cuda"], indirect=True)
def test_peer_copies_and_collectives_order_their_streams(device):
    from forebay.cuda import comm, nccl

    numbers = [forebay.full((8,), 1.0, device=f"cuda:{index}") for index in range(2)]
    numbers[1].copy_(numbers[0])
    numbers[0].fill_(2.0)
    nccl.all_reduce(numbers)
    assert comm.gather(comm.scatter(comm.reduce_add(numbers), [0, 1])).tolist() == [6.0] * 8
    numbers[1].fill_(3.0)
    with forebay.Stream("cuda:1"):
        races_of(lambda: nccl.all_reduce(numbers))


def test_detector_ignores_work_before_it_was_added(clean):
    ones, side = forebay.full((4,), 1.0, device=CPU), forebay.Stream(CPU)
    with detected():
        with side:
            ones.fill_(2.0)
        races_of(lambda: ones.fill_(3.0))
    ones.fill_(4.0)


def test_other_kinds_are_not_checked(clean):
    with detected("cuda"):
        ones = forebay.full((4,), 1.0, device=CPU)
        with forebay.Stream(CPU):
            ones.fill_(2.0)


@pytest.mark.slow
def test_detectors_memory_is_bounded(clean):
    detector = Detector("cpu")
    with observers.observing(detector):
        numbers = forebay.empty(1 << 12, device=CPU)
        for _ in range(50):
            numbers.fill_(1.0)
            numbers.clone()
        for index in range(1 << 10):
            numbers[index].fill_(1.0)
        gc.collect()
        forebay.empty(1, device=CPU).fill_(0.0)
    (allocation,) = (each for each in detector._allocations.values() if each.address == numbers.raw_storage.address)
    assert len(allocation.accesses) <= 256
    assert len(detector._allocations) <= 3
    assert len(detector._freed) == 0


def test_threads_may_queue_concurrently(eight_threads, clean):
    shared = forebay.full((8, 64), 0.0, device=CPU)
    forebay.synchronize(CPU)

    def work(number):
        for _ in range(20):
            with forebay.Stream(CPU) as stream:
                shared[number].fill_(1.0)
                shared[number].clone()
                stream.synchronize()

    with detected("cpu"):
        eight_threads(work)


class DefinitionModel:
    """Races by definition: two accesses without a chain of program order and waits between them."""

    def __init__(self):
        self.last = {}  # by stream: the accesses that its next work is ordered after
        self.accesses = []

    def access(self, stream, part, writes):
        now = len(self.accesses)
        before = set(self.last.get(stream, ()))
        races = [n for n, (p, w) in enumerate(self.accesses) if p == part and (w or writes) and n not in before]
        self.accesses.append((part, writes))
        self.last[stream] = before | {now}
        return races

    def wait(self, stream, other):
        self.last[stream] = self.last.get(stream, set()) | self.last.get(other, set())


@pytest.mark.parametrize("seed", range(20))
def test_random_programs_race_as_defined(seed, clean):
    rng, model = random.Random(seed), DefinitionModel()
    parts = [forebay.empty(4, device=CPU) for _ in range(3)]
    outs = [forebay.empty(4, device=CPU) for _ in range(3)]
    streams = [forebay.Stream(CPU) for _ in range(3)]
    forebay.synchronize(CPU)
    found = []
    with detected("cpu"):
        for _ in range(60):
            at = rng.randrange(3)
            action = rng.choice(["write", "read", "wait"])
            if action == "wait":
                other = rng.randrange(3)
                streams[at].wait_stream(streams[other])
                model.wait(at, other)
                continue
            part = rng.randrange(3)
            expected = bool(model.access(at, part, action == "write"))
            if action == "read":
                expected |= bool(model.access(at, ("out", at), writes=True))
            try:
                with streams[at]:
                    parts[part].fill_(1.0) if action == "write" else outs[at].copy_(parts[part])
                raced = False
            except CUDASanitizerErrors:
                raced = True
            found.append((raced, expected))
            if raced:
                break  # later results are undefined
    assert [raced for raced, _ in found] == [expected for _, expected in found]


@pytest.mark.slow
def test_environment_variable_enables_detection():
    program = """
import forebay, forebay.cuda as cuda
with forebay.emulate("cuda"):
    ones = forebay.full((3,), 1.0, device="cuda:0")
    with cuda.stream(cuda.Stream()):
        try:
            ones.clone()
        except cuda._sanitizer.CUDASanitizerErrors as error:
            print(error)
"""
    command = [sys.executable, "-c", program]
    for value, output in (("1", "detected 1 errors\n"), ("", "")):
        done = subprocess.run(
            command, env=os.environ | {"TORCH_CUDA_SANITIZER": value}, capture_output=True, text=True, check=True
        )
        assert done.stdout == output


def test_forked_child_has_no_observer(clean):
    before = observers.registered  # callbacks of forebay.cuda._gpu_trace are never removed
    with detected("cpu"), warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # forking with several threads
        child = os.fork()
        if not child:
            os._exit(0 if observers.registered == () else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert observers.registered == before


def test_observer_is_notified_of_streams_events_and_memory(clean):
    calls = []

    class Everything(observers.Observer):
        def __getattribute__(self, name):
            return lambda *arguments: calls.append(name)

    side = forebay.Stream(CPU)
    with observers.observing(Everything()):
        event = forebay.Event()
        numbers = forebay.empty(4, device=CPU)
        event.record(side)
        event.wait()
        event.synchronize()
        numbers.record_stream(side)
        side.wait_stream(forebay.default_stream(CPU))
        side.synchronize()
        forebay.synchronize(CPU)
        del numbers, event
        gc.collect()
    forebay.empty(4, device=CPU)
    assert calls == [
        "allocated", "event_created", "event_recorded", "event_waited", "event_synchronized", "used", "stream_waited",
        "stream_synchronized", "device_synchronized", "freed", "event_deleted",
    ]  # fmt: skip


def test_synchronization_by_one_thread_orders_all_threads(clean):
    numbers, side = forebay.full((4,), 1.0, device=CPU), forebay.Stream(CPU)
    with detected("cpu"):
        numbers.fill_(2.0)
        thread = threading.Thread(target=forebay.synchronize, args=(CPU,))
        thread.start()
        thread.join(30)
        with side:
            numbers.fill_(3.0)


@pytest.mark.parametrize("device", ["cuda"], indirect=True)
def test_captured_work_is_not_checked(device):
    from forebay import cuda

    numbers, graph = forebay.full((4,), 1.0, device=device), cuda.CUDAGraph()
    with cuda.graph(graph):
        numbers.fill_(2.0)
    numbers.fill_(3.0)
    graph.replay()
    assert numbers.tolist() == [2.0] * 4
