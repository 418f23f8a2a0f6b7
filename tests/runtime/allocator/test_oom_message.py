"""OutOfMemory errors: attributes, text, and the call sites that hold the memory."""

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
from forebay.runtime.allocator import oom_explanation, oom_message

MIB = 1 << 20


def oom_error(nbytes=40 * MIB):
    with pytest.raises(OutOfMemory) as caught:
        forebay.empty(nbytes, dtype=forebay.uint8, device="fake:0")
    return caught.value


def test_out_of_memory_is_a_memory_and_runtime_error(fake):
    kept = forebay.empty(30 * MIB, dtype=forebay.uint8, device="fake:0")
    error = oom_error()
    assert isinstance(error, MemoryError)
    assert isinstance(error, RuntimeError)
    assert isinstance(error, DeviceError)
    assert (error.wanted, error.free, error.reserved, error.capacity) == (40 * MIB, 34 * MIB, 30 * MIB, 64 * MIB)
    assert (error.device, error.call) == ("fake:0", "reserve")
    assert kept.nbytes == 30 * MIB


def test_text_contains_the_numbers(fake):
    small = forebay.empty(1000, device="fake:0")
    large = forebay.empty(24 * MIB, dtype=forebay.uint8, device="fake:0")
    hole = forebay.empty(3 * MIB, dtype=forebay.uint8, device="fake:0")
    text = str(oom_error())
    where = hole.data_ptr() + 3 * MIB
    assert text == (
        "fake out of memory. Tried to allocate 40.00 MiB. fake:0 has a total capacity of 64.00 MiB of which 18.00 MiB "
        "is free. Of the allocated memory 27.00 MiB is allocated by forebay, and 19.00 MiB is reserved by forebay "
        "but unallocated. If reserved but unallocated memory is large try setting "
        "FOREBAY_ALLOC_CONF=expandable_segments:True to avoid fragmentation.  See documentation for Memory Management "
        f" ({oom_message.DOCUMENTATION})\n"
        f"  The largest free block is 17.00 MiB, at {where:#x}, for stream 0.\n"
        "  17.00 MiB are free in 1 block too small for 40.00 MiB.\n"
        "  To see which call sites hold it, call forebay.memory.record_history() before allocating."
    )
    assert small.nbytes + large.nbytes + hole.nbytes < 46 * MIB


def test_text_names_a_segment_much_larger_than_the_request(fake):
    kept = forebay.empty(50 * MIB, dtype=forebay.uint8, device="fake:0")
    text = str(oom_error(5 * MIB))
    assert "Tried to allocate 20.00 MiB. " in text  # PyTorch's text
    assert text.splitlines()[1] == "  The request of 5.00 MiB needs a segment of 20.00 MiB."
    assert kept.nbytes == 50 * MIB


def test_text_names_a_segment_slightly_larger_than_the_request(fake):
    kept = forebay.empty(50 * MIB, dtype=forebay.uint8, device="fake:0")
    text = str(oom_error(19 * MIB + MIB // 2))
    assert "Tried to allocate 20.00 MiB. " in text
    assert text.splitlines()[1] == "  The request of 19.50 MiB needs a segment of 20.00 MiB."
    assert kept.nbytes == 50 * MIB


def test_free_blocks_of_other_streams_are_distinguished(fake):
    with forebay.Stream("fake:0") as stream:
        other = forebay.empty(3 * MIB, dtype=forebay.uint8, device="fake:0")
    largest, usable, *_ = str(oom_error(60 * MIB)).splitlines()[1:]
    assert largest.startswith("  The largest free block is 17.00 MiB, at ")
    assert largest.endswith(f", for stream {stream.handle}.")
    assert usable == "  Usable for this size and stream: none."
    assert other.nbytes == 3 * MIB


def test_text_names_the_three_largest_call_sites(fake):
    memory.record_history(device="fake:0")
    kept = []
    for nbytes, times in ((20, 1), (12, 1), (2, 3), (1, 1)):
        source = f"def site_{nbytes}():\n    return forebay.empty({nbytes * MIB}, dtype='u1', device='fake:0')\n"
        space = {"forebay": forebay}
        exec(compile(source, f"/home/me/model_{nbytes}.py", "exec"), space)
        kept += [space[f"site_{nbytes}"]() for _ in range(times)]
    assert [line for line in str(oom_error(60 * MIB)).splitlines() if "/home/me" in line] == [
        "  20.00 MiB in 1 block: /home/me/model_20.py:2 site_20",
        "  12.00 MiB in 1 block: /home/me/model_12.py:2 site_12",
        "  6.00 MiB in 3 blocks: /home/me/model_2.py:2 site_2",
    ]


def test_text_names_call_sites_that_pin_free_segments(fake):
    memory.record_history(device="fake:0")
    kept, others = [], []
    for _ in range(3):
        kept.append(forebay.empty(2 * MIB, dtype=forebay.uint8, device="fake:0"))
        others.append(forebay.empty(18 * MIB, dtype=forebay.uint8, device="fake:0"))
    others.clear()
    line = test_text_names_call_sites_that_pin_free_segments.__code__.co_firstlineno + 4
    assert str(oom_error(30 * MIB)).splitlines()[-2:] == [
        "  54.00 MiB are free in 3 segments that cannot be released because of",
        f"    6.00 MiB in 3 blocks: {__file__}:{line} test_text_names_call_sites_that_pin_free_segments",
    ]
    assert len(kept) == 3


def test_allocation_before_the_history_has_unknown_origin(fake):
    kept = forebay.empty(30 * MIB, dtype=forebay.uint8, device="fake:0")
    memory.record_history(device="fake:0")
    assert str(oom_error()).splitlines()[1:] == [
        "  30.00 MiB in 1 block: unknown origin (the history was off or recorded no stacks)"
    ]
    assert kept.nbytes == 30 * MIB


def test_memory_error_while_finding_call_sites_is_reported(fake, monkeypatch):
    def fail(_):
        raise MemoryError

    memory.record_history(device="fake:0")
    monkeypatch.setattr(oom_explanation, "largest_holders", fail)
    assert "too little memory to find the call sites" in str(oom_error(70 * MIB))


def test_error_can_be_pickled_and_copied(fake):
    error = oom_error(70 * MIB)
    for twin in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert type(twin) is OutOfMemory
        assert str(twin) == str(error)
        assert (twin.wanted, twin.capacity) == (error.wanted, error.capacity)


def test_error_keeps_no_memory_alive(fake):
    """The caller may keep the error, so frames of forebay hold no tensor, no array and no other error."""
    error = oom_error(70 * MIB)
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


def test_memory_of_the_failed_call_is_freed_with_the_error(fake):
    source = forebay.empty(30 * MIB, dtype=forebay.uint8, device="fake:0")
    reference = weakref.ref(source)
    with contextlib.suppress(OutOfMemory):
        source.to(dtype=forebay.float64)
    del source
    gc.collect()
    assert reference() is None
    forebay.empty(40 * MIB, dtype=forebay.uint8, device="fake:0")


def test_allocation_works_after_out_of_memory(fake):
    kept = forebay.empty(40 * MIB, dtype=forebay.uint8, device="fake:0")
    for _ in range(3):
        oom_error()
    del kept
    forebay.empty(40 * MIB, dtype=forebay.uint8, device="fake:0")
    stats = memory.memory_stats("fake:0")
    assert (stats["num_ooms"], stats["num_alloc_retries"]) == (3, 3)


def test_cpu_device_raises_out_of_memory(clean):
    total = memory.mem_get_info("cpu")[1]
    with pytest.raises(
        OutOfMemory, match=re.escape(f"has a total capacity of {forebay._base.byte_sizes.format_bytes(total)}")
    ):
        forebay.allocate(1 << 59, "cpu")


def test_text_of_the_cpu_device_speaks_of_arrays_and_of_the_machine():
    with pytest.raises(OutOfMemory) as caught:
        forebay.empty(1 << 50, dtype=forebay.uint8, device="cpu")
    words = str(caught.value)
    assert words.startswith("cpu out of memory. Tried to allocate 1048576.00 GiB. cpu has a total capacity of ")
    assert "The machine has " in words
    assert "or raise the capacity (forebay run --memory, forebay.memory.set_capacity, or FOREBAY_CPU_MEMORY)." in words
    assert not {word for word in ("stream", "ALLOC_CONF", "expandable", "CUDA") if word in words}
