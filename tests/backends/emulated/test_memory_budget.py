"""MemoryBudget: work that would touch more memory than the machine has raises OutOfMemory when it is queued."""

from __future__ import annotations

import contextlib
import gc

import pytest

import forebay
from forebay._base import system_memory
from forebay.backends.emulated.driver import EmulatedDriver
from forebay.backends.emulated.memory_budget import budget
from forebay.runtime.devices import retired_devices

pytestmark = pytest.mark.usefixtures("clean")
MIB, GIB = 1 << 20, 1 << 30


class Machine:
    """A machine with a given amount of memory; charged memory is not available any more."""

    def __init__(self, usable: int) -> None:
        self.usable = usable
        self.used_by_others = 0
        self.reports_available = True

    def available(self) -> int | None:
        return self.usable - self.used_by_others - budget._resident if self.reports_available else None


@pytest.fixture
def machine(monkeypatch):
    """A machine of 64 MiB, of which 2 stay unused."""
    gc.collect()
    retired_devices.close_unused()  # emulated devices of other tests, whose memory is freed only now
    assert budget.touched == 0
    found = Machine(64 * MIB)
    monkeypatch.setattr(system_memory, "usable_memory", lambda: found.usable)
    monkeypatch.setattr(system_memory, "available_memory", found.available)
    monkeypatch.setattr("forebay.backends.emulated.memory_budget._AHEAD", 1 << 40)  # no allowance: query each time
    monkeypatch.setattr(budget, "_allowance", (0, 0.0))
    monkeypatch.setattr(budget, "_resident", 0)
    return found


@pytest.fixture
def cuda(machine):
    with forebay.emulate("cuda", count=2, profile="h200") as emulation:
        yield emulation
        gc.collect()
    assert budget.touched == 0


def test_work_beyond_the_machines_memory_raises_without_effect(cuda):
    kept = forebay.full((10 * MIB,), 3, dtype="uint8", device="cuda:1")
    huge = forebay.empty(100 * GIB, dtype="uint8", device="cuda:0")  # free
    before = forebay.memory.memory_stats("cuda:0")
    touched = budget.touched
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
    assert budget.touched == touched
    assert forebay.memory.memory_stats("cuda:0") == before
    huge[: 20 * MIB].fill_(7)  # parts that fit succeed
    assert huge[20 * MIB - 1].item() == 7
    assert kept.cpu().numpy()[-1] == 3


@pytest.mark.parametrize(
    ("call", "work"),
    [
        ("fill", lambda big, small: big.zero_()),
        ("copy", lambda big, small: big.copy_(small)),
        ("fill", lambda big, small: big.view(forebay.float32).fill_(1.5)),
        ("copy", lambda big, small: big.view(forebay.float32).copy_(small[: GIB // 4])),
        ("fill", lambda big, small: big.view(forebay.float32)[::2].fill_(1.5)),
        ("random fill", lambda big, small: big.view(forebay.float32).uniform_()),
        ("random fill", lambda big, small: big.view(forebay.float32)[::2].normal_()),
    ],
)
def test_every_type_of_work_is_charged(cuda, call, work):
    big, other = (forebay.empty(GIB, dtype="uint8", device="cuda") for _ in range(2))
    with pytest.raises(forebay.OutOfMemory, match=f"not enough memory for this {call}: ") as caught:
        work(big, other)
    assert caught.value.call == call
    assert budget.touched == 0
    forebay.synchronize("cuda")


def test_sparse_writes_are_charged_for_their_units_only(cuda):
    big = forebay.empty((1024, MIB), dtype="uint8", device="cuda").view(forebay.float32)
    big[::512, :100].fill_(1.5)
    assert budget.touched == 4 * MIB
    source = forebay.zeros(1, dtype="float64", device="cuda")
    assert budget.touched == 6 * MIB
    big[4::512, 1::2].copy_(source)
    assert budget.touched == 10 * MIB
    forebay.synchronize("cuda")
    with pytest.raises(forebay.OutOfMemory, match="this function"):
        forebay.randperm(5 * MIB, device="cuda:1", dtype=forebay.int64)


def test_reads_and_repeated_writes_are_free(cuda):
    big = forebay.empty(GIB, dtype="uint8", device="cuda")
    for _ in range(3):
        big[5 : 40 * MIB].fill_(1)
        assert budget.touched == 40 * MIB
    target = forebay.empty(10 * MIB, dtype="uint8", device="cuda:1")
    target.copy_(big[500 * MIB : 510 * MIB])
    assert budget.touched == 50 * MIB
    assert target.cpu().numpy().sum() == 0


def test_released_memory_is_not_charged(cuda):
    for _ in range(3):
        big = forebay.full((50 * MIB,), 1, dtype="uint8", device="cuda:0")
        with pytest.raises(forebay.OutOfMemory):
            forebay.full((50 * MIB,), 1, dtype="uint8", device="cuda:1")
        del big
        forebay.memory.empty_cache("cuda:0")
        forebay.memory.empty_cache("cuda:1")
        assert budget.touched == 0


def test_decommitted_pages_are_not_charged(cuda):
    forebay.memory.set_allocator_settings("expandable_segments:True")
    try:
        big = forebay.full((40 * MIB,), 1, dtype="uint8", device="cuda:0")
        assert budget.touched == 40 * MIB
        del big
        forebay.memory.empty_cache("cuda:0")
        assert budget.touched == 0
    finally:
        forebay.memory.set_allocator_settings("expandable_segments:False")


def test_expandable_segment_may_exceed_the_machines_memory(clean):
    forebay.memory.set_allocator_settings("expandable_segments:True")
    try:
        with forebay.emulate("cuda", profile="h200", memory=4096 * GIB):
            for _ in range(2):  # the second time in pages that were decommitted
                huge = forebay.empty(3000 * GIB, dtype="uint8", device="cuda")
                huge[-10:].fill_(3)
                assert huge[-12:].tolist() == [0, 0, *[3] * 10]
                with pytest.raises(forebay.OutOfMemory, match="the machine has not enough memory for this fill"):
                    huge.fill_(1)
                del huge
                forebay.memory.empty_cache("cuda")
    finally:
        forebay.memory.set_allocator_settings("expandable_segments:False")


def test_memory_used_by_others_is_unavailable(cuda, machine):
    machine.used_by_others = 30 * MIB
    big = forebay.empty(GIB, dtype="uint8", device="cuda")
    with pytest.raises(forebay.OutOfMemory, match=r"32\.00 MiB are left of the 64\.00 MiB"):
        big[: 40 * MIB].zero_()
    machine.used_by_others = 0
    big[: 40 * MIB].zero_()


def test_memory_charged_by_pending_work_is_not_charged_twice(cuda):
    """The system still reports it as available."""
    big = forebay.empty(GIB, dtype="uint8", device="cuda")
    gate, stream = forebay.Event("cuda"), forebay.current_stream("cuda")
    other = forebay.Stream("cuda")
    held = BlockedQueue(other)
    gate.record(other)
    stream.wait_event(gate)
    with held:
        big[: 40 * MIB].zero_()
        with pytest.raises(forebay.OutOfMemory, match=r"22\.00 MiB are left"):
            big[40 * MIB : 80 * MIB].zero_()
    forebay.synchronize("cuda")
    big[40 * MIB : 60 * MIB].zero_()


class BlockedQueue:
    """Context manager at whose end the work of a stream's queue may continue."""

    def __init__(self, stream) -> None:
        import threading

        self.gate = threading.Event()
        stream.queue.call(lambda: self.gate.wait(30))

    def __enter__(self) -> None:
        pass

    def __exit__(self, *what: object) -> None:
        self.gate.set()


def test_system_without_available_memory_is_supported(cuda, machine):
    machine.reports_available = False
    big = forebay.empty(GIB, dtype="uint8", device="cuda")
    big[: 40 * MIB].zero_()
    forebay.synchronize("cuda")
    with pytest.raises(forebay.OutOfMemory, match=r"22\.00 MiB are left"):
        big[40 * MIB : 80 * MIB].zero_()


def test_query_of_available_memory_is_reused(machine, monkeypatch):
    """Otherwise each first write to 2 MiB would read the system's files."""
    monkeypatch.setattr("forebay.backends.emulated.memory_budget._AHEAD", 4)
    queries = []
    monkeypatch.setattr(system_memory, "available_memory", lambda: queries.append(1) or machine.available())
    clock = [0.0]
    monkeypatch.setattr("forebay.backends.emulated.memory_budget.time.monotonic", lambda: clock[0])
    port = EmulatedDriver("cuda", 1, "h200").open(0)
    address, queue = port.reserve(GIB), port.queue()
    for step in range(4):
        queue.fill(address + step * 2 * MIB, 1, 1)
    assert queries == [1]
    clock[0] = 1.0
    queue.fill(address + 40 * MIB, 1, 1)
    assert queries == [1, 1]
    port.close()
    assert budget.touched == 0


def test_closed_queue_raises_before_charging(machine):
    port = EmulatedDriver("cuda", 1, "h200").open(0)
    address, queue = port.reserve(GIB), port.queue()
    queue.close()
    with pytest.raises(forebay.WrongState, match="was closed"):
        queue.fill(address, 1, 1)
    assert budget.touched == 0
    port.close()


@pytest.mark.parametrize("arguments", [(0, 1, 1), (1, 256, 1), (1, 1, 0), (-1, 1, 1), (1, 1, 1 << 63)], ids=str)
def test_invalid_arguments_are_rejected(machine, arguments):
    port = EmulatedDriver("cuda", 1, "h200").open(0)
    with pytest.raises((ValueError, TypeError)):
        port.queue().fill(*arguments)
    port.close()


def test_concurrent_work_never_exceeds_the_budget(cuda, machine, eight_threads):
    big = forebay.empty(8 * GIB, dtype="uint8", device="cuda")
    done = []

    def work(number: int) -> None:
        with contextlib.suppress(forebay.OutOfMemory):
            for step in range(10):
                start = number * GIB + step * 2 * MIB
                big[start : start + 2 * MIB].zero_()
                done.append(1)

    eight_threads(work)
    assert budget.touched == 2 * MIB * len(done) <= 62 * MIB
    assert len(done) == 31


def test_graph_launch_is_charged_as_a_whole(cuda):
    big, small = (forebay.empty(GIB, dtype="uint8", device="cuda") for _ in range(2))
    queue = forebay.Stream("cuda").queue
    recording = queue.begin_capture("relaxed")
    queue.fill(small.data_ptr(), 1, 2 * MIB)
    queue.fill(small.data_ptr() + MIB, 2, 2 * MIB)
    queue.call(lambda: None)
    queue.fill(big.data_ptr(), 3, 100 * MIB)
    queue.end_capture()
    assert budget.touched == 0
    with pytest.raises(forebay.OutOfMemory, match="not enough memory for this graph: it would touch 104") as caught:
        recording.launch(queue)
    assert (caught.value.wanted, budget.touched) == (104 * MIB, 0)
    queue.wait(queue.signal())
    assert small[0].item() == 0


def test_queue_charges_again_after_a_capture(cuda):
    small, big = (forebay.empty(size, dtype="uint8", device="cuda") for size in (10 * MIB, GIB))
    queue = forebay.Stream("cuda").queue
    recording = queue.begin_capture("relaxed")
    queue.fill(small.data_ptr(), 5, small.nbytes)
    queue.end_capture()
    recording.launch(queue)
    recording.launch(queue)
    queue.wait(queue.signal())
    assert budget.touched == 10 * MIB
    assert small[-1].item() == 5
    with pytest.raises(forebay.OutOfMemory, match="this fill"):
        queue.fill(big.data_ptr(), 1, GIB)
    queue.fill(big.data_ptr(), 1, MIB)
