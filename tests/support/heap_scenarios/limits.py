"""The high watermark, and what is said when it is reached. All numbers by hand, in MiB."""

from __future__ import annotations

from forebay.errors import ForebayError
from support.heap_drawing import MIB, ages, drawn, refused, reserved, said

LIMITED = (
    "MPS backend out of memory (MPS allocated: {}, other allocations: {}, max allowed: {}). Tried to allocate {} on {}"
    " pool. Use PYTORCH_MPS_HIGH_WATERMARK_RATIO=0.0 to disable upper limit for memory allocations (may cause system"
    " failure)."
)
UNLIMITED = "MPS backend out of memory (MPS allocated: {}, other allocations: {}). Tried to allocate {} on {} pool."


def the_high_watermark_may_be_reached_and_not_passed(make):
    device = make(recommended=600 * MIB, high=1.0, low=0.0)
    assert refused(device, 600 * MIB) is None
    device = make(recommended=600 * MIB, high=1.0, low=0.0)
    assert refused(device, 600 * MIB + 1) == LIMITED.format("0 bytes", "0 bytes", "600.00 MB", "600.00 MB", "shared")


def what_counts_is_the_request_and_not_its_heap(make):
    device = make(recommended=100 * MIB, high=1.0, low=0.0)
    buffer = device.allocate(60 * MIB)
    assert reserved(device) == 1024  # far above
    said = LIMITED.format("1024.00 MB", "0 bytes", "100.00 MB", "2.00 MB", "shared")
    assert refused(device, 2 * MIB) == said
    device.free(buffer)
    device.allocate(60 * MIB)  # not even what is cached is taken: it goes, and comes anew
    assert device.numbers()["segment.allocated"] == 2


def nothing_ages_where_the_high_watermark_refuses(make):
    device = make(recommended=1100 * MIB, high=1.0, low=1.0)
    for buffer in (device.allocate(520 * MIB), device.allocate(560 * MIB)):
        device.free(buffer)
    device.allocate(521 * MIB)  # 1080 + 521 is too much until the 560 went
    assert ages(device) == [(520, 0)]


def memory_of_others_counts(make):
    device = make(recommended=100 * MIB, high=1.0, low=0.0)
    device.others = 20 * MIB
    assert refused(device, 90 * MIB) == LIMITED.format("0 bytes", "20.00 MB", "100.00 MB", "90.00 MB", "shared")
    device.allocate(MIB)
    assert refused(device, 80 * MIB, usage="private") == LIMITED.format(
        "8.00 MB", "20.00 MB", "100.00 MB", "80.00 MB", "private"
    )
    assert refused(device, 72 * MIB) is None  # 20 + 8 + 72


def a_scalar_is_said_to_be_shared(make):
    device = make(recommended=2 * MIB, high=1.0, low=0.0, unified=False)
    device.others = 2 * MIB
    assert refused(device, 8, usage="scalar") == LIMITED.format("0 bytes", "2.00 MB", "2.00 MB", "256 bytes", "shared")


def eight_bytes_are_said_to_be_where_they_would_have_been(make):
    for unified, pool in ((True, "shared"), (False, "private")):
        device = make(recommended=2 * MIB, high=1.0, low=0.0, unified=unified)
        device.others = 2 * MIB
        said = LIMITED.format("0 bytes", "2.00 MB", "2.00 MB", "256 bytes", pool)
        assert refused(device, 8, usage="private") == said


def sizes_keep_the_smaller_unit_at_a_border(make):
    device = make(recommended=4096 * MIB, high=0.5, low=0.0)
    said = LIMITED.format("0 bytes", "{}", "2.00 GB", "2.00 GB", "shared")
    for others, words in ((1024, "1024 bytes"), (1025, "1.00 KB"), (MIB, "1024.00 KB"), (1024 * MIB, "1024.00 MB")):
        device.others = others
        assert refused(device, 2048 * MIB) == said.format(words)


def without_a_limit_the_device_says_when_it_is_full(make):
    device = make(high=0.0, low=0.0, capacity=1000 * MIB)
    device.allocate(MIB)
    assert refused(device, 10 * MIB) == UNLIMITED.format("8.00 MB", "0 bytes", "10.00 MB", "shared")  # a heap has 1024
    assert refused(device, 992 * MIB) is None  # but 8 + 992 fit
    assert refused(device, 9 * MIB) == UNLIMITED.format("1000.00 MB", "0 bytes", "9.00 MB", "shared")


def a_refusal_leaves_what_is_live(make):
    device = make(high=0.0, low=0.0, capacity=600 * MIB)
    device.allocate(5 * MIB)
    before = drawn(device)
    assert refused(device, 600 * MIB) is not None
    assert drawn(device) == before == ["32 = 5 live + 27 room"]
    assert device.numbers()["segment.freed"] == 0


def the_high_watermark_can_be_moved(make):
    device = make(recommended=100 * MIB, high=1.0, low=1.0)
    device.allocate(MIB)
    device.set_high(0.08)  # 8 MiB, which is what there is
    assert refused(device, MIB) is not None
    device.set_high(2.0)
    assert refused(device, 192 * MIB) is None  # 8 + 192 = 200
    assert refused(device, MIB) is not None
    device.set_high(0.0)
    assert refused(device, 500 * MIB) is None


def the_low_watermark_stays_when_the_high_one_is_below(make):
    device = make(recommended=1000 * MIB, high=1.0, low=1.0)
    device.set_high(0.5)
    device.set_high(2.0)
    device.others = 600 * MIB
    device.allocate(20 * MIB)
    assert reserved(device) == 1024  # no pressure: the low one is still 1000


def ratios_that_are_none_are_refused(make):
    device = make(recommended=100 * MIB)
    for ratio, words in ((2.1, "2.1"), (-0.1, "-0.1"), (float("nan"), "nan"), (1e9, "1e+09"), (2.0000001, "2")):
        assert said(ForebayError, lambda ratio=ratio: device.set_high(ratio)) == f"invalid high watermark ratio {words}"
        assert said(ForebayError, lambda ratio=ratio: make(high=ratio)) == f"invalid high watermark ratio {words}"
        assert said(ForebayError, lambda ratio=ratio: make(low=ratio)) == f"invalid low watermark ratio {words}"
    assert refused(device, 160 * MIB) is None  # the one of before, 1.7


def the_low_watermark_is_not_above_the_high_one(make):
    assert said(ForebayError, lambda: make(high=1.0)) == "invalid low watermark ratio 1.4"  # its default
    assert said(ForebayError, lambda: make(high=0.9, unified=False)) == "invalid low watermark ratio 1"
    assert said(ForebayError, lambda: make(high=1.0, low=1.01)) == "invalid low watermark ratio 1.01"
    assert said(ForebayError, lambda: make(high=0.0, low=2.01)) == "invalid low watermark ratio 2.01"
    for high, low in ((1.0, 1.0), (0.0, 2.0), (1.4, None), (0.0, None), (2.0, 2.0), (0.3, 0.0)):
        assert said(ForebayError, lambda high=high, low=low: make(high=high, low=low)) is None
