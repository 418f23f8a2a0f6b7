"""Scenarios of reusing or releasing cached buffers. A scenario gets a function that creates a device."""

from __future__ import annotations

from support.heap_description import MIB, allocated_mib, cached_ages, heaps_of, reserved_mib


def freed_buffer_is_cached_in_place(make):
    device = make()
    device.free(device.allocate(5 * MIB))
    assert heaps_of(device) == ["32 = 5 cached + 27 gap"]
    assert (allocated_mib(device), reserved_mib(device)) == (0, 32)
    device.allocate(5 * MIB)
    assert heaps_of(device) == ["32 = 5 live + 27 gap"]


def smallest_fitting_buffer_is_reused_unsplit(make):
    device = make()
    for buffer in [device.allocate(n * MIB) for n in (3, 5, 4)]:
        device.free(buffer)
    device.allocate(3 * MIB + 1)
    assert heaps_of(device) == ["32 = 3 cached + 5 cached + 4 live + 20 gap"]
    assert allocated_mib(device) == 4  # 1 MiB less 256 bytes are unused


def buffer_of_the_oldest_heap_is_reused_if_sizes_are_equal(make):
    device = make()
    buffers = [device.allocate(9 * MIB) for _ in range(4)]  # three in a heap, one in the next
    for buffer in reversed(buffers):
        device.free(buffer)
    device.allocate(9 * MIB)
    assert heaps_of(device) == ["32 = 9 live + 9 cached + 9 cached + 5 gap", "32 = 9 cached + 23 gap"]


def cached_buffer_is_preferred_to_a_gap(make):
    device = make()
    device.free(device.allocate(9 * MIB))
    device.allocate(2 * MIB)
    assert heaps_of(device) == ["32 = 9 live + 23 gap"]
    assert allocated_mib(device) == 9


def buffer_32_mib_larger_than_the_request_is_reused(make):
    device = make()
    device.free(device.allocate(42 * MIB))
    device.allocate(10 * MIB)
    assert heaps_of(device) == ["1024 = 42 live + 982 gap"]


def oversize_buffer_is_kept_if_a_heap_has_a_gap(make):
    device = make()
    device.free(device.allocate(42 * MIB + 256))
    device.allocate(10 * MIB)
    assert heaps_of(device, unit=256) == ["4194304 = 172033 cached + 40960 live + 3981311 gap"]


def gap_of_exactly_the_requested_size_is_used(make):
    device = make()
    big = device.allocate(500 * MIB)
    device.allocate(424 * MIB)
    device.free(big)
    device.allocate(100 * MIB)
    assert heaps_of(device) == ["1024 = 500 cached + 424 live + 100 live"]


def idle_oversize_buffer_is_released_for_the_request(make):
    device = make()
    device.free(device.allocate(512 * MIB))  # fills a dedicated heap
    device.allocate(100 * MIB)
    assert heaps_of(device) == ["512 = 100 live + 412 gap"]
    assert device.statistics()["segment.allocated"] == 1  # the same heap


def releasing_an_oversize_buffer_avoids_garbage_collection(make):
    # The low watermark is 1000: 512 + 600 are above it, so there is memory pressure, and 1112 cached > 100.
    device = make(recommended=1000 * MIB, low=1.0, high=2.0)
    for buffer in (device.allocate(512 * MIB), device.allocate(600 * MIB)):
        device.free(buffer)
    device.allocate(100 * MIB)
    assert heaps_of(device) == ["512 = 100 live + 412 gap", "600 = 600 cached"]


def busy_oversize_buffer_is_reused(make):
    device = make()
    device.work(0)
    device.free(device.allocate(512 * MIB))
    device.allocate(100 * MIB)
    assert heaps_of(device) == ["512 = 512 live"]
    assert allocated_mib(device) == 512


def busy_oversize_buffer_is_released_under_memory_pressure(make):
    device = make(recommended=512 * MIB, low=1.0)
    device.work(0)
    device.free(device.allocate(512 * MIB))  # now the low watermark is reached
    device.allocate(100 * MIB)
    assert heaps_of(device) == ["512 = 100 live + 412 gap"]  # the heap of a busy queue is not released
    assert allocated_mib(device) == 100


def work_of_another_queue_does_not_make_a_buffer_busy(make):
    device = make()
    device.work(1)
    device.free(device.allocate(512 * MIB))
    device.allocate(100 * MIB)
    assert heaps_of(device) == ["512 = 100 live + 412 gap"]


def scalar_is_free_when_its_queue_reaches_the_tick_of_the_free(make):
    device = make()
    device.work(0)
    device.free(device.allocate(8, usage="scalar"))
    device.allocate(8, usage="scalar")
    assert heaps_of(device, "scalar", unit=256) == ["32768 = 1 waiting + 1 live + 32766 gap"]
    device.finish(0)
    device.allocate(8, usage="scalar")
    assert heaps_of(device, "scalar", unit=256) == ["32768 = 1 live + 1 live + 32766 gap"]


def scalar_of_an_idle_queue_is_free_immediately(make):
    device = make()
    device.work(1)
    device.free(device.allocate(8, usage="scalar"))
    device.allocate(8, usage="scalar")
    assert heaps_of(device, "scalar", unit=256) == ["32768 = 1 live + 32767 gap"]


def scalar_used_by_another_queue_also_waits_for_its_own(make):
    device = make()
    device.work(0)
    device.work(1)
    scalar = device.allocate(8, usage="scalar")
    device.use(scalar, 1)
    device.free(scalar)
    for queue, state in ((1, "waiting"), (0, "cached")):
        device.finish(queue)
        device.process_pending_frees()
        assert heaps_of(device, "scalar", unit=256) == [f"32768 = 1 {state} + 32767 gap"]


def non_scalar_buffer_does_not_wait_for_its_own_queue(make):
    device = make()
    device.work(0)
    device.free(device.allocate(8))
    device.allocate(8)
    assert heaps_of(device, "shared small", unit=256) == ["32768 = 1 live + 32767 gap"]


def buffer_waits_for_other_queues_that_use_it(make):
    device = make()
    device.work(1)
    buffer = device.allocate(5 * MIB)
    device.use(buffer, 1)
    device.free(buffer)
    device.allocate(5 * MIB)
    assert heaps_of(device) == ["32 = 5 waiting + 5 live + 22 gap"]
    assert allocated_mib(device) == 5
    device.finish(1)
    device.process_pending_frees()
    assert heaps_of(device) == ["32 = 5 cached + 5 live + 22 gap"]


def work_queued_after_the_free_is_not_waited_for(make):
    device = make()
    device.work(1)
    buffer = device.allocate(5 * MIB)
    device.use(buffer, 1)
    device.free(buffer)
    device.finish(1)
    device.work(1)
    device.process_pending_frees()
    assert heaps_of(device) == ["32 = 5 cached + 27 gap"]


def cached_buffers_age_with_each_large_request(make):
    device = make()
    first, second = device.allocate(3 * MIB), device.allocate(12 * MIB)
    device.free(first)
    device.allocate(20 * MIB)
    device.free(second)
    device.allocate(20 * MIB)
    assert cached_ages(device) == [(3, 2), (12, 1)]
    device.free(device.allocate(3 * MIB))  # reused, so its age is 0 again; the age of the other is 2
    assert cached_ages(device) == [(3, 0), (12, 2)]


def requests_of_other_pools_do_not_age_buffers(make):
    device = make()
    device.free(device.allocate(3 * MIB))
    device.free(device.allocate(500))
    device.allocate(300, usage="private")
    device.allocate(20 * MIB, usage="private")
    device.allocate(MIB, usage="shared")
    assert cached_ages(device) == [(3, 0)]
    assert cached_ages(device, "shared small") == [(0, 0)]


def requests_of_other_queues_age_buffers(make):
    device = make()
    device.free(device.allocate(3 * MIB))
    device.allocate(3 * MIB, 1)  # though another queue cannot use the buffer
    assert cached_ages(device) == [(3, 1)]


def buffers_do_not_age_without_a_low_watermark(make):
    device = make(low=0.0)
    device.free(device.allocate(3 * MIB))
    device.allocate(20 * MIB)
    assert cached_ages(device) == [(3, 0)]
