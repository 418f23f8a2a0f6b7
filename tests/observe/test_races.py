"""Races between streams: what is one, what orders, and what is kept of it. Nothing here has to go wrong to be found."""

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

HERE = "host:0"


@pytest.fixture(params=["host", "cuda"])
def device(request, clean):
    """A device with the detector on."""
    if request.param == "host":
        with detected("host"):
            yield "host:0"
        return
    with forebay.emulate("cuda", count=2, memory=64 << 20), detected("cuda"):
        yield "cuda:0"


@pytest.fixture
def side(device):
    return forebay.Stream(device)


def raced(work):
    with pytest.raises(CUDASanitizerErrors) as caught:
        work()
    return caught.value.errors


def test_what_another_stream_wrote_is_not_to_be_read(device, side, capsys):
    ones = forebay.full((4,), 1.0, device=device)
    with side:
        (error,) = raced(ones.clone)
        side.wait_stream(forebay.default_stream(device))
        ones.clone()
    assert (error.current_access.type, error.previous_access.type) == (AccessType.READ, AccessType.WRITE)
    assert (error.current_access.stream, error.previous_access.stream) == (side.handle, 0)
    text = capsys.readouterr().err
    assert text.count("test_races.py") >= 3  # both accesses, and the allocation
    assert f"possible data race on tensor with data pointer {ones.data_ptr()}" in text


def test_the_work_is_queued_all_the_same(device, side):
    target, zeroing = forebay.zeros(4, device=device), forebay.default_stream(device).queue
    zeroing.wait(zeroing.signal())  # in truth it does not race, of which the detector is not told
    with side:
        raced(lambda: target.fill_(3.0))
    side.synchronize()
    assert target.tolist() == [3.0] * 4


def test_once_told_is_enough(device, side):
    ones = forebay.full((4,), 1.0, device=device)
    with side:
        raced(lambda: ones.fill_(2.0))
        ones.fill_(3.0)


@pytest.mark.parametrize(
    ("one", "other", "races"),
    [
        ((slice(0, 4),), (slice(4, 8),), False),
        ((slice(0, 5),), (slice(4, 8),), True),
        ((slice(0, None, 2),), (slice(1, None, 2),), False),
        ((slice(0, None, 2),), (slice(0, None, 4),), True),
    ],
    ids=["halves", "overlapping", "odd and even", "every second and fourth"],
)
def test_parts_race_where_they_share_an_element(device, side, one, other, races):
    whole = forebay.empty(8, device=device)
    whole[one].fill_(1.0)
    with side:
        if races:
            raced(lambda: whole[other].fill_(2.0))
        else:
            whole[other].fill_(2.0)


def test_reads_do_not_race_and_a_write_races_with_each(device, side):
    third = forebay.Stream(device)
    shared = forebay.empty(4, device=device)
    outs = [forebay.empty(4, device=device) for _ in range(2)]
    shared.fill_(0.0)
    for stream in (side, third):
        stream.wait_stream(forebay.default_stream(device))
    for stream, out in zip((side, third), outs, strict=True):
        with stream:
            out.copy_(shared)
    assert len(raced(lambda: shared.fill_(1.0))) == 2


def test_random_numbers_are_written_too(device, side):
    numbers = forebay.rand(8, device=device)
    with side:
        raced(numbers.normal_)


def test_reading_to_the_host_is_a_read_of_the_current_stream(device, side):
    numbers = forebay.empty(4, device=device)
    with side:
        numbers.fill_(1.0)
    raced(numbers.tolist)
    side.synchronize()
    assert numbers.tolist() == [1.0] * 4


def test_reading_to_the_host_waits_for_the_stream(device, side):
    numbers = forebay.full((4,), 1.0, device=device)
    numbers.tolist()
    with side:
        numbers.fill_(2.0)


def test_a_chain_of_waits_orders(device, side):
    third, event = forebay.Stream(device), forebay.Event()
    numbers = forebay.full((4,), 1.0, device=device)
    side.wait_stream(forebay.default_stream(device))
    event.record(side)
    third.wait_event(event)
    with third:
        numbers.fill_(2.0)


def test_an_event_moved_on_orders_what_was_before_it_last(device, side):
    event, numbers = forebay.Event(), forebay.empty(4, device=device)
    event.record(forebay.default_stream(device))
    numbers.fill_(1.0)
    side.wait_event(event)
    with side:
        raced(lambda: numbers.fill_(2.0))
    others = forebay.empty(4, device=device)
    others.fill_(1.0)
    event.record(forebay.default_stream(device))
    side.wait_event(event)
    with side:
        others.fill_(2.0)


def test_a_stream_made_after_the_host_waited_comes_after(device):
    numbers = forebay.full((4,), 1.0, device=device)
    forebay.synchronize(device)
    with forebay.Stream(device):
        numbers.fill_(2.0)


def freed_while_the_side_reads(device, side, *, told):
    numbers, out = forebay.full((4,), 1.0, device=device), forebay.empty(4, device=device)
    side.wait_stream(forebay.default_stream(device))
    with side:
        out.copy_(numbers)
    if told:
        numbers.record_stream(side)
    address = numbers.data_ptr()
    del numbers
    gc.collect()
    return address, out


@pytest.mark.parametrize("device", ["cuda"], indirect=True)
def test_memory_freed_without_record_stream_is_told_of_when_it_is_used_again(device, side, capsys):
    address, _ = freed_while_the_side_reads(device, side, told=False)
    again = forebay.empty(4, device=device)
    assert again.data_ptr() == address
    (error,) = raced(lambda: again.fill_(2.0))
    assert error.freed_between
    assert "Call record_stream() before it is." in capsys.readouterr().err


def test_memory_freed_with_record_stream_is_in_order(device, side):
    freed_while_the_side_reads(device, side, told=True)
    side.synchronize()
    forebay.empty(4, device=device).fill_(2.0)


def test_memory_freed_in_order_is_nothing_to_tell(device, side):
    freed_while_the_side_reads(device, side, told=False)
    forebay.default_stream(device).wait_stream(side)
    forebay.empty(4, device=device).fill_(2.0)


@pytest.mark.parametrize("device", ["cuda"], indirect=True)
def test_copies_between_devices_and_collectives_keep_their_streams_in_step(device):
    from forebay.cuda import comm, nccl

    numbers = [forebay.full((8,), 1.0, device=f"cuda:{index}") for index in range(2)]
    numbers[1].copy_(numbers[0])
    numbers[0].fill_(2.0)
    nccl.all_reduce(numbers)
    assert comm.gather(comm.scatter(comm.reduce_add(numbers), [0, 1])).tolist() == [6.0] * 8
    numbers[1].fill_(3.0)
    with forebay.Stream("cuda:1"):
        raced(lambda: nccl.all_reduce(numbers))


def test_a_detector_that_comes_late_knows_nothing_of_before(clean):
    ones, side = forebay.full((4,), 1.0, device=HERE), forebay.Stream(HERE)
    with detected():
        with side:
            ones.fill_(2.0)
        raced(lambda: ones.fill_(3.0))
    ones.fill_(4.0)


def test_other_kinds_are_left_alone(clean):
    with detected("cuda"):
        ones = forebay.full((4,), 1.0, device=HERE)
        with forebay.Stream(HERE):
            ones.fill_(2.0)


def test_what_is_kept_does_not_grow(clean):
    detector = Detector("host")
    with observers.listening_to(detector):
        numbers = forebay.empty(1 << 12, device=HERE)
        for _ in range(50):
            numbers.fill_(1.0)
            numbers.clone()
        for index in range(1 << 10):
            numbers[index].fill_(1.0)
        gc.collect()
        forebay.empty(1, device=HERE).fill_(0.0)
    (memory,) = (each for each in detector._memory.values() if each.address == numbers.storage.address)
    assert len(memory.uses) <= 256
    assert len(detector._memory) <= 3
    assert len(detector._freed) == 0


def test_threads_may_queue_at_once(eight_threads, clean):
    shared = forebay.full((8, 64), 0.0, device=HERE)
    forebay.synchronize(HERE)

    def work(number):
        for _ in range(20):
            with forebay.Stream(HERE) as stream:
                shared[number].fill_(1.0)
                shared[number].clone()
                stream.synchronize()

    with detected("host"):
        eight_threads(work)


class Plain:
    """Races by definition: between two uses is no chain of program order and waits."""

    def __init__(self):
        self.before = {}  # of each operation, all that come before it
        self.last = {}  # of each stream, what its next work comes after
        self.uses = []

    def use(self, stream, part, writes):
        now = len(self.uses)
        before = set(self.last.get(stream, ()))
        raced = [n for n, (p, w) in enumerate(self.uses) if p == part and (w or writes) and n not in before]
        self.uses.append((part, writes))
        self.last[stream] = before | {now}
        return raced

    def wait(self, stream, other):
        self.last[stream] = self.last.get(stream, set()) | self.last.get(other, set())


@pytest.mark.parametrize("seed", range(20))
def test_random_programs_race_where_the_definition_says(seed, clean):
    dice, plain = random.Random(seed), Plain()
    parts = [forebay.empty(4, device=HERE) for _ in range(3)]
    outs = [forebay.empty(4, device=HERE) for _ in range(3)]
    streams = [forebay.Stream(HERE) for _ in range(3)]
    forebay.synchronize(HERE)
    found = []
    with detected("host"):
        for _ in range(60):
            at = dice.randrange(3)
            what = dice.choice(["write", "read", "wait"])
            if what == "wait":
                other = dice.randrange(3)
                streams[at].wait_stream(streams[other])
                plain.wait(at, other)
                continue
            part = dice.randrange(3)
            expected = bool(plain.use(at, part, what == "write"))
            if what == "read":
                expected |= bool(plain.use(at, ("out", at), writes=True))
            try:
                with streams[at]:
                    parts[part].fill_(1.0) if what == "write" else outs[at].copy_(parts[part])
                said = False
            except CUDASanitizerErrors:
                said = True
            found.append((said, expected))
            if said:
                break  # what comes after a race is not defined
    assert [said for said, _ in found] == [expected for _, expected in found]


def test_the_environment_switches_it_on():
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
    for value, said in (("1", "detected 1 errors\n"), ("", "")):
        done = subprocess.run(
            command, env=os.environ | {"TORCH_CUDA_SANITIZER": value}, capture_output=True, text=True, check=True
        )
        assert done.stdout == said


def test_a_forked_child_has_no_listener(clean):
    before = observers.listeners  # callbacks of forebay.cuda._gpu_trace stay for good
    with detected("host"), warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forking where there are threads
        child = os.fork()
        if not child:
            os._exit(0 if observers.listeners == () else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert observers.listeners == before


def test_a_listener_hears_of_streams_events_and_memory(clean):
    heard = []

    class Everything(observers.Listener):
        def __getattribute__(self, name):
            return lambda *arguments: heard.append(name)

    side = forebay.Stream(HERE)
    with observers.listening_to(Everything()):
        event = forebay.Event()
        numbers = forebay.empty(4, device=HERE)
        event.record(side)
        event.wait()
        event.synchronize()
        numbers.record_stream(side)
        side.wait_stream(forebay.default_stream(HERE))
        side.synchronize()
        forebay.synchronize(HERE)
        del numbers, event
        gc.collect()
    forebay.empty(4, device=HERE)
    assert heard == [
        "allocated", "event_created", "event_recorded", "event_waited", "event_synchronized", "used", "stream_waited",
        "stream_synchronized", "device_synchronized", "freed", "event_deleted",
    ]  # fmt: skip


def test_a_thread_that_only_synchronizes_orders_for_all(clean):
    numbers, side = forebay.full((4,), 1.0, device=HERE), forebay.Stream(HERE)
    with detected("host"):
        numbers.fill_(2.0)
        thread = threading.Thread(target=forebay.synchronize, args=(HERE,))
        thread.start()
        thread.join(30)
        with side:
            numbers.fill_(3.0)


@pytest.mark.parametrize("device", ["cuda"], indirect=True)
def test_what_is_captured_is_not_done_yet(device):
    from forebay import cuda

    numbers, graph = forebay.full((4,), 1.0, device=device), cuda.CUDAGraph()
    with cuda.graph(graph):
        numbers.fill_(2.0)
    numbers.fill_(3.0)
    graph.replay()
    assert numbers.tolist() == [2.0] * 4
