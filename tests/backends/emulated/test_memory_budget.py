"""An emulated device may have more memory than the machine: work that would touch too much is refused, at the call."""

from __future__ import annotations

import contextlib
import gc

import pytest

import forebay
from forebay import config
from forebay.backends.emulated.driver import EmulatedDriver
from forebay.backends.emulated.memory_budget import room
from forebay.runtime.devices import retired_devices

pytestmark = pytest.mark.usefixtures("clean")
MIB, GIB = 1 << 20, 1 << 30


class Machine:
    """As much memory as a test says; nobody else uses any, and what is touched is not offered any more."""

    def __init__(self, usable: int) -> None:
        self.usable = usable
        self.others = 0
        self.tells = True

    def available(self) -> int | None:
        return self.usable - self.others - room._settled if self.tells else None


@pytest.fixture
def machine(monkeypatch):
    """A machine of 64 MiB, of which 2 are left alone."""
    gc.collect()
    retired_devices.close()  # emulations of other tests, whose memory came back only now
    assert room.touched == 0
    found = Machine(64 * MIB)
    monkeypatch.setattr(config, "usable_memory", lambda: found.usable)
    monkeypatch.setattr(config, "available_memory", found.available)
    monkeypatch.setattr("forebay.backends.emulated.memory_budget._AHEAD", 1 << 40)  # each time is looked anew
    monkeypatch.setattr(room, "_ahead", (0, 0.0))
    monkeypatch.setattr(room, "_settled", 0)
    return found


@pytest.fixture
def cuda(machine):
    with forebay.emulate("cuda", count=2, profile="h200") as emulation:
        yield emulation
        gc.collect()
    assert room.touched == 0


def test_what_does_not_fit_the_machine_is_refused_and_nothing_is_lost(cuda):
    kept = forebay.full((10 * MIB,), 3, dtype="uint8", device="cuda:1")
    huge = forebay.empty(100 * GIB, dtype="uint8", device="cuda:0")  # costs nothing
    before = forebay.memory.memory_stats("cuda:0")
    touched = room.touched
    with pytest.raises(forebay.OutOfMemory) as caught:
        huge.zero_()
    error = caught.value
    assert (error.wanted, error.free, error.reserved) == (100 * GIB, 62 * MIB - touched, touched)
    assert (error.capacity, error.device, error.call) == (64 * MIB, "cuda:0", "fill")
    assert str(error) == (
        "cuda:0 is emulated, and the machine has not enough memory for this fill: it would touch 100.00 GiB for the "
        "first time, and 52.00 MiB are left of the 64.00 MiB that this process may use. Emulated devices have touched "
        "10.00 MiB so far. Use smaller tensors, or emulate less: another profile=, or memory="
    )
    assert room.touched == touched
    assert forebay.memory.memory_stats("cuda:0") == before
    huge[: 20 * MIB].fill_(7)  # the parts that fit do
    assert huge[20 * MIB - 1].item() == 7
    assert kept.cpu().numpy()[-1] == 3


@pytest.mark.parametrize(
    ("call", "work"),
    [
        ("fill", lambda big, small: big.zero_()),
        ("copy", lambda big, small: big.copy_(small)),
        ("function", lambda big, small: big.view(forebay.float32).fill_(1.5)),
        ("function", lambda big, small: big.view(forebay.float32).copy_(small[: GIB // 4])),
        ("function", lambda big, small: big.view(forebay.float32)[::2].fill_(1.5)),
        ("random fill", lambda big, small: big.view(forebay.float32).uniform_()),
        ("random fill", lambda big, small: big.view(forebay.float32)[::2].normal_()),
    ],
)
def test_every_kind_of_work_is_counted(cuda, call, work):
    big, other = (forebay.empty(GIB, dtype="uint8", device="cuda") for _ in range(2))
    with pytest.raises(forebay.OutOfMemory, match=f"not enough memory for this {call}: ") as caught:
        work(big, other)
    assert caught.value.call == call
    assert room.touched == 0
    forebay.synchronize("cuda")


def test_functions_that_write_a_little_of_much_are_counted_for_that(cuda):
    big = forebay.empty((1024, MIB), dtype="uint8", device="cuda").view(forebay.float32)
    big[::512, :100].fill_(1.5)
    assert room.touched == 4 * MIB
    forebay.synchronize("cuda")
    with pytest.raises(forebay.OutOfMemory, match="this function"):
        forebay.randperm(5 * MIB, device="cuda:1", dtype=forebay.int64)


def test_reading_and_touching_again_cost_nothing(cuda):
    big = forebay.empty(GIB, dtype="uint8", device="cuda")
    for _ in range(3):
        big[5 : 40 * MIB].fill_(1)
        assert room.touched == 40 * MIB
    target = forebay.empty(10 * MIB, dtype="uint8", device="cuda:1")
    target.copy_(big[500 * MIB : 510 * MIB])
    assert room.touched == 50 * MIB
    assert target.cpu().numpy().sum() == 0


def test_memory_that_goes_back_is_counted_no_more(cuda):
    for _ in range(3):
        big = forebay.full((50 * MIB,), 1, dtype="uint8", device="cuda:0")
        with pytest.raises(forebay.OutOfMemory):
            forebay.full((50 * MIB,), 1, dtype="uint8", device="cuda:1")
        del big
        forebay.memory.empty_cache("cuda:0")
        forebay.memory.empty_cache("cuda:1")
        assert room.touched == 0


def test_growing_segments_give_back_page_by_page(cuda):
    forebay.memory.set_allocator_settings("expandable_segments:True")
    try:
        big = forebay.full((40 * MIB,), 1, dtype="uint8", device="cuda:0")
        assert room.touched == 40 * MIB
        del big
        forebay.memory.empty_cache("cuda:0")
        assert room.touched == 0
    finally:
        forebay.memory.set_allocator_settings("expandable_segments:False")


def test_what_others_use_is_not_there(cuda, machine):
    machine.others = 30 * MIB
    big = forebay.empty(GIB, dtype="uint8", device="cuda")
    with pytest.raises(forebay.OutOfMemory, match=r"32\.00 MiB are left of the 64\.00 MiB"):
        big[: 40 * MIB].zero_()
    machine.others = 0
    big[: 40 * MIB].zero_()


def test_memory_that_queued_work_has_not_touched_yet_is_not_given_twice(cuda):
    """The system offers it still, so nobody can tell from that alone."""
    big = forebay.empty(GIB, dtype="uint8", device="cuda")
    gate, stream = forebay.Event("cuda"), forebay.current_stream("cuda")
    other = forebay.Stream("cuda")
    held = Held(other)
    gate.record(other)
    stream.wait_event(gate)
    with held:
        big[: 40 * MIB].zero_()
        with pytest.raises(forebay.OutOfMemory, match=r"22\.00 MiB are left"):
            big[40 * MIB : 80 * MIB].zero_()
    forebay.synchronize("cuda")
    big[40 * MIB : 60 * MIB].zero_()


class Held:
    """A stream whose queue waits until the end of the block."""

    def __init__(self, stream) -> None:
        import threading

        self.door = threading.Event()
        stream.queue.call(lambda: self.door.wait(30))

    def __enter__(self) -> None:
        pass

    def __exit__(self, *what: object) -> None:
        self.door.set()


def test_where_the_system_does_not_tell_what_is_free(cuda, machine):
    machine.tells = False
    big = forebay.empty(GIB, dtype="uint8", device="cuda")
    big[: 40 * MIB].zero_()
    forebay.synchronize("cuda")
    with pytest.raises(forebay.OutOfMemory, match=r"22\.00 MiB are left"):
        big[40 * MIB : 80 * MIB].zero_()


def test_a_look_holds_for_a_while(machine, monkeypatch):
    """Else each first touch of 2 MiB would read the system's files."""
    monkeypatch.setattr("forebay.backends.emulated.memory_budget._AHEAD", 4)
    looks = []
    monkeypatch.setattr(config, "available_memory", lambda: looks.append(1) or machine.available())
    clock = [0.0]
    monkeypatch.setattr("forebay.backends.emulated.memory_budget.time.monotonic", lambda: clock[0])
    port = EmulatedDriver("cuda", 1, "h200").open(0)
    address, queue = port.reserve(GIB), port.queue()
    for step in range(4):
        queue.fill(address + step * 2 * MIB, 1, 1)
    assert looks == [1]
    clock[0] = 1.0
    queue.fill(address + 40 * MIB, 1, 1)
    assert looks == [1, 1]
    port.close()
    assert room.touched == 0


def test_a_queue_that_was_closed_says_so_first(machine):
    port = EmulatedDriver("cuda", 1, "h200").open(0)
    address, queue = port.reserve(GIB), port.queue()
    queue.close()
    with pytest.raises(forebay.WrongState, match="was closed"):
        queue.fill(address, 1, 1)
    assert room.touched == 0
    port.close()


@pytest.mark.parametrize("nonsense", [(0, 1, 1), (1, 256, 1), (1, 1, 0), (-1, 1, 1), (1, 1, 1 << 63)], ids=str)
def test_nonsense_is_refused_as_ever(machine, nonsense):
    port = EmulatedDriver("cuda", 1, "h200").open(0)
    with pytest.raises((ValueError, TypeError)):
        port.queue().fill(*nonsense)
    port.close()


def test_eight_threads_together_touch_no_more_than_there_is(cuda, machine, eight_threads):
    big = forebay.empty(8 * GIB, dtype="uint8", device="cuda")
    done = []

    def work(number: int) -> None:
        with contextlib.suppress(forebay.OutOfMemory):
            for step in range(10):
                start = number * GIB + step * 2 * MIB
                big[start : start + 2 * MIB].zero_()
                done.append(1)

    eight_threads(work)
    assert room.touched == 2 * MIB * len(done) <= 62 * MIB
    assert len(done) == 31


def test_a_graph_is_counted_when_it_is_launched_and_all_of_it_or_nothing(cuda):
    big, small = (forebay.empty(GIB, dtype="uint8", device="cuda") for _ in range(2))
    queue = forebay.Stream("cuda").queue
    recording = queue.begin_capture("relaxed")
    queue.fill(small.data_ptr(), 1, 2 * MIB)
    queue.fill(small.data_ptr() + MIB, 2, 2 * MIB)
    queue.call(lambda: None)
    queue.fill(big.data_ptr(), 3, 100 * MIB)
    queue.end_capture()
    assert room.touched == 0
    with pytest.raises(forebay.OutOfMemory, match="not enough memory for this graph: it would touch 104") as caught:
        recording.launch(queue)
    assert (caught.value.wanted, room.touched) == (104 * MIB, 0)
    queue.wait(queue.signal())
    assert small[0].item() == 0


def test_a_queue_counts_again_when_it_records_no_more(cuda):
    small, big = (forebay.empty(size, dtype="uint8", device="cuda") for size in (10 * MIB, GIB))
    queue = forebay.Stream("cuda").queue
    recording = queue.begin_capture("relaxed")
    queue.fill(small.data_ptr(), 5, small.nbytes)
    queue.end_capture()
    recording.launch(queue)
    recording.launch(queue)
    queue.wait(queue.signal())
    assert room.touched == 10 * MIB
    assert small[-1].item() == 5
    with pytest.raises(forebay.OutOfMemory, match="this fill"):
        queue.fill(big.data_ptr(), 1, GIB)
    queue.fill(big.data_ptr(), 1, MIB)
