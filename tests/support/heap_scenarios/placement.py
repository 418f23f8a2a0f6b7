"""Which heap a buffer comes to, and where it is there. A scenario gets a function that makes a device.

Every number was worked out by hand, from the rules of torch-semantics §4.1: a new heap has 8 MiB for what is at most
1 MiB, 32 for what is below 10, 1024 for what is below 512, and else the size itself, rounded up to 2.
"""

from __future__ import annotations

from forebay.errors import ForebayError
from support.heap_drawing import MIB, allocated, drawn, reserved, said


def small_buffers_share_eight_mebibytes(make):
    device = make()
    for nbytes in (9, 256, 257):  # 256, 256 and 512 bytes
        device.allocate(nbytes)
    assert drawn(device, "shared small", unit=256) == ["32768 = 1 live + 1 live + 2 live + 32764 room"]
    assert device.numbers()["allocated_bytes.current"] == 1024
    assert reserved(device) == 8


def sizes_are_whole_alignments(make):
    device = make(alignment=16384)
    device.allocate(9)
    device.allocate(16385)
    assert drawn(device, "shared small", unit=16384) == ["512 = 1 live + 2 live + 509 room"]


def the_size_decides_how_large_a_heap_is(make):
    heap_of = {
        MIB: 8,
        MIB + 1: 32,
        10 * MIB - 256: 32,
        10 * MIB - 1: 1024,  # it is rounded up to 10 MiB first
        10 * MIB: 1024,
        512 * MIB - 256: 1024,
        512 * MIB - 1: 512,
        512 * MIB: 512,
        512 * MIB + 1: 514,
        700 * MIB + 256: 702,
        3072 * MIB: 3072,  # a 1 GiB heap is nothing to larger ones
    }
    for nbytes, size in heap_of.items():
        device = make()
        device.allocate(nbytes)
        assert reserved(device) == size, nbytes


def what_is_small_goes_by_the_rounded_size(make):
    device = make()
    device.allocate(MIB - 1)  # 1 MiB
    device.allocate(MIB + 1)  # and 256 bytes
    assert drawn(device, "shared small") == ["8 = 1 live + 7 room"]
    assert drawn(device, unit=256) == ["131072 = 4097 live + 126975 room"]


def the_fullest_heap_with_room_is_taken(make):
    device = make()
    device.allocate(5 * MIB)  # a heap of 32 with 27 left
    device.allocate(30 * MIB)  # one of 1024, and 994 left
    device.allocate(4 * MIB)  # into 27, not into 994
    device.allocate(25 * MIB)  # 23 are left there
    device.allocate(23 * MIB)  # which it fills
    device.allocate(2 * MIB)
    assert drawn(device) == ["32 = 5 live + 4 live + 23 live", "1024 = 30 live + 25 live + 2 live + 967 room"]


def the_fullest_heap_is_taken_though_it_came_later(make):
    device = make()
    buffers = [device.allocate(7 * MIB) for _ in range(6)]  # four in a heap of 32, two in the next, where 18 are left
    for buffer in buffers[:3]:
        device.free(buffer)
    device.empty()
    device.allocate(9 * MIB)
    assert drawn(device) == ["32 = 21 room + 7 live + 4 room", "32 = 7 live + 7 live + 9 live + 9 room"]


def of_heaps_with_equal_room_the_older_one_is_taken(make):
    device = make()
    for _ in range(6):
        device.allocate(9 * MIB)  # three to a heap: 27, and 5 left
    device.allocate(5 * MIB)
    assert drawn(device) == ["32 = 9 live + 9 live + 9 live + 5 live", "32 = 9 live + 9 live + 9 live + 5 room"]


def a_large_heap_takes_what_a_smaller_one_would_have(make):
    device = make()
    device.allocate(20 * MIB)
    device.allocate(5 * MIB)  # there is room: no heap of 32 comes
    device.allocate(600 * MIB)  # nor one of its own
    assert drawn(device) == ["1024 = 20 live + 5 live + 600 live + 399 room"]


def the_smallest_room_of_a_heap_is_taken(make):
    device = make(low=0.0)
    buffers = [device.allocate(n * MIB) for n in (9, 9, 9, 5)]  # fill one of 32
    device.free(buffers[1])
    device.free(buffers[3])
    device.refusals = 1
    # Nothing cached has 10, the device refuses a heap: the longest go, 9 + 5 = 14. Rooms of 9 and 5 are none of 10.
    device.allocate(10 * MIB)
    assert drawn(device) == ["32 = 9 live + 9 room + 9 live + 5 room", "1024 = 10 live + 1014 room"]
    device.allocate(4 * MIB)
    assert drawn(device)[0] == "32 = 9 live + 9 room + 9 live + 4 live + 1 room"
    device.allocate(9 * MIB)
    assert drawn(device)[0] == "32 = 9 live + 9 live + 9 live + 4 live + 1 room"


def rooms_side_by_side_are_one(make):
    device = make(low=0.0)
    buffers = [device.allocate(9 * MIB) for _ in range(3)]  # and 5 of room
    device.free(buffers[0])
    device.free(buffers[1])
    device.refusals = 1
    device.allocate(18 * MIB)  # both nines go, and there it is
    assert drawn(device) == ["32 = 18 live + 9 live + 5 room"]


def each_queue_has_pools_of_its_own(make):
    device = make()
    device.free(device.allocate(5 * MIB, 0))
    device.allocate(5 * MIB, 1)
    assert drawn(device, queue=0) == ["32 = 5 cached + 27 room"]
    assert drawn(device, queue=1) == ["32 = 5 live + 27 room"]


def shared_private_and_scalar_buffers_lie_apart(make):
    device = make()
    for usage in (None, "shared", "private", "scalar"):
        device.allocate(512, usage=usage)
    device.allocate(5 * MIB, usage="private")
    assert {pool: drawn(device, pool, unit=256) for _, pool in device.picture()} == {
        "shared small": ["32768 = 2 live + 2 live + 32764 room"],  # what nobody asked otherwise for, as memory is one
        "private small": ["32768 = 2 live + 32766 room"],
        "scalar": ["32768 = 2 live + 32766 room"],
        "private large": ["131072 = 20480 live + 110592 room"],
    }


def a_discrete_device_has_private_memory(make):
    device = make(unified=False)
    device.allocate(512)
    assert list(device.picture()) == [(0, "private small")]


def eight_bytes_are_shared_where_memory_is_one(make):
    unified, discrete = make(), make(unified=False)
    for device in (unified, discrete):
        device.allocate(8, usage="private")
        device.allocate(9, usage="private")
    assert drawn(unified, "shared small", unit=256) == ["32768 = 1 live + 32767 room"]
    assert drawn(unified, "private small", unit=256) == ["32768 = 1 live + 32767 room"]
    assert drawn(discrete, "private small", unit=256) == ["32768 = 1 live + 1 live + 32766 room"]


def eight_bytes_of_a_scalar_stay_with_scalars(make):
    device = make()
    device.allocate(8, usage="scalar")
    assert list(device.picture()) == [(0, "scalar")]


def a_scalar_is_small(make):
    device = make()
    device.allocate(MIB, usage="scalar")
    assert drawn(device, "scalar") == ["8 = 1 live + 7 room"]
    assert said(ValueError, lambda: device.allocate(MIB + 1, usage="scalar"))


def what_reaches_the_longest_buffer_is_refused(make):
    device = make(longest=100 * MIB)
    assert said(ForebayError, lambda: device.allocate(100 * MIB)) == "Invalid buffer size: 100.00 MB"
    assert device.picture() == {}
    device.allocate(100 * MIB - 1)  # before it is rounded up
    assert allocated(device) == 100
