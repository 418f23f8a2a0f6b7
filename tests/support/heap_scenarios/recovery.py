"""Scenarios of the recovery steps: garbage collection, callbacks, releasing the cache.

All numbers were computed by hand, in MiB.
"""

from __future__ import annotations

from support.heap_description import MIB, allocated_mib, cached_ages, heaps_of, oom_line, reserved_mib


def heap_has_the_size_of_its_buffer_under_memory_pressure(make):
    # The low watermark is 100. Less than 1 MiB left is memory pressure: at 99 MiB and 1 byte, but not at 99 MiB.
    for others, size in ((99 * MIB, 1024), (99 * MIB + 1, 20)):
        device = make(recommended=100 * MIB, low=1.0, high=0.0)
        device.others = others
        device.allocate(20 * MIB)
        assert reserved_mib(device) == size


def small_heaps_keep_their_size_under_memory_pressure(make):
    device = make(recommended=100 * MIB, low=1.0, high=0.0)
    device.others = 100 * MIB
    device.allocate(MIB)
    device.allocate(2 * MIB)
    device.allocate(11 * MIB)  # into the gap
    assert heaps_of(device, "shared small") == ["8 = 1 live + 7 gap"]
    assert heaps_of(device) == ["32 = 2 live + 11 live + 19 gap"]


def small_buffers_are_not_garbage_collected(make):
    device = make(recommended=100 * MIB, low=1.0, high=0.0)
    device.others = 100 * MIB  # memory pressure
    for buffer in [device.allocate(MIB // 2) for _ in range(16)]:
        device.free(buffer)
    device.allocate(MIB)
    first, second = heaps_of(device, "shared small")
    assert first.count("cached") == 16
    assert second == "8 = 1 live + 7 gap"


def oldest_buffer_is_collected_first(make):
    device = make(recommended=1700 * MIB, low=1.0, high=2.0)
    first, second = device.allocate(512 * MIB), device.allocate(514 * MIB)
    device.allocate(516 * MIB)
    device.free(first)
    device.allocate(600 * MIB)  # 1542 + 600 = 2142; the age of `first` is 1
    device.free(second)
    assert cached_ages(device) == [(512, 1), (514, 0)]
    # Pressure: 2142 > 1700, and 1026 cached > 602. The average of the ages 2 and 1 is 1.5: `first` is released, and
    # that suffices, as 512 >= 2142 - 1700.
    device.allocate(602 * MIB)
    assert cached_ages(device) == [(514, 1)]
    assert reserved_mib(device) == 2142 - 512 + 602


def younger_buffers_are_collected_if_the_oldest_do_not_suffice(make):
    device = make(recommended=1600 * MIB, low=1.0, high=2.0)
    first, second = device.allocate(512 * MIB), device.allocate(514 * MIB)
    device.allocate(516 * MIB)
    device.free(first)
    device.allocate(600 * MIB)
    device.free(second)
    # As above, but 2142 - 1600 = 542 are needed: then the average age is that of `second`, the only one left.
    device.allocate(602 * MIB)
    assert cached_ages(device) == []
    assert reserved_mib(device) == 2142 - 512 - 514 + 602


def buffers_of_equal_age_are_collected_until_they_suffice(make):
    device = make(recommended=1100 * MIB, low=1.0, high=2.0)
    for buffer in [device.allocate(n * MIB) for n in (520, 512, 540)]:
        device.free(buffer)
    # 1572 - 1100 = 472 are needed. All three ages equal the average; the smallest is released first and suffices.
    device.allocate(600 * MIB)
    assert cached_ages(device) == [(520, 1), (540, 1)]
    assert reserved_mib(device) == 1572 - 512 + 600


def buffers_of_a_busy_queue_are_not_collected(make):
    device = make(recommended=1100 * MIB, low=1.0, high=2.0)
    for buffer in [device.allocate(n * MIB) for n in (520, 512, 540)]:
        device.free(buffer)
    device.work(0)
    device.allocate(600 * MIB)
    assert cached_ages(device) == [(520, 1), (512, 1), (540, 1)]
    assert reserved_mib(device) == 1572 + 600


def buffers_are_not_collected_if_they_do_not_exceed_the_request(make):
    device = make(recommended=1000 * MIB, low=1.0, high=0.0)
    for buffer in [device.allocate(n * MIB) for n in (512, 514)]:
        device.free(buffer)
    device.allocate(1026 * MIB)  # 512 + 514
    assert cached_ages(device) == [(512, 1), (514, 1)]
    device.free(device.allocate(1200 * MIB))  # 1026 < 1200
    assert cached_ages(device) == [(512, 2), (514, 2), (1200, 0)]


def buffers_of_all_idle_queues_are_collected(make):
    device = make(recommended=1000 * MIB, low=1.0, high=0.0)
    for queue in (0, 1, 2):
        device.free(device.allocate((520 + queue) * MIB, queue))
    device.work(1)
    # 1563 - 1000 = 563 are needed. The idle ones have ages 3 and 1, on average 2: 520 are released, then 522.
    device.allocate(600 * MIB, 3)
    assert [cached_ages(device, queue=queue) for queue in (0, 1, 2)] == [[], [(521, 2)], []]


def buffers_are_not_collected_below_the_low_watermark(make):
    for others in (476 * MIB - 1, 476 * MIB):  # with 1024 in heaps: 1 byte below the low watermark, and at it
        device = make(recommended=1500 * MIB, low=1.0, high=0.0)
        for buffer in (device.allocate(512 * MIB), device.allocate(512 * MIB)):
            device.free(buffer)
        device.others = others
        device.allocate(600 * MIB)
        assert cached_ages(device) == [(512, 1), (512, 1)]


def heap_with_live_buffers_is_kept_by_garbage_collection(make):
    device = make(recommended=1000 * MIB, low=1.0, high=0.0)
    device.allocate(300 * MIB)
    garbage = (
        device.allocate(700 * MIB),
        device.allocate(520 * MIB),
    )  # one in the heap of the 300, one in a dedicated heap
    for buffer in garbage:
        device.free(buffer)
    # 1024 + 520 - 1000 = 544 are needed: 520, with its heap, and then 700 are released. The other heap has 724 left.
    device.allocate(710 * MIB)
    assert heaps_of(device) == ["1024 = 300 live + 710 live + 14 gap"]


def common_heap_is_kept_even_if_garbage_collection_empties_it(make):
    device = make(recommended=1000 * MIB, low=1.0, high=0.0)
    garbage = device.allocate(300 * MIB), device.allocate(310 * MIB)  # in one heap of 1024
    device.allocate(730 * MIB)  # the heap has 414 left
    for buffer in garbage:
        device.free(buffer)
    device.allocate(600 * MIB)  # 1754 - 1000 = 754 are needed: both are released
    assert heaps_of(device) == ["1024 = 600 live + 424 gap", "730 = 730 live"]


def callbacks_are_called_if_no_heap_can_be_reserved(make):
    device = make(low=0.0)
    kept = device.allocate(20 * MIB)
    device.allocate(1004 * MIB)  # the heap is full
    called = []

    def free_kept():
        called.append("first")
        device.free(kept)
        return True

    device.callbacks += [free_kept, lambda: called.append("second") or False]
    device.refusals = 1
    device.allocate(15 * MIB)
    assert called == ["first", "second"]  # all of them, though the first freed enough
    assert heaps_of(device) == ["1024 = 20 live + 1004 live"]


def cache_is_searched_again_whatever_callbacks_return(make):
    for callbacks in ([], [lambda: False], [lambda: True]):
        device = make()
        garbage = [device.allocate(n * MIB) for n in (20, 30, 3)]
        device.allocate(971 * MIB)  # the heap is full
        for buffer in garbage:
            device.free(buffer)
        device.callbacks += callbacks
        device.refusals = 1
        device.allocate(31 * MIB)  # no heap is reserved; 30 and 20 are released, and 3 ages twice
        assert heaps_of(device) == ["1024 = 31 live + 19 gap + 3 cached + 971 live"]
        assert cached_ages(device) == [(3, 2)]


def callbacks_are_not_called_if_there_is_memory(make):
    device = make()
    called = []
    device.callbacks.append(lambda: called.append(1) or True)
    device.allocate(15 * MIB)
    device.free(device.allocate(700 * MIB))
    device.allocate(700 * MIB)
    assert called == []


def smallest_fitting_cached_buffer_is_released_first(make):
    # High watermark 1100. 520 + 560 are reserved: 521 more exceed it, whether cached or new.
    device = make(recommended=1100 * MIB, low=0.0, high=1.0)
    for buffer in (device.allocate(520 * MIB), device.allocate(560 * MIB)):
        device.free(buffer)
    device.allocate(521 * MIB)
    assert heaps_of(device) == ["520 = 520 cached", "522 = 521 live + 1 gap"]


def largest_cached_buffers_are_released_if_none_fits(make):
    device = make(recommended=2000 * MIB, low=0.0, high=1.0)
    for buffer in [device.allocate(n * MIB) for n in (520, 540, 560)]:
        device.free(buffer)
    # 1620 + 600 > 2000. None has 600: 560 and 540 are released, together 1100, and 520 is kept.
    device.allocate(600 * MIB)
    assert heaps_of(device) == ["520 = 520 cached", "600 = 600 live"]


def cache_of_other_pools_is_kept_if_one_pool_suffices(make):
    # High watermark 2000: 8 + 520 + 560 + 950 exceed it. Releasing 1080 >= 950 of the pool suffices, but the heaps of a
    # busy queue are not released: then the allocator waits for all work and empties the cache of all queues.
    for busy, left in ((False, ["8 = 1 cached + 7 gap"]), (True, [])):
        device = make(recommended=2000 * MIB, low=0.0, high=1.0)
        device.free(device.allocate(MIB, 1))
        for buffer in (device.allocate(520 * MIB), device.allocate(560 * MIB)):
            device.free(buffer)
        if busy:
            device.work(0)
        device.allocate(950 * MIB)
        assert heaps_of(device) == ["950 = 950 live"]
        assert heaps_of(device, "shared small", 1) == left


def only_buffers_of_the_same_queue_are_released(make):
    device = make(recommended=2000 * MIB, low=0.0, high=1.0)
    device.allocate(600 * MIB, 1)
    for buffer in (device.allocate(700 * MIB, 0), device.allocate(520 * MIB, 1)):
        device.free(buffer)
    device.allocate(515 * MIB, 1)  # 1820 + 515 exceed the limit until the 520 are released
    assert heaps_of(device, queue=0) == ["700 = 700 cached"]
    assert heaps_of(device, queue=1) == ["600 = 600 live", "516 = 515 live + 1 gap"]


def pool_with_too_little_is_not_tried_again(make):
    # High watermark 1100: 8 + 1024 + 80 exceed it. Only 10 < 80 of the pool are released, though its heap has a gap.
    device = make(recommended=1100 * MIB, low=0.0, high=1.0)
    device.free(device.allocate(MIB, 1))
    device.free(device.allocate(10 * MIB))
    device.allocate(80 * MIB)
    assert heaps_of(device) == ["1024 = 80 live + 944 gap"]
    assert heaps_of(device, "shared small", 1) == []  # so the cache of all pools was emptied


def buffers_released_in_vain_are_not_restored(make):
    device = make(recommended=1100 * MIB, low=0.0, high=1.0)
    first = device.allocate(520 * MIB)
    device.allocate(560 * MIB)
    device.free(first)
    # Only 520 < 570 are released. 560 + 570 = 1130 > 1100.
    assert oom_line(device, 570 * MIB).startswith("MPS backend out of memory (MPS allocated: 560.00 MB,")
    assert heaps_of(device) == ["560 = 560 live"]


def cache_of_all_queues_is_emptied_as_a_last_resort(make):
    device = make(recommended=1100 * MIB, low=0.0, high=1.0)
    device.free(device.allocate(1000 * MIB, 1))
    device.free(device.allocate(MIB, usage="private"))
    device.work(1)
    device.allocate(900 * MIB)  # 1008 + 900 > 1100, and this pool has nothing to release
    assert heaps_of(device, queue=1) == heaps_of(device, "private small") == []
    assert reserved_mib(device) == 900


def empty_releases_every_heap_without_a_live_buffer(make):
    device = make()
    device.allocate(MIB)
    device.free(device.allocate(2 * MIB, 3))
    for buffer in [device.allocate(n * MIB) for n in (4, 5, 6)][::2]:
        device.free(buffer)
    assert reserved_mib(device) == 8 + 32 + 32
    device.empty()
    assert heaps_of(device, "shared small") == ["8 = 1 live + 7 gap"]
    assert heaps_of(device) == ["32 = 4 gap + 5 live + 23 gap"]
    assert reserved_mib(device) == 8 + 32
    assert allocated_mib(device) == 6


def empty_waits_for_all_work(make):
    device = make()
    device.work(0)
    device.work(1)
    buffer = device.allocate(5 * MIB)
    device.use(buffer, 1)
    device.free(buffer)
    device.free(device.allocate(8, usage="scalar"))
    device.empty()
    assert device.layout() == {}
    device.empty()  # an empty cache
    assert device.statistics()["driver"] == 0


def empty_waits_even_if_nothing_is_cached(make):
    device = make()
    buffer = device.allocate(512 * MIB)
    device.work(0)
    device.empty()
    device.free(buffer)
    device.allocate(100 * MIB)  # the buffer is idle, so it is released for the request
    assert heaps_of(device) == ["512 = 100 live + 412 gap"]


def heap_is_released_when_its_work_is_done(make):
    device = make(recommended=1100 * MIB, low=0.0, high=1.0)
    first = device.allocate(520 * MIB)
    device.allocate(560 * MIB)
    device.work(0)
    device.free(first)
    # 1080 + 541 exceed the limit. The 520 are released after waiting for all work, as their queue is busy.
    assert oom_line(device, 541 * MIB) is not None
    assert heaps_of(device) == ["560 = 560 live"]
    device.allocate(540 * MIB)
    assert heaps_of(device) == ["560 = 560 live", "540 = 540 live"]
