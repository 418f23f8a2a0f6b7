"""Which freed buffer is taken again, and when it had better be room. A scenario gets a function that makes a device."""

from __future__ import annotations

from support.heap_drawing import MIB, ages, allocated, drawn, reserved


def a_freed_buffer_stays_where_it_is(make):
    device = make()
    device.free(device.allocate(5 * MIB))
    assert drawn(device) == ["32 = 5 cached + 27 room"]
    assert (allocated(device), reserved(device)) == (0, 32)
    device.allocate(5 * MIB)
    assert drawn(device) == ["32 = 5 live + 27 room"]


def the_smallest_that_is_long_enough_is_taken_whole(make):
    device = make()
    for buffer in [device.allocate(n * MIB) for n in (3, 5, 4)]:
        device.free(buffer)
    device.allocate(3 * MIB + 1)
    assert drawn(device) == ["32 = 3 cached + 5 cached + 4 live + 20 room"]
    assert allocated(device) == 4  # 1 MiB less 256 bytes of it are not used


def of_equal_buffers_that_of_the_oldest_heap_is_taken(make):
    device = make()
    buffers = [device.allocate(9 * MIB) for _ in range(4)]  # three in a heap, one in the next
    for buffer in reversed(buffers):
        device.free(buffer)
    device.allocate(9 * MIB)
    assert drawn(device) == ["32 = 9 live + 9 cached + 9 cached + 5 room", "32 = 9 cached + 23 room"]


def a_buffer_is_taken_though_there_is_room(make):
    device = make()
    device.free(device.allocate(9 * MIB))
    device.allocate(2 * MIB)
    assert drawn(device) == ["32 = 9 live + 23 room"]
    assert allocated(device) == 9


def thirty_two_mebibytes_more_are_not_too_much(make):
    device = make()
    device.free(device.allocate(42 * MIB))
    device.allocate(10 * MIB)
    assert drawn(device) == ["1024 = 42 live + 982 room"]


def a_buffer_much_too_long_stays_where_a_heap_has_room(make):
    device = make()
    device.free(device.allocate(42 * MIB + 256))
    device.allocate(10 * MIB)
    assert drawn(device, unit=256) == ["4194304 = 172033 cached + 40960 live + 3981311 room"]


def room_that_is_just_enough_is_enough(make):
    device = make()
    big = device.allocate(500 * MIB)
    device.allocate(424 * MIB)
    device.free(big)
    device.allocate(100 * MIB)
    assert drawn(device) == ["1024 = 500 cached + 424 live + 100 live"]


def an_idle_buffer_much_too_long_makes_room(make):
    device = make()
    device.free(device.allocate(512 * MIB))  # fills a heap of its own
    device.allocate(100 * MIB)
    assert drawn(device) == ["512 = 100 live + 412 room"]
    assert device.numbers()["segment.allocated"] == 1  # the same heap


def an_idle_buffer_that_made_room_spares_the_others(make):
    # The low watermark is 1000: 512 + 600 are above it, so there is pressure, and 1112 cached is more than 100.
    device = make(recommended=1000 * MIB, low=1.0, high=2.0)
    for buffer in (device.allocate(512 * MIB), device.allocate(600 * MIB)):
        device.free(buffer)
    device.allocate(100 * MIB)
    assert drawn(device) == ["512 = 100 live + 412 room", "600 = 600 cached"]


def a_busy_buffer_much_too_long_is_taken(make):
    device = make()
    device.work(0)
    device.free(device.allocate(512 * MIB))
    device.allocate(100 * MIB)
    assert drawn(device) == ["512 = 512 live"]
    assert allocated(device) == 512


def a_busy_buffer_much_too_long_goes_under_pressure(make):
    device = make(recommended=512 * MIB, low=1.0)
    device.work(0)
    device.free(device.allocate(512 * MIB))  # now the low watermark is reached
    device.allocate(100 * MIB)
    assert drawn(device) == ["512 = 100 live + 412 room"]  # where work is, no heap goes back
    assert allocated(device) == 100


def another_queues_work_does_not_make_a_buffer_busy(make):
    device = make()
    device.work(1)
    device.free(device.allocate(512 * MIB))
    device.allocate(100 * MIB)
    assert drawn(device) == ["512 = 100 live + 412 room"]


def a_scalar_is_free_when_its_queue_has_come_so_far(make):
    device = make()
    device.work(0)
    device.free(device.allocate(8, usage="scalar"))
    device.allocate(8, usage="scalar")
    assert drawn(device, "scalar", unit=256) == ["32768 = 1 waiting + 1 live + 32766 room"]
    device.finish(0)
    device.allocate(8, usage="scalar")
    assert drawn(device, "scalar", unit=256) == ["32768 = 1 live + 1 live + 32766 room"]


def a_scalar_of_an_idle_queue_is_free_at_once(make):
    device = make()
    device.work(1)
    device.free(device.allocate(8, usage="scalar"))
    device.allocate(8, usage="scalar")
    assert drawn(device, "scalar", unit=256) == ["32768 = 1 live + 32767 room"]


def a_scalar_that_others_use_waits_for_its_own_queue_too(make):
    device = make()
    device.work(0)
    device.work(1)
    scalar = device.allocate(8, usage="scalar")
    device.use(scalar, 1)
    device.free(scalar)
    for queue, state in ((1, "waiting"), (0, "cached")):
        device.finish(queue)
        device.settle()
        assert drawn(device, "scalar", unit=256) == [f"32768 = 1 {state} + 32767 room"]


def other_buffers_wait_for_no_work(make):
    device = make()
    device.work(0)
    device.free(device.allocate(8))
    device.allocate(8)
    assert drawn(device, "shared small", unit=256) == ["32768 = 1 live + 32767 room"]


def a_buffer_waits_for_others_that_use_it(make):
    device = make()
    device.work(1)
    buffer = device.allocate(5 * MIB)
    device.use(buffer, 1)
    device.free(buffer)
    device.allocate(5 * MIB)
    assert drawn(device) == ["32 = 5 waiting + 5 live + 22 room"]
    assert allocated(device) == 5
    device.finish(1)
    device.settle()
    assert drawn(device) == ["32 = 5 cached + 5 live + 22 room"]


def what_a_queue_does_later_is_not_waited_for(make):
    device = make()
    device.work(1)
    buffer = device.allocate(5 * MIB)
    device.use(buffer, 1)
    device.free(buffer)
    device.finish(1)
    device.work(1)
    device.settle()
    assert drawn(device) == ["32 = 5 cached + 27 room"]


def cached_buffers_age_with_each_large_request(make):
    device = make()
    first, second = device.allocate(3 * MIB), device.allocate(12 * MIB)
    device.free(first)
    device.allocate(20 * MIB)
    device.free(second)
    device.allocate(20 * MIB)
    assert ages(device) == [(3, 2), (12, 1)]
    device.free(device.allocate(3 * MIB))  # it is taken, and young again; the other one is 2
    assert ages(device) == [(3, 0), (12, 2)]


def neither_small_nor_other_requests_make_them_older(make):
    device = make()
    device.free(device.allocate(3 * MIB))
    device.free(device.allocate(500))
    device.allocate(300, usage="private")
    device.allocate(20 * MIB, usage="private")
    device.allocate(MIB, usage="shared")
    assert ages(device) == [(3, 0)]
    assert ages(device, "shared small") == [(0, 0)]


def requests_of_other_queues_make_them_older(make):
    device = make()
    device.free(device.allocate(3 * MIB))
    device.allocate(3 * MIB, 1)  # though they could not have them
    assert ages(device) == [(3, 1)]


def nothing_ages_without_a_low_watermark(make):
    device = make(low=0.0)
    device.free(device.allocate(3 * MIB))
    device.allocate(20 * MIB)
    assert ages(device) == [(3, 0)]
