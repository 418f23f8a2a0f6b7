"""What is done when there is no buffer and no room: garbage, callbacks, giving back. All numbers by hand, in MiB."""

from __future__ import annotations

from support.heap_drawing import MIB, ages, allocated, drawn, refused, reserved


def under_pressure_a_heap_is_no_larger_than_its_buffer(make):
    # The low watermark is 100. With 99 used 1 MiB is left; with one byte more it is 0 whole ones, and that is pressure.
    for others, size in ((99 * MIB, 1024), (99 * MIB + 1, 20)):
        device = make(recommended=100 * MIB, low=1.0, high=0.0)
        device.others = others
        device.allocate(20 * MIB)
        assert reserved(device) == size


def smaller_heaps_stay_as_they_are_under_pressure(make):
    device = make(recommended=100 * MIB, low=1.0, high=0.0)
    device.others = 100 * MIB
    device.allocate(MIB)
    device.allocate(2 * MIB)
    device.allocate(11 * MIB)  # there is room
    assert drawn(device, "shared small") == ["8 = 1 live + 7 room"]
    assert drawn(device) == ["32 = 2 live + 11 live + 19 room"]


def small_buffers_are_no_garbage(make):
    device = make(recommended=100 * MIB, low=1.0, high=0.0)
    device.others = 100 * MIB  # memory is short
    for buffer in [device.allocate(MIB // 2) for _ in range(16)]:
        device.free(buffer)
    device.allocate(MIB)
    first, second = drawn(device, "shared small")
    assert first.count("cached") == 16
    assert second == "8 = 1 live + 7 room"


def the_oldest_garbage_goes_first(make):
    device = make(recommended=1700 * MIB, low=1.0, high=2.0)
    first, second = device.allocate(512 * MIB), device.allocate(514 * MIB)
    device.allocate(516 * MIB)
    device.free(first)
    device.allocate(600 * MIB)  # 1542 + 600 = 2142; `first` is 1
    device.free(second)
    assert ages(device) == [(512, 1), (514, 0)]
    # Pressure: 2142 > 1700, and 1026 cached >= 602. Ages 2 and 1, on average 1.5: `first` goes, and 512 >= 2142 - 1700.
    device.allocate(602 * MIB)
    assert ages(device) == [(514, 1)]
    assert reserved(device) == 2142 - 512 + 602


def younger_garbage_goes_when_the_oldest_is_not_enough(make):
    device = make(recommended=1600 * MIB, low=1.0, high=2.0)
    first, second = device.allocate(512 * MIB), device.allocate(514 * MIB)
    device.allocate(516 * MIB)
    device.free(first)
    device.allocate(600 * MIB)
    device.free(second)
    # As before, but 2142 - 1600 = 542 are wanted: of what is left, the average is `second`'s own age.
    device.allocate(602 * MIB)
    assert ages(device) == []
    assert reserved(device) == 2142 - 512 - 514 + 602


def garbage_of_equal_age_goes_until_it_is_enough(make):
    device = make(recommended=1100 * MIB, low=1.0, high=2.0)
    for buffer in [device.allocate(n * MIB) for n in (520, 512, 540)]:
        device.free(buffer)
    # 1572 - 1100 = 472 are wanted; all three are 1 and so is the average. The smallest is looked at first, and enough.
    device.allocate(600 * MIB)
    assert ages(device) == [(520, 1), (540, 1)]
    assert reserved(device) == 1572 - 512 + 600


def no_garbage_is_collected_while_its_queue_works(make):
    device = make(recommended=1100 * MIB, low=1.0, high=2.0)
    for buffer in [device.allocate(n * MIB) for n in (520, 512, 540)]:
        device.free(buffer)
    device.work(0)
    device.allocate(600 * MIB)
    assert ages(device) == [(520, 1), (512, 1), (540, 1)]
    assert reserved(device) == 1572 + 600


def no_garbage_is_collected_where_it_is_no_more_than_wanted(make):
    device = make(recommended=1000 * MIB, low=1.0, high=0.0)
    for buffer in [device.allocate(n * MIB) for n in (512, 514)]:
        device.free(buffer)
    device.allocate(1026 * MIB)  # 512 + 514
    assert ages(device) == [(512, 1), (514, 1)]
    device.free(device.allocate(1200 * MIB))  # 1026 < 1200
    assert ages(device) == [(512, 2), (514, 2), (1200, 0)]


def the_garbage_of_all_idle_queues_is_collected(make):
    device = make(recommended=1000 * MIB, low=1.0, high=0.0)
    for queue in (0, 1, 2):
        device.free(device.allocate((520 + queue) * MIB, queue))
    device.work(1)
    # 1563 - 1000 = 563 are wanted. The idle ones are 3 and 1 old, on average 2: 520 go, and then 522.
    device.allocate(600 * MIB, 3)
    assert [ages(device, queue=queue) for queue in (0, 1, 2)] == [[], [(521, 2)], []]


def no_garbage_is_collected_below_the_low_watermark(make):
    for others in (476 * MIB - 1, 476 * MIB):  # 1024 are in heaps: it is 1 byte below, and there
        device = make(recommended=1500 * MIB, low=1.0, high=0.0)
        for buffer in (device.allocate(512 * MIB), device.allocate(512 * MIB)):
            device.free(buffer)
        device.others = others
        device.allocate(600 * MIB)
        assert ages(device) == [(512, 1), (512, 1)]


def a_heap_with_live_buffers_survives_the_garbage(make):
    device = make(recommended=1000 * MIB, low=1.0, high=0.0)
    device.allocate(300 * MIB)
    garbage = device.allocate(700 * MIB), device.allocate(520 * MIB)  # beside the 300, and in a heap of its own
    for buffer in garbage:
        device.free(buffer)
    # 1024 + 520 - 1000 = 544 are wanted: 520 and then 700 go, with one heap. In the other are 724 of room now.
    device.allocate(710 * MIB)
    assert drawn(device) == ["1024 = 300 live + 710 live + 14 room"]


def a_heap_for_several_stays_when_the_garbage_leaves_it_empty(make):
    device = make(recommended=1000 * MIB, low=1.0, high=0.0)
    garbage = device.allocate(300 * MIB), device.allocate(310 * MIB)  # in one heap of 1024
    device.allocate(730 * MIB)  # it has 414 left
    for buffer in garbage:
        device.free(buffer)
    device.allocate(600 * MIB)  # 1754 - 1000 = 754 are wanted: both go
    assert drawn(device) == ["1024 = 600 live + 424 room", "730 = 730 live"]


def callbacks_are_asked_when_no_heap_comes(make):
    device = make(low=0.0)
    kept = device.allocate(20 * MIB)
    device.allocate(1004 * MIB)  # the heap is full
    asked = []

    def let_go():
        asked.append("first")
        device.free(kept)
        return True

    device.callbacks += [let_go, lambda: asked.append("second") or False]
    device.refusals = 1
    device.allocate(15 * MIB)
    assert asked == ["first", "second"]  # all of them, though one was enough
    assert drawn(device) == ["1024 = 20 live + 1004 live"]


def whatever_callbacks_say_the_cache_is_searched_once_more(make):
    for callbacks in ([], [lambda: False], [lambda: True]):
        device = make()
        garbage = [device.allocate(n * MIB) for n in (20, 30, 3)]
        device.allocate(971 * MIB)  # the heap is full
        for buffer in garbage:
            device.free(buffer)
        device.callbacks += callbacks
        device.refusals = 1
        device.allocate(31 * MIB)  # no heap comes; 30 and 20 go, and 3 has been passed by twice
        assert drawn(device) == ["1024 = 31 live + 19 room + 3 cached + 971 live"]
        assert ages(device) == [(3, 2)]


def nobody_is_asked_where_there_is_memory(make):
    device = make()
    asked = []
    device.callbacks.append(lambda: asked.append(1) or True)
    device.allocate(15 * MIB)
    device.free(device.allocate(700 * MIB))
    device.allocate(700 * MIB)
    assert asked == []


def a_cached_buffer_that_is_long_enough_goes_first(make):
    # High watermark 1100. 520 + 560 are reserved: 521 more would be too much, be they cached or new.
    device = make(recommended=1100 * MIB, low=0.0, high=1.0)
    for buffer in (device.allocate(520 * MIB), device.allocate(560 * MIB)):
        device.free(buffer)
    device.allocate(521 * MIB)
    assert drawn(device) == ["520 = 520 cached", "522 = 521 live + 1 room"]


def or_the_longest_until_it_is_enough(make):
    device = make(recommended=2000 * MIB, low=0.0, high=1.0)
    for buffer in [device.allocate(n * MIB) for n in (520, 540, 560)]:
        device.free(buffer)
    # 1620 + 600 > 2000. None has 600: 560 and 540 go, which are 1100, and 520 stay.
    device.allocate(600 * MIB)
    assert drawn(device) == ["520 = 520 cached", "600 = 600 live"]


def others_keep_their_cache_while_a_pool_has_enough(make):
    # High watermark 2000: 8 + 520 + 560 and 950 more are too much. Of the pool 1080 >= 950 go, and that is enough;
    # but heaps in which work may be do not go back: then all is waited for, and the cache of all queues is emptied.
    for busy, left in ((False, ["8 = 1 cached + 7 room"]), (True, [])):
        device = make(recommended=2000 * MIB, low=0.0, high=1.0)
        device.free(device.allocate(MIB, 1))
        for buffer in (device.allocate(520 * MIB), device.allocate(560 * MIB)):
            device.free(buffer)
        if busy:
            device.work(0)
        device.allocate(950 * MIB)
        assert drawn(device) == ["950 = 950 live"]
        assert drawn(device, "shared small", 1) == left


def only_buffers_of_the_same_queue_are_given_back(make):
    device = make(recommended=2000 * MIB, low=0.0, high=1.0)
    device.allocate(600 * MIB, 1)
    for buffer in (device.allocate(700 * MIB, 0), device.allocate(520 * MIB, 1)):
        device.free(buffer)
    device.allocate(515 * MIB, 1)  # 1820 + 515 is too much until the 520 went
    assert drawn(device, queue=0) == ["700 = 700 cached"]
    assert drawn(device, queue=1) == ["600 = 600 live", "516 = 515 live + 1 room"]


def a_pool_that_has_too_little_is_not_tried_again(make):
    # High watermark 1100: 8 + 1024 and 80 more are too much. Of the pool 10 go, less than 80, though the heap has more.
    device = make(recommended=1100 * MIB, low=0.0, high=1.0)
    device.free(device.allocate(MIB, 1))
    device.free(device.allocate(10 * MIB))
    device.allocate(80 * MIB)
    assert drawn(device) == ["1024 = 80 live + 944 room"]
    assert drawn(device, "shared small", 1) == []  # so the cache of all was emptied


def what_was_given_back_in_vain_stays_so(make):
    device = make(recommended=1100 * MIB, low=0.0, high=1.0)
    first = device.allocate(520 * MIB)
    device.allocate(560 * MIB)
    device.free(first)
    # 520 go, less than 570. 560 + 570 = 1130 > 1100.
    assert refused(device, 570 * MIB).startswith("MPS backend out of memory (MPS allocated: 560.00 MB,")
    assert drawn(device) == ["560 = 560 live"]


def as_a_last_resort_the_cache_of_all_queues_is_emptied(make):
    device = make(recommended=1100 * MIB, low=0.0, high=1.0)
    device.free(device.allocate(1000 * MIB, 1))
    device.free(device.allocate(MIB, usage="private"))
    device.work(1)
    device.allocate(900 * MIB)  # 1008 + 900 > 1100, and in this pool is nothing to give back
    assert drawn(device, queue=1) == drawn(device, "private small") == []
    assert reserved(device) == 900


def emptying_gives_back_every_heap_without_a_live_buffer(make):
    device = make()
    device.allocate(MIB)
    device.free(device.allocate(2 * MIB, 3))
    for buffer in [device.allocate(n * MIB) for n in (4, 5, 6)][::2]:
        device.free(buffer)
    assert reserved(device) == 8 + 32 + 32
    device.empty()
    assert drawn(device, "shared small") == ["8 = 1 live + 7 room"]
    assert drawn(device) == ["32 = 4 room + 5 live + 23 room"]
    assert reserved(device) == 8 + 32
    assert allocated(device) == 6


def emptying_waits_for_all_work(make):
    device = make()
    device.work(0)
    device.work(1)
    buffer = device.allocate(5 * MIB)
    device.use(buffer, 1)
    device.free(buffer)
    device.free(device.allocate(8, usage="scalar"))
    device.empty()
    assert device.picture() == {}
    device.empty()  # of nothing
    assert device.numbers()["driver"] == 0


def emptying_waits_even_where_nothing_is_cached(make):
    device = make()
    buffer = device.allocate(512 * MIB)
    device.work(0)
    device.empty()
    device.free(buffer)
    device.allocate(100 * MIB)  # the buffer is not busy, so it made room
    assert drawn(device) == ["512 = 100 live + 412 room"]


def a_heap_goes_back_when_its_work_is_done(make):
    device = make(recommended=1100 * MIB, low=0.0, high=1.0)
    first = device.allocate(520 * MIB)
    device.allocate(560 * MIB)
    device.work(0)
    device.free(first)
    # 1080 + 530 is too much. The 520 are room, but work may still be in them: all work is waited for, and they go.
    assert refused(device, 541 * MIB) is not None
    assert drawn(device) == ["560 = 560 live"]
    device.allocate(540 * MIB)
    assert drawn(device) == ["560 = 560 live", "540 = 540 live"]
