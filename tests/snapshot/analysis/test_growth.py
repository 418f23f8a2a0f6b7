"""Growth from step to step: steps that are found, sites that grow, and leak candidates."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.snapshot_scenes import MIB, Scene, long_run, training

from forebay.records.model import ENTRY, FRAME, STACK, Action
from forebay.snapshot.analysis.growth import growth
from forebay.snapshot.analysis.periods import find_steps
from forebay.snapshot.analysis.timeline import reconstruct


def loop(steps: int, *, layers: int = 4, leak: int = 0, temporary: int = 0, before: int = 0) -> Scene:
    """Return a loop: each step allocates and frees `layers` blocks, and `temporary` more in every second step."""
    scene = Scene()
    for number in range(before):
        scene.allocate(1000 + number, scene.stack(f"setup.py:{number + 1} load"))
    for step in range(steps):
        held = [scene.allocate(MIB, scene.stack(f"train.py:{10 + layer} layer")) for layer in range(layers)]
        if leak:
            scene.allocate(leak, scene.stack("metrics.py:5 append"))
        held += [scene.allocate(4096, scene.stack("log.py:3 write")) for _ in range(temporary * (step % 2))]
        for address in held:
            scene.free(address)
    return scene


@given(st.integers(6, 12), st.integers(2, 6), st.integers(0, 5))
def test_steps_of_a_loop_are_found(steps, layers, before):
    snapshot = loop(steps, layers=layers, before=before).snapshot()
    found = find_steps(snapshot, reconstruct(snapshot))
    if before > steps * layers // 2:  # less than half of the history repeats
        return
    assert (found.allocations, found.exact) == (layers, True)
    assert found.count >= steps - 2


def test_leaking_site_is_found_with_its_growth_per_step():
    found = growth(loop(10, leak=3 * MIB).snapshot())
    assert found.steady
    assert (found.per_step, found.grown, found.peak_per_step) == (3 * MIB, found.compared, 3 * MIB)
    (site,) = found.leaks
    assert (site.label, site.per_step, site.freed) == ("metrics.py:5 append", 3 * MIB, 0)
    assert site.last_bytes - site.first_bytes == found.last_bytes - found.first_bytes == 3 * MIB * found.steps.count
    assert site.allocations == found.steps.count


def test_loop_without_a_leak_does_not_grow():
    found = growth(loop(10).snapshot())
    assert (found.steady, found.per_step, found.sites) == (False, 0, ())


def test_cache_that_is_emptied_at_last_is_no_leak():
    scene = loop(10, leak=3 * MIB)
    for address in list(scene.blocks):
        scene.free(address)
    found = growth(scene.snapshot())
    assert [site.label for site in found.sites] == ["metrics.py:5 append"]
    assert found.leaks == ()
    assert found.sites[0].freed == found.sites[0].allocations


def test_steps_of_different_lengths_are_found_by_a_site_that_recurs():
    found = growth(loop(12, temporary=5, leak=MIB).snapshot())
    assert found.steps.count >= 5
    assert [site.label for site in found.leaks] == ["metrics.py:5 append"]
    assert found.last_bytes > found.first_bytes


def test_training_run_leaks_in_its_metrics():
    found = growth(training())
    assert (found.steps.allocations, found.steps.count) == (49, 14)
    assert [(site.frame.file.rpartition("/")[2], site.per_step) for site in found.leaks] == [("metrics.py", 34 * MIB)]


@pytest.mark.parametrize("steps", [0, 1, 2])
def test_history_without_repetition_has_no_growth(steps):
    assert growth(loop(steps, before=3).snapshot()) is None


def test_million_entries_are_compared_by_their_smallest_period():
    found = growth(long_run())
    assert (found.steps.allocations, found.steps.count, found.compared) == (2000, 250, 200)


def test_alike_allocations_have_no_period():
    scene = Scene()
    for _ in range(40):
        scene.free(scene.allocate(MIB))
    assert growth(scene.snapshot()) is None


def test_memory_does_not_depend_on_sites_times_steps():
    entries, sites = 60_000, 30_000
    given = loop(3).snapshot()
    trace = np.zeros(entries, ENTRY)
    trace["action"], trace["nbytes"], trace["address"] = Action.ALLOC, 512, (1 << 45) + 512 * np.arange(entries)
    trace["stack"] = 1 + np.arange(entries) % (entries // 300)  # 300 steps
    stacks, frames = np.zeros(sites + 1, STACK), np.zeros(sites, FRAME)
    stacks["frame"][1:] = frames["line"] = np.arange(sites)
    wide = replace(
        given, trace=trace, stacks=stacks, frames=frames, segments=given.segments[:0], blocks=given.blocks[:0]
    )
    timeline = reconstruct(wide)
    tracemalloc.start()
    try:
        found = growth(wide, timeline=timeline)
        assert tracemalloc.get_traced_memory()[1] < 40 << 20  # a table of 200 numbers for each site takes 48 MB
    finally:
        tracemalloc.stop()
    assert len(found.sites) == entries // 300
