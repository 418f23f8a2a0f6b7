"""Records of allocations: which are alive at the peak."""

from __future__ import annotations

import random

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed", exc_type=ImportError)

from forebay.interop.torch.attribution.records import DeviceUse, Record


def allocate(use, size):
    record = Record(use.number + 1, size, size, 0, None, "", "other", False)
    use.allocated(record, sum(each.size for each in use.live.values()) + size)
    return record


def test_records_at_the_peak_are_those_alive_then():
    use = DeviceUse()
    first, second = allocate(use, 100), allocate(use, 50)
    use.freed.append(first)
    third = allocate(use, 20)
    assert use.peak == 150
    assert [*use.at_peak()] == [first, second]
    fourth = allocate(use, 90)
    assert use.peak == 160
    assert sorted(each.size for each in use.at_peak()) == sorted([second.size, third.size, fourth.size])


def test_every_peak_equals_that_of_a_plain_recount():
    generator = random.Random(3)
    use, live, best, best_total = DeviceUse(), [], [], 0
    for _ in range(3000):
        if live and generator.random() < 0.48:
            use.freed.append(live.pop(generator.randrange(len(live))))
        else:
            live.append(allocate(use, generator.randrange(1, 1000)))
            if sum(each.size for each in live) > best_total:
                best, best_total = [*live], sum(each.size for each in live)
    assert use.peak == best_total
    assert {id(each) for each in use.at_peak()} == {id(each) for each in best}


def test_record_is_freed_once():
    use = DeviceUse()
    record = allocate(use, 10)
    use.freed.append(record)
    use.freed.append(record)
    assert (len(use.live), use.allocations, record.alive) == (0, 1, False)


def test_peak_of_other_memory_has_the_records_alive_then():
    use = DeviceUse()
    first = allocate(use, 100)
    use.reached(180)  # a workspace
    use.freed.append(first)
    second = allocate(use, 170)
    assert (use.peak, [*use.at_peak()]) == (180, [first])
    use.reached(200)
    assert (use.peak, [*use.at_peak()]) == (200, [second])
