"""Tests of the heap model: invalid arguments, and consistency of its tables."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.model.heaps import HeapModel
from support.model.watermarks import format_size

from forebay.errors import ForebayError, OutOfMemory

MIB, GIB = 1 << 20, 1 << 30


@pytest.mark.parametrize(
    ("nbytes", "text"),
    [
        (0, "0 bytes"),
        (1, "1 bytes"),
        (1024, "1024 bytes"),
        (1025, "1.00 KB"),
        (1536, "1.50 KB"),
        (MIB, "1024.00 KB"),
        (MIB + MIB // 4, "1.25 MB"),
        (GIB, "1024.00 MB"),
        (GIB + 1, "1.00 GB"),
        (5000 * GIB, "5000.00 GB"),
    ],
)
def test_sizes_are_formatted(nbytes, text):
    assert format_size(nbytes) == text


def test_dedicated_heap_has_no_gap():
    model = HeapModel(64 * GIB, 48 * GIB)
    buffer = model.allocate(512 * MIB)
    assert (buffer.heap.available, buffer.heap.gaps()) == (0, [])
    assert buffer.heap.layout() == (0, 512 * MIB, [(0, 512 * MIB, "live", 0)])


@pytest.mark.parametrize(("nbytes", "usage"), [(0, None), (-1, None), (8, "managed"), (MIB + 1, "scalar")])
def test_invalid_arguments_are_rejected(nbytes, usage):
    with pytest.raises(ValueError, match=str(nbytes)):
        HeapModel(GIB, GIB).allocate(nbytes, usage=usage)


def test_double_free_fails():
    model = HeapModel(GIB, GIB)
    buffer = model.allocate(8)
    model.free(buffer)
    with pytest.raises(ValueError, match="already freed: cached"):
        model.free(buffer)


def test_invalid_size_is_not_an_out_of_memory_error():
    with pytest.raises(ForebayError, match=r"^Invalid buffer size: 1024\.00 MB$") as caught:
        HeapModel(GIB, GIB).allocate(GIB)
    assert not isinstance(caught.value, OutOfMemory)


steps = st.lists(
    st.tuples(
        st.sampled_from(["allocate", "allocate", "free", "free", "work", "finish", "empty", "refuse"]),
        st.integers(0, 1 << 20),
        st.sampled_from([1, 256, 257, MIB, MIB + 1, 3 * MIB, 10 * MIB, 42 * MIB, 300 * MIB, 512 * MIB]),
    ),
    max_size=60,
)


@given(steps)
@settings(max_examples=200, deadline=None)
def test_random_operations_keep_tables_consistent(steps):
    model, live = HeapModel(1500 * MIB, GIB, low=0.8), []
    for act, choice, nbytes in steps:
        queue = choice % 2
        if act == "allocate":
            try:
                usage = [None, "private", "scalar" if nbytes <= MIB else "shared"][choice % 3]
                buffer = model.allocate(nbytes, queue, usage)
            except OutOfMemory:
                assert not model.busy  # all work was waited for
                assert all(buffer in live for pool in model.pools.values() for h in pool.heaps for buffer in h.buffers)
                continue
            assert nbytes <= buffer.size
            assert buffer.age == 0
            assert buffer not in live
            live.append(buffer)
        elif act == "free" and live:
            model.free(live.pop(choice % len(live)))
        elif act == "refuse":
            model.refusals = choice % 3
        else:
            {"work": model.work, "finish": model.finish, "empty": lambda _: model.empty()}.get(act, str)(queue)
        check_tables(model, live)


def check_tables(model, live):
    sizes = {"live": 0, "waiting": 0}
    for heaps in model.layout().values():
        for _, size, rows in heaps:
            ends = [0, *(offset + nbytes for offset, nbytes, *_ in rows)]
            assert [*(offset for offset, *_ in rows), size] == ends  # the rows tile the heap
            states = [state for *_, state, _ in rows]
            assert "gap gap" not in " ".join(states)
            assert all(nbytes % 256 == 0 and nbytes > 0 for _, nbytes, *_ in rows)
            assert not any(age for *_, state, age in rows if state != "cached")
            for _, nbytes, state, _ in rows:
                sizes[state] = sizes.get(state, 0) + nbytes
    assert model.current_allocated == sizes["live"] == sum(buffer.size for buffer in live)
    numbers = model.statistics()
    assert numbers["active_bytes.current"] == sizes["live"] + sizes["waiting"]
    assert numbers["reserved_bytes.current"] == model.reserved == model.driver == sum(sizes.values())
    assert numbers["allocation.current"] == len(live)
    for quantity in ("allocation", "allocated_bytes", "active_bytes", "segment", "reserved_bytes"):
        current, peak, allocated, freed = (
            numbers[f"{quantity}.{part}"] for part in ("current", "peak", "allocated", "freed")
        )
        assert current == allocated - freed
        assert current <= peak <= allocated
