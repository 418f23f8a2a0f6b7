"""Peaks of a part of a program: nesting, threads, resets and errors."""

from __future__ import annotations

import re

import pytest

import forebay
from forebay import WrongState, cuda
from forebay._core import Pool
from forebay.memory import peak

pytestmark = pytest.mark.usefixtures("clean")
MIB = 1 << 20


@pytest.fixture
def device():
    with forebay.emulate("cuda", count=2, memory="64MiB"):
        yield "cuda:0"


def use(nbytes, device="cuda:0"):
    forebay.empty(nbytes, dtype="uint8", device=device)


def test_peak_of_allocated_and_reserved_bytes(device):
    held = forebay.empty(2 * MIB, dtype="uint8", device=device)
    with peak(device) as p:
        assert (p.allocated, p.allocated_above, p.reserved, p.reserved_above) == (2 * MIB, 0, 20 * MIB, 0)
        use(3 * MIB)
        use(30 * MIB)
        assert p.allocated_above == 30 * MIB
    use(40 * MIB)
    assert (p.allocated, p.allocated_above) == (32 * MIB, 30 * MIB)
    assert (p.reserved, p.reserved_above) == (50 * MIB, 30 * MIB)
    del held


def test_peaks_nest_independently(device):
    with peak(device) as outer:
        use(8 * MIB)
        with peak(device) as inner:
            use(2 * MIB)
            with peak(device) as innermost:
                pass
        use(4 * MIB)
    assert [p.allocated for p in (outer, inner, innermost)] == [8 * MIB, 2 * MIB, 0]


def test_peaks_may_end_in_any_order(device):
    first, second = peak(device), peak(device)
    first.__enter__()
    use(MIB)
    second.__enter__()
    use(3 * MIB)
    first.__exit__(None, None, None)
    use(5 * MIB)
    second.__exit__(None, None, None)
    assert (first.allocated, second.allocated) == (3 * MIB, 5 * MIB)


def test_peak_is_independent_of_reset_peak_memory_stats(device):
    use(8 * MIB)
    with peak(device) as p:
        use(4 * MIB)
        assert forebay.memory.max_memory_allocated(device) == 8 * MIB
        forebay.memory.reset_peak_memory_stats(device)
        use(MIB)
        assert forebay.memory.max_memory_allocated(device) == MIB
    assert p.allocated == 4 * MIB
    assert forebay.memory.max_memory_allocated(device) == MIB


def test_exception_ends_peak(device):
    with pytest.raises(forebay.OutOfMemory), peak(device) as p:
        [use(size) for size in (2 * MIB, 100 * MIB)]
    use(8 * MIB)
    assert p.allocated == 2 * MIB


def test_peak_excludes_other_devices(device):
    with peak(device) as p:
        use(2 * MIB, "cuda:1")
    assert (p.allocated, p.reserved) == (0, 0)


def test_peak_includes_all_threads(device, eight_threads):
    held = []
    with peak(device) as p:
        eight_threads(lambda _: held.append(forebay.empty(MIB, dtype="uint8", device=device)))
    assert p.allocated == 8 * MIB


def test_threads_can_measure_concurrently(device, eight_threads):
    def work(_):
        for _ in range(50):
            with peak(device) as p:
                use(MIB)
            assert MIB <= p.allocated <= 8 * MIB

    eight_threads(work)


def test_peak_includes_expandable_segments(device):
    forebay.memory.set_allocator_settings("expandable_segments:True")
    try:
        with peak(device) as p:
            use(3 * MIB)
    finally:
        forebay.memory.set_allocator_settings("expandable_segments:False")
    assert p.reserved == 20 * MIB


def test_peak_cannot_be_entered_twice(device):
    p = peak(device)
    with pytest.raises(WrongState, match=re.escape("not measured yet: use `with forebay.memory.peak() as p:`")):
        _ = p.allocated
    assert repr(p) == "<Peak of cuda:0, not measured yet>"
    with p, pytest.raises(WrongState, match=re.escape("measured already: call peak() for a new one")), p:
        pass
    assert repr(p) == "<Peak of cuda:0: 0 B in 0 B>"


def test_dropped_peak_ends_its_meter(device):
    p = peak(device)
    p.__enter__()
    meter, allocator = p._meter, p._allocator
    del p
    with pytest.raises(IndexError):
        allocator.meter(meter)


def test_interrupted_exit_ends_the_meter_once(device, monkeypatch):
    """KeyboardInterrupt arrives after the meter has ended and before its value is stored."""
    unraised = []
    monkeypatch.setattr("sys.unraisablehook", unraised.append)
    p = peak(device)
    p.__enter__()
    p._allocator.meter(p._meter, end=True)
    del p
    assert unraised == []


def test_peak_can_be_read_after_emulation_stopped():
    with forebay.emulate("cuda"):
        p = peak("cuda")
        p.__enter__()
        use(MIB)
    p.__exit__(None, None, None)
    assert p.allocated == MIB


def test_cuda_memory_peak_measures_the_given_device(device):
    with cuda.memory.peak(1) as p:
        use(MIB, "cuda:1")
    assert (p.device, p.allocated) == (forebay.device("cuda:1"), MIB)


def test_unknown_meter_raises_index_error():
    with pytest.raises(IndexError):
        Pool().meter(1)
