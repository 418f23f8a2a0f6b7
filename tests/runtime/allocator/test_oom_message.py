"""Out of memory: a MemoryError that says what was wanted, what there is and who holds it."""

from __future__ import annotations

import contextlib
import copy
import gc
import pickle
import re
import weakref

import numpy as np
import pytest

import forebay
from forebay import DeviceError, OutOfMemory, memory
from forebay.runtime.allocator import oom_message

MIB = 1 << 20


def refused(nbytes=40 * MIB):
    with pytest.raises(OutOfMemory) as caught:
        forebay.empty(nbytes, dtype=forebay.uint8, device="fake:0")
    return caught.value


def test_it_is_what_people_catch(fake):
    kept = forebay.empty(30 * MIB, dtype=forebay.uint8, device="fake:0")
    error = refused()
    assert isinstance(error, MemoryError)
    assert isinstance(error, RuntimeError)
    assert isinstance(error, DeviceError)
    assert (error.wanted, error.free, error.reserved, error.capacity) == (40 * MIB, 34 * MIB, 30 * MIB, 64 * MIB)
    assert (error.device, error.call) == ("fake:0", "reserve")
    assert kept.nbytes == 30 * MIB


def test_the_text_has_the_numbers(fake):
    small = forebay.empty(1000, device="fake:0")
    large = forebay.empty(24 * MIB, dtype=forebay.uint8, device="fake:0")
    hole = forebay.empty(3 * MIB, dtype=forebay.uint8, device="fake:0")
    text = str(refused())
    where = hole.data_ptr() + 3 * MIB
    assert text == (
        "fake out of memory. Tried to allocate 40.00 MiB. fake:0 has a total capacity of 64.00 MiB of which 18.00 MiB "
        "is free. Of the allocated memory 27.00 MiB is allocated by forebay, and 19.00 MiB is reserved by forebay "
        "but unallocated. If reserved but unallocated memory is large try setting "
        "FOREBAY_ALLOC_CONF=expandable_segments:True to avoid fragmentation.  See documentation for Memory Management "
        f" ({oom_message.DOCUMENTATION})\n"
        f"  The largest free piece is 17.00 MiB, at {where:#x}, for stream 0.\n"
        "  17.00 MiB are free in 1 piece too small for 40.00 MiB.\n"
        "  Who holds it is not known: forebay.memory.record_history() before the allocations would tell."
    )
    assert small.nbytes + large.nbytes + hole.nbytes < 46 * MIB


def test_the_text_names_a_segment_much_larger_than_what_was_wanted(fake):
    kept = forebay.empty(50 * MIB, dtype=forebay.uint8, device="fake:0")
    text = str(refused(5 * MIB))
    assert "Tried to allocate 20.00 MiB. " in text  # as PyTorch says it
    assert text.splitlines()[1] == "  5.00 MiB were asked for, for which a segment of 20.00 MiB is needed."
    assert kept.nbytes == 50 * MIB


def test_pieces_of_other_streams_are_told_apart(fake):
    with forebay.Stream("fake:0") as stream:
        theirs = forebay.empty(3 * MIB, dtype=forebay.uint8, device="fake:0")
    largest, mine, *_ = str(refused(60 * MIB)).splitlines()[1:]
    assert largest.startswith("  The largest free piece is 17.00 MiB, at ")
    assert largest.endswith(f", for stream {stream.handle}.")
    assert mine == "  For this size and stream: none."
    assert theirs.nbytes == 3 * MIB


def test_the_three_sites_that_hold_most(fake):
    memory.record_history(device="fake:0")
    kept = []
    for nbytes, times in ((20, 1), (12, 1), (2, 3), (1, 1)):
        source = f"def site_{nbytes}():\n    return forebay.empty({nbytes * MIB}, dtype='u1', device='fake:0')\n"
        space = {"forebay": forebay}
        exec(compile(source, f"/home/me/model_{nbytes}.py", "exec"), space)
        kept += [space[f"site_{nbytes}"]() for _ in range(times)]
    assert [line for line in str(refused(60 * MIB)).splitlines() if "block" in line] == [
        "  20.00 MiB in 1 block: /home/me/model_20.py:2 site_20",
        "  12.00 MiB in 1 block: /home/me/model_12.py:2 site_12",
        "  6.00 MiB in 3 blocks: /home/me/model_2.py:2 site_2",
    ]


def test_who_keeps_idle_segments_from_going(fake):
    memory.record_history(device="fake:0")
    kept, others = [], []
    for _ in range(3):
        kept.append(forebay.empty(2 * MIB, dtype=forebay.uint8, device="fake:0"))
        others.append(forebay.empty(18 * MIB, dtype=forebay.uint8, device="fake:0"))
    others.clear()
    line = test_who_keeps_idle_segments_from_going.__code__.co_firstlineno + 4
    assert str(refused(30 * MIB)).splitlines()[-2:] == [
        "  54.00 MiB lie idle in 3 segments that cannot be released, because of",
        f"    6.00 MiB in 3 blocks: {__file__}:{line} test_who_keeps_idle_segments_from_going",
    ]
    assert len(kept) == 3


def test_what_came_before_the_history(fake):
    kept = forebay.empty(30 * MIB, dtype=forebay.uint8, device="fake:0")
    memory.record_history(device="fake:0")
    assert str(refused()).splitlines()[1:] == [
        "  30.00 MiB in 1 block: of no known origin, as the history was off or took no stacks"
    ]
    assert kept.nbytes == 30 * MIB


def test_without_memory_to_find_out(fake, monkeypatch):
    def poor(_):
        raise MemoryError

    memory.record_history(device="fake:0")
    monkeypatch.setattr(oom_message, "holders", poor)
    assert "not even memory to find out" in str(refused(70 * MIB))


def test_it_travels(fake):
    error = refused(70 * MIB)
    for twin in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert type(twin) is OutOfMemory
        assert str(twin) == str(error)
        assert (twin.wanted, twin.capacity) == (error.wanted, error.capacity)


def test_it_keeps_nothing_of_ours_alive(fake):
    """Somebody may keep the error: our frames hold no tensor, no array and no other error."""
    error = refused(70 * MIB)
    assert error.__context__ is None
    assert error.__cause__ is None
    frames, trace = [], error.__traceback__
    while trace:
        if "/forebay/" in trace.tb_frame.f_code.co_filename:
            frames.append(trace.tb_frame)
        trace = trace.tb_next
    assert frames
    for frame in frames:
        for value in frame.f_locals.values():
            assert not isinstance(value, (forebay.Tensor, forebay.Block, np.ndarray, BaseException)), frame


def test_what_the_failed_call_held_goes_with_the_error(fake):
    source = forebay.empty(30 * MIB, dtype=forebay.uint8, device="fake:0")
    gone = weakref.ref(source)
    with contextlib.suppress(OutOfMemory):
        source.to(dtype=forebay.float64)
    del source
    gc.collect()
    assert gone() is None
    forebay.empty(40 * MIB, dtype=forebay.uint8, device="fake:0")


def test_after_it_everything_goes_on(fake):
    kept = forebay.empty(40 * MIB, dtype=forebay.uint8, device="fake:0")
    for _ in range(3):
        refused()
    del kept
    forebay.empty(40 * MIB, dtype=forebay.uint8, device="fake:0")
    stats = memory.memory_stats("fake:0")
    assert (stats["num_ooms"], stats["num_alloc_retries"]) == (3, 3)


def test_the_host_too(clean):
    total = memory.mem_get_info("host:0")[1]
    with pytest.raises(
        OutOfMemory, match=re.escape(f"has a total capacity of {forebay.byte_sizes.format_bytes(total)}")
    ):
        forebay.allocate(1 << 59, "host:0")
