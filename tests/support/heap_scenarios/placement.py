"""Scenarios of heap choice and placement within a heap. A scenario gets a function that creates a device.

All numbers were computed by hand from the rules of PyTorch's MPS allocator: a new heap has 8 MiB for buffers of up to
1 MiB, 32 MiB for those below 10 MiB, 1024 MiB for those below 512 MiB, and else the buffer's size, rounded up to 2 MiB.
"""

from __future__ import annotations

from forebay.errors import ForebayError
from support.heap_description import MIB, allocated_mib, error_line, heaps_of, reserved_mib


def small_buffers_share_a_heap_of_8_mib(make):
    device = make()
    for nbytes in (9, 256, 257):  # 256, 256 and 512 bytes
        device.allocate(nbytes)
    assert heaps_of(device, "shared small", unit=256) == ["32768 = 1 live + 1 live + 2 live + 32764 gap"]
    assert device.statistics()["allocated_bytes.current"] == 1024
    assert reserved_mib(device) == 8


def sizes_are_rounded_to_the_alignment(make):
    device = make(alignment=16384)
    device.allocate(9)
    device.allocate(16385)
    assert heaps_of(device, "shared small", unit=16384) == ["512 = 1 live + 2 live + 509 gap"]


def heap_size_depends_on_the_buffer_size(make):
    heap_of = {
        MIB: 8,
        MIB + 1: 32,
        10 * MIB - 256: 32,
        10 * MIB - 1: 1024,  # rounded up to 10 MiB first
        10 * MIB: 1024,
        512 * MIB - 256: 1024,
        512 * MIB - 1: 512,
        512 * MIB: 512,
        512 * MIB + 1: 514,
        700 * MIB + 256: 702,
        3072 * MIB: 3072,  # larger than the heaps of 1 GiB
    }
    for nbytes, size in heap_of.items():
        device = make()
        device.allocate(nbytes)
        assert reserved_mib(device) == size, nbytes


def small_pool_is_chosen_by_the_rounded_size(make):
    device = make()
    device.allocate(MIB - 1)  # rounded up to 1 MiB
    device.allocate(MIB + 1)  # rounded up to 1 MiB and 256 bytes
    assert heaps_of(device, "shared small") == ["8 = 1 live + 7 gap"]
    assert heaps_of(device, unit=256) == ["131072 = 4097 live + 126975 gap"]


def fullest_heap_with_a_gap_is_used(make):
    device = make()
    device.allocate(5 * MIB)  # a heap of 32 with 27 left
    device.allocate(30 * MIB)  # a heap of 1024 with 994 left
    device.allocate(4 * MIB)  # into the 27, not into the 994
    device.allocate(25 * MIB)  # does not fit into the remaining 23
    device.allocate(23 * MIB)  # fills the 23
    device.allocate(2 * MIB)
    assert heaps_of(device) == ["32 = 5 live + 4 live + 23 live", "1024 = 30 live + 25 live + 2 live + 967 gap"]


def fullest_heap_is_used_even_if_it_is_newer(make):
    device = make()
    buffers = [device.allocate(7 * MIB) for _ in range(6)]  # four in a heap of 32; two in the next, with 18 left
    for buffer in buffers[:3]:
        device.free(buffer)
    device.empty()
    device.allocate(9 * MIB)
    assert heaps_of(device) == ["32 = 21 gap + 7 live + 4 gap", "32 = 7 live + 7 live + 9 live + 9 gap"]


def older_heap_is_used_if_gaps_are_equal(make):
    device = make()
    for _ in range(6):
        device.allocate(9 * MIB)  # three per heap: 27, with 5 left
    device.allocate(5 * MIB)
    assert heaps_of(device) == ["32 = 9 live + 9 live + 9 live + 5 live", "32 = 9 live + 9 live + 9 live + 5 gap"]


def gap_in_a_large_heap_is_used_before_a_new_heap(make):
    device = make()
    device.allocate(20 * MIB)
    device.allocate(5 * MIB)  # into the gap; no heap of 32 is reserved
    device.allocate(600 * MIB)  # nor a dedicated heap
    assert heaps_of(device) == ["1024 = 20 live + 5 live + 600 live + 399 gap"]


def smallest_fitting_gap_of_a_heap_is_used(make):
    device = make(low=0.0)
    buffers = [device.allocate(n * MIB) for n in (9, 9, 9, 5)]  # fill a heap of 32
    device.free(buffers[1])
    device.free(buffers[3])
    device.refusals = 1
    # No cached buffer has 10 and the device refuses a heap: the largest are released, 9 + 5 = 14. No gap has 10.
    device.allocate(10 * MIB)
    assert heaps_of(device) == ["32 = 9 live + 9 gap + 9 live + 5 gap", "1024 = 10 live + 1014 gap"]
    device.allocate(4 * MIB)
    assert heaps_of(device)[0] == "32 = 9 live + 9 gap + 9 live + 4 live + 1 gap"
    device.allocate(9 * MIB)
    assert heaps_of(device)[0] == "32 = 9 live + 9 live + 9 live + 4 live + 1 gap"


def adjacent_gaps_are_merged(make):
    device = make(low=0.0)
    buffers = [device.allocate(9 * MIB) for _ in range(3)]  # and a gap of 5
    device.free(buffers[0])
    device.free(buffers[1])
    device.refusals = 1
    device.allocate(18 * MIB)  # both nines are released, and their gaps are merged
    assert heaps_of(device) == ["32 = 18 live + 9 live + 5 gap"]


def each_queue_has_its_own_pools(make):
    device = make()
    device.free(device.allocate(5 * MIB, 0))
    device.allocate(5 * MIB, 1)
    assert heaps_of(device, queue=0) == ["32 = 5 cached + 27 gap"]
    assert heaps_of(device, queue=1) == ["32 = 5 live + 27 gap"]


def shared_private_and_scalar_buffers_use_separate_heaps(make):
    device = make()
    for usage in (None, "shared", "private", "scalar"):
        device.allocate(512, usage=usage)
    device.allocate(5 * MIB, usage="private")
    assert {pool: heaps_of(device, pool, unit=256) for _, pool in device.layout()} == {
        "shared small": ["32768 = 2 live + 2 live + 32764 gap"],  # shared is the default with unified memory
        "private small": ["32768 = 2 live + 32766 gap"],
        "scalar": ["32768 = 2 live + 32766 gap"],
        "private large": ["131072 = 20480 live + 110592 gap"],
    }


def discrete_device_defaults_to_private_memory(make):
    device = make(unified=False)
    device.allocate(512)
    assert list(device.layout()) == [(0, "private small")]


def eight_bytes_are_shared_with_unified_memory(make):
    unified, discrete = make(), make(unified=False)
    for device in (unified, discrete):
        device.allocate(8, usage="private")
        device.allocate(9, usage="private")
    assert heaps_of(unified, "shared small", unit=256) == ["32768 = 1 live + 32767 gap"]
    assert heaps_of(unified, "private small", unit=256) == ["32768 = 1 live + 32767 gap"]
    assert heaps_of(discrete, "private small", unit=256) == ["32768 = 1 live + 1 live + 32766 gap"]


def eight_bytes_of_a_scalar_use_the_scalar_pool(make):
    device = make()
    device.allocate(8, usage="scalar")
    assert list(device.layout()) == [(0, "scalar")]


def scalar_of_more_than_1_mib_is_rejected(make):
    device = make()
    device.allocate(MIB, usage="scalar")
    assert heaps_of(device, "scalar") == ["8 = 1 live + 7 gap"]
    assert error_line(ValueError, lambda: device.allocate(MIB + 1, usage="scalar"))


def request_of_the_maximum_buffer_size_is_rejected(make):
    device = make(longest=100 * MIB)
    assert error_line(ForebayError, lambda: device.allocate(100 * MIB)) == "Invalid buffer size: 100.00 MB"
    assert device.layout() == {}
    device.allocate(100 * MIB - 1)  # the size before rounding counts
    assert allocated_mib(device) == 100
