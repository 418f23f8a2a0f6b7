"""Peaks of a part of a program: nested, in threads, with resets and errors in between."""

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


def test_what_was_there_most(device):
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


def test_they_nest_and_know_nothing_of_each_other(device):
    with peak(device) as outer:
        use(8 * MIB)
        with peak(device) as inner:
            use(2 * MIB)
            with peak(device) as innermost:
                pass
        use(4 * MIB)
    assert [p.allocated for p in (outer, inner, innermost)] == [8 * MIB, 2 * MIB, 0]


def test_they_end_in_any_order(device):
    first, second = peak(device), peak(device)
    first.__enter__()
    use(MIB)
    second.__enter__()
    use(3 * MIB)
    first.__exit__(None, None, None)
    use(5 * MIB)
    second.__exit__(None, None, None)
    assert (first.allocated, second.allocated) == (3 * MIB, 5 * MIB)


def test_resets_and_they_do_not_disturb_each_other(device):
    use(8 * MIB)
    with peak(device) as p:
        use(4 * MIB)
        assert forebay.memory.max_memory_allocated(device) == 8 * MIB
        forebay.memory.reset_peak_memory_stats(device)
        use(MIB)
        assert forebay.memory.max_memory_allocated(device) == MIB
    assert p.allocated == 4 * MIB
    assert forebay.memory.max_memory_allocated(device) == MIB


def test_an_error_ends_them(device):
    with pytest.raises(forebay.OutOfMemory), peak(device) as p:
        [use(size) for size in (2 * MIB, 100 * MIB)]
    use(8 * MIB)
    assert p.allocated == 2 * MIB


def test_other_devices_do_not_count(device):
    with peak(device) as p:
        use(2 * MIB, "cuda:1")
    assert (p.allocated, p.reserved) == (0, 0)


def test_all_threads_count(device, eight_threads):
    held = []
    with peak(device) as p:
        eight_threads(lambda _: held.append(forebay.empty(MIB, dtype="uint8", device=device)))
    assert p.allocated == 8 * MIB


def test_each_thread_has_its_own(device, eight_threads):
    def work(_):
        for _ in range(50):
            with peak(device) as p:
                use(MIB)
            assert MIB <= p.allocated <= 8 * MIB

    eight_threads(work)


def test_growing_segments_count(device):
    forebay.memory.set_allocator_settings("expandable_segments:True")
    try:
        with peak(device) as p:
            use(3 * MIB)
    finally:
        forebay.memory.set_allocator_settings("expandable_segments:False")
    assert p.reserved == 20 * MIB


def test_it_is_used_once(device):
    p = peak(device)
    with pytest.raises(WrongState, match=re.escape("nothing was measured yet: with forebay.memory.peak() as p")):
        _ = p.allocated
    assert repr(p) == "<Peak of cuda:0, not measured yet>"
    with p, pytest.raises(WrongState, match=re.escape("measured once: call peak() for another")), p:
        pass
    assert repr(p) == "<Peak of cuda:0: 0 B in 0 B>"


def test_one_that_is_dropped_is_forgotten(device):
    p = peak(device)
    p.__enter__()
    number, pool = p._number, p._pool
    del p
    with pytest.raises(IndexError):
        pool.meter(number)


def test_it_outlives_its_emulation():
    with forebay.emulate("cuda"):
        p = peak("cuda")
        p.__enter__()
        use(MIB)
    p.__exit__(None, None, None)
    assert p.allocated == MIB


def test_cudas_name(device):
    with cuda.memory.peak(1) as p:
        use(MIB, "cuda:1")
    assert (p.device, p.allocated) == (forebay.Device("cuda:1"), MIB)


def test_a_meter_that_is_none():
    with pytest.raises(IndexError):
        Pool().meter(1)
