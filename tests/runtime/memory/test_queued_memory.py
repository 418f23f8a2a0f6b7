"""Queued work refers to memory by address: a freed block is reused at once by later work on the same stream."""

from __future__ import annotations

import threading

import numpy as np
import pytest

import forebay
from forebay import cuda
from forebay.runtime.memory import transfer

pytestmark = pytest.mark.usefixtures("clean")
MIB = 1 << 20
COUNT = 1 << 20  # elements of 4 bytes: 4 MiB
SEGMENT = 20 * MIB
ROUNDS = 20


@pytest.fixture(params=["segments", "expandable segments"])
def device(request):
    with forebay.emulate("cuda", count=2, memory="256MiB"):
        if request.param == "expandable segments":
            forebay.memory.set_allocator_settings("expandable_segments:True")
        yield "cuda"
        forebay.memory.set_allocator_settings("expandable_segments:False")


@pytest.fixture
def blocked(device):
    """A current stream of the device whose work starts only when the fixture is called."""
    gate = threading.Event()
    with forebay.Stream(device) as stream:
        stream.queue.call(lambda: gate.wait(30))
        yield gate.set
        gate.set()
        stream.synchronize()


def empty():
    return forebay.empty(COUNT, device="cuda")


def wide():
    """Return elements of another type, which are part of no measurement."""
    return forebay.zeros(2, device="cuda", dtype="float64").view(2, 1).expand(2, COUNT // 2)


def copy_within(made, to, source):
    made[to].copy_(made[source])


WORK = {
    "full": lambda _: forebay.full((COUNT,), 1.0, device="cuda"),
    "zeros": lambda _: forebay.zeros(COUNT, device="cuda"),
    "fill_": lambda _: empty().fill_(1.5),
    "fill_ of columns": lambda _: empty().view(COUNT // 2, 2)[:, 1].fill_(1.5),
    "to": lambda source: source.to("float32"),
    "converting copy_": lambda source: empty().view(2, -1).copy_(source),
    "strided copy_": lambda _: copy_within(empty(), slice(0, None, 2), slice(1, None, 2)),
    "copy_ of an array": lambda _: empty().copy_(ARRAY, non_blocking=True),
    "strided copy_ of an array": lambda _: empty().view(2, -1).transpose(0, 1).copy_(ARRAY[:2], non_blocking=True),
    "converting copy_ of an array": lambda _: empty().copy_(ARRAY.astype(np.int8), non_blocking=True),
    "normal_": lambda _: empty().normal_(),
    "overlapping copy_": lambda _: copy_within(empty(), slice(1, None), slice(0, -1)),
}
ARRAY = np.zeros(COUNT, np.float32)


@pytest.mark.parametrize("work", WORK.values(), ids=WORK)
def test_memory_of_queued_work_is_reused(device, blocked, work):
    source = wide()
    before = cuda.memory_allocated()
    cuda.reset_peak_memory_stats()
    small = cuda.memory_reserved()
    for _ in range(ROUNDS):
        work(source)
    assert cuda.max_memory_allocated() == before + 4 * COUNT
    assert cuda.memory_allocated() == before
    assert cuda.max_memory_reserved() == small + SEGMENT
    blocked()
    cuda.synchronize()
    assert cuda.max_memory_allocated() == before + 4 * COUNT


@pytest.mark.parametrize("work", WORK.values(), ids=WORK)
def test_queue_without_strided_copies_does_not_hold_memory(device, monkeypatch, work):
    """Its fallback is a NumPy function. An overlapping copy clones the source, so it needs two tensors."""
    monkeypatch.setattr(transfer, "can_copy_strided", lambda queue: False)
    source, peak = wide(), (8 if work is WORK["overlapping copy_"] else 4) * COUNT
    before = cuda.memory_allocated()
    cuda.reset_peak_memory_stats()
    for _ in range(ROUNDS):
        work(source)
    assert cuda.max_memory_allocated() == before + peak
    assert cuda.memory_allocated() == before
    cuda.synchronize()


def test_random_permutation_does_not_hold_memory(device, blocked):
    """Beside the result there are keys, both of 8 bytes per element."""
    forebay.randperm(COUNT // 2, device=device)
    before = cuda.memory_allocated()
    cuda.reset_peak_memory_stats()
    for _ in range(ROUNDS):
        forebay.randperm(COUNT // 2, device=device)
    assert cuda.memory_allocated() == before
    assert cuda.max_memory_allocated() == before + 16 * (COUNT // 2)


def test_reused_memory_is_written_in_order(device, blocked):
    out, addresses = forebay.zeros(4, ROUNDS, device=device, dtype="int64"), set()
    for number in range(ROUNDS):
        made = forebay.full((COUNT,), float(number) + 0.5, device=device)
        addresses.add(made.data_ptr())
        out[0, number].copy_(made[-1])
        made.view(COUNT // 2, 2)[:, 1].fill_(-number)
        out[1:3, number].copy_(made[-2:])
        converted = made[: COUNT // 2].to("float64")
        del made
        out[3, number].copy_(converted[1])
    assert len(addresses) <= 2
    blocked()
    numbers = list(range(ROUNDS))
    assert out.tolist() == [numbers, numbers, [-number for number in numbers], [-number for number in numbers]]


def test_source_on_another_device_is_not_reused_before_it_is_read(device, blocked):
    """The copy runs on the target's stream, and the source's stream waits for it."""
    target = forebay.zeros(COUNT, device=device, dtype="float64")
    source = forebay.full((COUNT,), 3.5, device="cuda:1")
    address = source.data_ptr()
    target.copy_(source)
    del source
    again = forebay.full((COUNT,), 9.5, device="cuda:1")
    assert again.data_ptr() == address
    blocked()
    assert target[::100_000].tolist() == [3.5] * 11
    assert again[0].item() == 9.5
