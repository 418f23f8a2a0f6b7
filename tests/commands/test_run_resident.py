"""Figures of the process's memory: Python's arenas, the C heap, Arrow, and what has a site."""

from __future__ import annotations

import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest
from support.snapshot_scenes import MIB, Scene

from forebay._core import arena_bytes, meter_arenas
from forebay.commands import run_resident
from forebay.interop.numpy import OtherArrays

NO_ARRAYS = OtherArrays(0, 0, 0, 0)


@pytest.fixture
def begun(monkeypatch):
    monkeypatch.setattr(run_resident._beginning, "figures", None)
    run_resident.begin()
    return run_resident._beginning.figures


def test_arenas_are_counted_from_the_beginning():
    """Their number depends on what other tests leave; test_run_small_arrays.py has a process of its own."""
    meter_arenas()
    meter_arenas()  # counts anew, and does not count itself
    now, peak = arena_bytes()
    assert peak >= max(now, 0)


def test_growth_has_the_objects_of_the_c_heap(begun):
    text = b"x" * (30 * MIB)
    found = run_resident.growth(run_resident.measure(), [], NO_ARRAYS)
    if begun.heap is not None:
        assert {part.name: part.now for part in found.parts}["other objects in the C heap"] >= 30 * MIB
    assert found.with_site == 0
    assert not any(part.has_site for part in found.parts)
    assert len(text)


def test_site_memory_is_the_maximum_of_all_histories_together(begun):
    scene = Scene(segment=8 * MIB)
    first = scene.allocate(5 * MIB, scene.stack("a.py:1 f"))
    scene.advance(1000)
    scene.free(first)
    scene.advance(1000)
    scene.allocate(3 * MIB, scene.stack("a.py:2 f"))
    device = scene.snapshot()
    sample = replace(device, notes={"sampled": {"mean_bytes": 1}})
    end = replace(run_resident.measure(), peak=begun.peak + 99 * MIB)
    found = run_resident.growth(end, [device, sample], OtherArrays(9, 9 * MIB, 10 * MIB, 6 * MIB))
    assert found.with_site == 15 * MIB  # the estimates are scaled to the exact peak
    assert {part.name: part.now for part in found.parts}["small arrays"] == 6 * MIB


@pytest.mark.parametrize("backend", ["mimalloc", "system"])
def test_arrow_is_counted_once(monkeypatch, begun, backend):
    pool = SimpleNamespace(bytes_allocated=lambda: 7 * MIB, max_memory=lambda: 9 * MIB, backend_name=backend)
    monkeypatch.setitem(sys.modules, "pyarrow", SimpleNamespace(default_memory_pool=lambda: pool))
    end = run_resident.measure()
    if begun.heap is not None:
        end = replace(end, heap=begun.heap + 10 * MIB)
    parts = {part.name: part for part in run_resident.growth(end, [], NO_ARRAYS).parts}
    assert (parts["Arrow"].now, parts["Arrow"].peak) == (7 * MIB, 9 * MIB)
    if begun.heap is not None:
        assert parts["other objects in the C heap"].now == (10 - 7 * (backend == "system")) * MIB


@pytest.mark.parametrize("module", [SimpleNamespace(), None, SimpleNamespace(default_memory_pool=lambda: 5)])
def test_other_modules_named_pyarrow_are_ignored(monkeypatch, begun, module):
    monkeypatch.setitem(sys.modules, "pyarrow", module)
    found = run_resident.growth(run_resident.measure(), [], NO_ARRAYS)
    assert "Arrow" not in [part.name for part in found.parts]


def test_growth_is_unknown_without_figures(monkeypatch, begun):
    assert run_resident.growth(replace(run_resident.measure(), resident=0), [], NO_ARRAYS) is None
    monkeypatch.setattr(run_resident._beginning, "figures", None)
    assert run_resident.growth(run_resident.measure(), [], NO_ARRAYS) is None
