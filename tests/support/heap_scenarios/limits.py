"""Scenarios of the high watermark and its error texts. All numbers were computed by hand, in MiB."""

from __future__ import annotations

from forebay.errors import ForebayError
from support.heap_description import MIB, cached_ages, error_line, heaps_of, oom_line, reserved_mib

LIMITED = (
    "MPS backend out of memory (MPS allocated: {}, other allocations: {}, max allowed: {}). Tried to allocate {} on {}"
    " pool. Use PYTORCH_MPS_HIGH_WATERMARK_RATIO=0.0 to disable upper limit for memory allocations (may cause system"
    " failure)."
)
UNLIMITED = "MPS backend out of memory (MPS allocated: {}, other allocations: {}). Tried to allocate {} on {} pool."


def high_watermark_may_be_reached_but_not_exceeded(make):
    device = make(recommended=600 * MIB, high=1.0, low=0.0)
    assert oom_line(device, 600 * MIB) is None
    device = make(recommended=600 * MIB, high=1.0, low=0.0)
    assert oom_line(device, 600 * MIB + 1) == LIMITED.format("0 bytes", "0 bytes", "600.00 MB", "600.00 MB", "shared")


def limit_counts_the_request_instead_of_its_heap(make):
    device = make(recommended=100 * MIB, high=1.0, low=0.0)
    buffer = device.allocate(60 * MIB)
    assert reserved_mib(device) == 1024  # far above the limit
    expected = LIMITED.format("1024.00 MB", "0 bytes", "100.00 MB", "2.00 MB", "shared")
    assert oom_line(device, 2 * MIB) == expected
    device.free(buffer)
    device.allocate(60 * MIB)  # the cached buffer is not reused: it is released, and a new one is reserved
    assert device.statistics()["segment.allocated"] == 2


def request_above_the_high_watermark_does_not_age_buffers(make):
    device = make(recommended=1100 * MIB, high=1.0, low=1.0)
    for buffer in (device.allocate(520 * MIB), device.allocate(560 * MIB)):
        device.free(buffer)
    device.allocate(521 * MIB)  # 1080 + 521 exceeds the limit until the 560 are released
    assert cached_ages(device) == [(520, 0)]


def memory_of_other_processes_counts_towards_the_limit(make):
    device = make(recommended=100 * MIB, high=1.0, low=0.0)
    device.others = 20 * MIB
    assert oom_line(device, 90 * MIB) == LIMITED.format("0 bytes", "20.00 MB", "100.00 MB", "90.00 MB", "shared")
    device.allocate(MIB)
    assert oom_line(device, 80 * MIB, usage="private") == LIMITED.format(
        "8.00 MB", "20.00 MB", "100.00 MB", "80.00 MB", "private"
    )
    assert oom_line(device, 72 * MIB) is None  # 20 + 8 + 72


def error_of_a_scalar_names_the_shared_pool(make):
    device = make(recommended=2 * MIB, high=1.0, low=0.0, unified=False)
    device.others = 2 * MIB
    assert oom_line(device, 8, usage="scalar") == LIMITED.format("0 bytes", "2.00 MB", "2.00 MB", "256 bytes", "shared")


def error_of_eight_bytes_names_the_pool_that_was_tried(make):
    for unified, pool in ((True, "shared"), (False, "private")):
        device = make(recommended=2 * MIB, high=1.0, low=0.0, unified=unified)
        device.others = 2 * MIB
        expected = LIMITED.format("0 bytes", "2.00 MB", "2.00 MB", "256 bytes", pool)
        assert oom_line(device, 8, usage="private") == expected


def sizes_at_a_unit_boundary_use_the_smaller_unit(make):
    device = make(recommended=4096 * MIB, high=0.5, low=0.0)
    expected = LIMITED.format("0 bytes", "{}", "2.00 GB", "2.00 GB", "shared")
    for others, words in ((1024, "1024 bytes"), (1025, "1.00 KB"), (MIB, "1024.00 KB"), (1024 * MIB, "1024.00 MB")):
        device.others = others
        assert oom_line(device, 2048 * MIB) == expected.format(words)


def without_a_limit_the_device_capacity_decides(make):
    device = make(high=0.0, low=0.0, capacity=1000 * MIB)
    device.allocate(MIB)
    assert oom_line(device, 10 * MIB) == UNLIMITED.format(
        "8.00 MB", "0 bytes", "10.00 MB", "shared"
    )  # needs a heap of 1024
    assert oom_line(device, 992 * MIB) is None  # but 8 + 992 fit
    assert oom_line(device, 9 * MIB) == UNLIMITED.format("1000.00 MB", "0 bytes", "9.00 MB", "shared")


def failed_request_keeps_live_buffers(make):
    device = make(high=0.0, low=0.0, capacity=600 * MIB)
    device.allocate(5 * MIB)
    before = heaps_of(device)
    assert oom_line(device, 600 * MIB) is not None
    assert heaps_of(device) == before == ["32 = 5 live + 27 gap"]
    assert device.statistics()["segment.freed"] == 0


def high_watermark_can_be_changed(make):
    device = make(recommended=100 * MIB, high=1.0, low=1.0)
    device.allocate(MIB)
    device.set_high(0.08)  # 8 MiB, all of which are reserved
    assert oom_line(device, MIB) is not None
    device.set_high(2.0)
    assert oom_line(device, 192 * MIB) is None  # 8 + 192 = 200
    assert oom_line(device, MIB) is not None
    device.set_high(0.0)
    assert oom_line(device, 500 * MIB) is None


def low_watermark_is_kept_when_the_high_one_is_lower(make):
    device = make(recommended=1000 * MIB, high=1.0, low=1.0)
    device.set_high(0.5)
    device.set_high(2.0)
    device.others = 600 * MIB
    device.allocate(20 * MIB)
    assert reserved_mib(device) == 1024  # no memory pressure: the low watermark is still 1000


def invalid_ratios_are_rejected(make):
    device = make(recommended=100 * MIB)
    for ratio, words in ((2.1, "2.1"), (-0.1, "-0.1"), (float("nan"), "nan"), (1e9, "1e+09"), (2.0000001, "2")):
        assert (
            error_line(ForebayError, lambda ratio=ratio: device.set_high(ratio))
            == f"invalid high watermark ratio {words}"
        )
        assert error_line(ForebayError, lambda ratio=ratio: make(high=ratio)) == f"invalid high watermark ratio {words}"
        assert error_line(ForebayError, lambda ratio=ratio: make(low=ratio)) == f"invalid low watermark ratio {words}"
    assert oom_line(device, 160 * MIB) is None  # the previous ratio, 1.7


def low_watermark_above_the_high_one_is_rejected(make):
    assert (
        error_line(ForebayError, lambda: make(high=1.0)) == "invalid low watermark ratio 1.4"
    )  # the default of the low one
    assert error_line(ForebayError, lambda: make(high=0.9, unified=False)) == "invalid low watermark ratio 1"
    assert error_line(ForebayError, lambda: make(high=1.0, low=1.01)) == "invalid low watermark ratio 1.01"
    assert error_line(ForebayError, lambda: make(high=0.0, low=2.01)) == "invalid low watermark ratio 2.01"
    for high, low in ((1.0, 1.0), (0.0, 2.0), (1.4, None), (0.0, None), (2.0, 2.0), (0.3, 0.0)):
        assert error_line(ForebayError, lambda high=high, low=low: make(high=high, low=low)) is None
