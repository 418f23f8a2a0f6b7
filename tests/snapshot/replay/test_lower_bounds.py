"""Bounds of the memory that histories need, compared with replays and with slow computations."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.changed_programs import Step
from support.snapshot_programs import MIB, dumped, fragmented, program

from forebay import simulate
from forebay.snapshot.analysis.timeline import reconstruct
from forebay.snapshot.formats import torch_pickle
from forebay.snapshot.replay import lower_bounds
from forebay.snapshot.replay.engine import History
from forebay.snapshot.replay.lower_bounds import find_bounds, pack
from forebay.snapshot.replay.tuning import default_settings


def bounds_of(gpu):
    (snapshot,) = torch_pickle.parse(dumped(gpu if isinstance(gpu, dict) else gpu.snapshot()))
    return snapshot, find_bounds(snapshot, History(snapshot))


@pytest.mark.parametrize("options", [{}, {"pools": 2, "streams": 3}, {"begin": 300}], ids=str)
def test_no_settings_reserve_less_than_the_least(options):
    snapshot, bounds = bounds_of(program(3, steps=600, **options))
    history = History(snapshot)
    peaks = {text: history.run(text).peak_reserved for text in default_settings(snapshot)}
    assert min(peaks.values()) >= bounds.least > bounds.live
    assert bounds.packing.nbytes >= bounds.live


def test_least_is_the_most_live_memory_in_whole_segments_of_each_class():
    gpu = simulate.Device(1 << 30)
    gpu.record_history()
    gpu.allocate(1000)  # 2 MiB: a segment for small blocks
    gpu.allocate(5 * MIB)  # 6 MiB in whole pages
    gpu.allocate(3 * MIB, stream=1)  # 4 MiB for another stream
    gpu.free(gpu.allocate(900_000))  # in the first segment
    _, bounds = bounds_of(gpu)
    assert (bounds.live, bounds.least) == (1000 + 8 * MIB + 900_000, 12 * MIB)
    assert bounds.packing.nbytes == 1024 + 8 * MIB + -(-900_000 // 512) * 512
    assert (bounds.needed, bounds.reserved_before, bounds.packing.whole) == (bounds.least, 0, True)


def test_failed_request_is_needed_beside_what_was_live():
    _, bounds = bounds_of(fragmented(60))
    assert (bounds.least // MIB, bounds.needed // MIB) == (40, 62)


def test_memory_before_the_history_is_told():
    _, bounds = bounds_of(Step(recorded_weights=False).run()[0])
    assert bounds.reserved_before == 120 * MIB


def test_blocks_around_the_peak_of_a_long_history_are_packed(monkeypatch):
    gpu = simulate.Device(1 << 30)
    gpu.record_history()
    for number in range(20):
        gpu.free(gpu.allocate((10 + (number == 9) * 50) * MIB))
    monkeypatch.setattr(lower_bounds, "MOST_PACKED", 5)
    _, bounds = bounds_of(gpu)
    assert (bounds.packing.packed, bounds.packing.blocks, bounds.packing.whole) == (5, 20, False)
    assert bounds.packing.nbytes == 60 * MIB


def lifetimes(rows):
    start, length, size = (np.array(column, np.int64) for column in zip(*rows, strict=True))
    return start, start + length, size


ROWS = st.lists(st.tuples(st.integers(0, 20), st.integers(1, 9), st.integers(1, 9)), min_size=1, max_size=25)


@given(ROWS)
def test_packing_is_that_of_a_slow_search(rows):
    start, end, size = lifetimes(rows)
    placed: list[tuple[int, int, int, int]] = []
    for row in sorted(range(len(rows)), key=lambda row: (-size[row], start[row] - end[row], start[row])):
        others = [each for each in placed if each[0] < end[row] and start[row] < each[1]]
        free, begin = [], None
        for address in range(sum(size) + 1):
            taken = any(low <= address < high for _, _, low, high in others)
            if taken and begin is not None:
                free.append((address - begin, begin))
                begin = None
            elif not taken and begin is None:
                begin = address
        gaps = [gap for gap in free if gap[0] >= size[row]]
        place = min(gaps)[1] if gaps else begin
        placed.append((start[row], end[row], place, place + size[row]))
    assert pack(start, end, size) == max(high for *_, high in placed)


@given(ROWS)
def test_packing_is_at_least_the_most_live_memory(rows):
    start, end, size = lifetimes(rows)
    live = [int(size[(start <= moment) & (moment < end)].sum()) for moment in range(31)]
    assert max(live) <= pack(start, end, size) <= int(size.sum())


def test_packing_of_nothing_is_empty():
    none = np.zeros(0, np.int64)
    assert pack(none, none, none) == 0


def test_known_lifetimes_avoid_a_hole():
    """In order of allocation, the third block would be placed after the second one; in advance, below it."""
    start, end, size = (np.array(column, np.int64) for column in ((0, 1, 3), (2, 9, 8), (4, 2, 6)))
    assert pack(start, end, size) == 8


def test_levels_equal_a_slow_sum():
    snapshot, _ = bounds_of(program(5, steps=300, pools=2, streams=2))
    timeline = reconstruct(snapshot)
    held, rows = timeline.allocations, np.arange(len(timeline.allocations.start))
    found = lower_bounds._levels(held, rows, 2 * MIB, timeline.moments, classes=True)
    for moment in range(0, timeline.moments, 17):
        groups: dict[tuple[int, ...], int] = {}
        for row in held.live_at(moment).tolist():
            size = -(-int(held.nbytes[row]) // 512) * 512
            key = int(held.queue[row]), int(held.pool[row]), size <= MIB
            groups[key] = groups.get(key, 0) + size
        assert found[moment] == sum(-(-nbytes // (2 * MIB)) * 2 * MIB for nbytes in groups.values())
