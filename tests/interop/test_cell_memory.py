"""Measurement of a part of a program: figures, and what it restores or leaves to the program."""

from __future__ import annotations

import gc
from dataclasses import replace

import numpy as np
import pytest

import forebay
from forebay import memory
from forebay._base.config import UNLIMITED
from forebay.errors import Unsupported
from forebay.interop import cell_memory
from forebay.interop import numpy as hook
from forebay.interop.cell_memory import CellMemory
from forebay.runtime.devices.current import opened_for
from forebay.runtime.history import recording

MIB = 1 << 20

pytestmark = pytest.mark.usefixtures("clean")


@pytest.fixture(autouse=True)
def _restored():
    capacity = memory.mem_get_info("cpu")[1]
    yield
    hook.uninstall()
    memory.record_history(None, device="cpu")
    assert memory.mem_get_info("cpu")[1] == capacity
    gc.collect()


def allocator():
    return opened_for("cpu").allocator


def measured(run, device="cpu", rows=5):
    cell = CellMemory(opened_for(device))
    with cell.measuring():
        kept = run()
    report = cell.report(rows, lambda _: None)
    del kept
    return report


def entries():
    return len(memory.snapshot("cpu").trace)


def test_figures_of_numpy_arrays():
    memory.empty_cache("cpu")

    def run():
        kept = [np.ones(MIB, np.uint8) for _ in range(5)]
        return kept[:2]

    report = measured(run)
    figures = dict(report.figures())
    assert figures["peak allocated"].endswith("5.00 MiB above the start")
    assert figures["allocations"] == "5"
    assert figures["remained"] == "2.00 MiB in 2 allocations of the cell"
    assert report.uses[0].count >= 5
    assert [use.count for use in report.remaining_uses] == [2]


def test_nothing_allocated():
    report = measured(lambda: None)
    assert "allocated nothing on cpu" in report._repr_html_()
    assert dict(report.figures())["remained"] == "nothing"


def test_everything_is_restored():
    measured(lambda: np.ones(MIB))
    assert hook.installed() is None
    assert not allocator().recording


def test_everything_is_restored_after_an_exception():
    cell = CellMemory(opened_for("cpu"))
    kept = []

    def interrupted():
        with cell.measuring():
            kept.append(np.ones(MIB, np.uint8))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert hook.installed() is None
    assert not allocator().recording
    assert dict(cell.report(5, lambda _: None).figures())["remained"] == "1.00 MiB in 1 allocation of the cell"


def test_recording_of_the_program_continues():
    memory.record_history(100, context="all", device="cpu")
    forebay.zeros(MIB)
    before = entries()
    report = measured(lambda: [forebay.zeros(1000) for _ in range(3)])
    assert allocator().recording
    assert entries() > before
    assert dict(report.figures())["allocations"] == "3"
    assert len(report.snapshot.trace) < entries()


def test_recording_with_a_small_ring_is_not_resized():
    memory.record_history(2, device="cpu")
    report = measured(lambda: [forebay.zeros(1000) for _ in range(10)])
    assert entries() == 2
    assert dict(report.figures())["allocations"] == "10"
    assert "only the last 2 entries" in repr(report)


@pytest.mark.parametrize("keep", [False, True])
def test_recording_that_the_cell_starts_continues(keep):
    report = measured(lambda: (memory.record_history(50, keep=keep, device="cpu"), forebay.zeros(1000)))
    assert allocator().recording
    assert dict(report.figures())["allocations"] == "1"


def test_cell_stops_the_recording():
    report = measured(lambda: (forebay.zeros(1000), memory.record_history(None, device="cpu")))
    assert not allocator().recording
    assert "stopped or cleared the history" in repr(report)
    assert "remained" not in dict(report.figures())


def test_measurements_nest():
    inner = []

    def run():
        inner.append(measured(lambda: np.ones(MIB, np.uint8)))
        assert allocator().recording
        assert hook.installed() == forebay.device("cpu")
        return np.ones(2 * MIB, np.uint8)

    outer = measured(run)
    assert dict(inner[0].figures())["allocations"] == "1"
    assert dict(outer.figures())["allocations"] == "2"
    assert dict(outer.figures())["remained"] == "2.00 MiB in 1 allocation of the cell"
    assert not allocator().recording


def test_numpy_handler_of_the_program_remains():
    hook.install("cpu", smallest=4096)
    report = measured(lambda: np.ones(8192, np.uint8))
    assert hook.installed() == forebay.device("cpu")
    assert dict(report.figures())["allocations"] == "1"
    hook.install("cpu", smallest=4096)  # WrongState if the size had changed


def test_numpy_handler_that_the_cell_installs_or_removes_remains_so():
    measured(lambda: hook.install("cpu"))
    assert hook.installed() == forebay.device("cpu")
    measured(hook.uninstall)
    assert hook.installed() is None


def test_default_limit_does_not_apply_inside():
    inside = []
    measured(lambda: inside.append(memory.mem_get_info("cpu")[1]))
    assert inside == [UNLIMITED]


def test_default_limit_is_restored_after_a_cell_that_reserved_more(monkeypatch):
    before = memory.mem_get_info("cpu")[1]
    memory.empty_cache("cpu")
    opened = opened_for("cpu")
    opened.set_capacity(64 * MIB)
    monkeypatch.setattr(opened.port, "props", replace(opened.port.props, total_bytes=64 * MIB))
    try:
        measured(lambda: np.ones(200 * MIB, np.uint8).sum())
        assert memory.mem_get_info("cpu")[1] == 64 * MIB
    finally:
        memory.set_capacity(before, "cpu")


def test_limit_of_the_program_applies_inside(monkeypatch):
    before = memory.mem_get_info("cpu")[1]
    memory.set_capacity("64MiB", "cpu")
    try:
        with pytest.raises(MemoryError):
            measured(lambda: np.ones(128 * MIB, np.uint8))
        assert memory.mem_get_info("cpu")[1] == 64 * MIB
    finally:
        memory.set_capacity(before, "cpu")
    monkeypatch.setenv("FOREBAY_CPU_MEMORY", "1GiB")
    inside = []
    measured(lambda: inside.append(memory.mem_get_info("cpu")[1]))
    assert inside == [before]


def test_limit_that_the_cell_sets_remains():
    before = memory.mem_get_info("cpu")[1]
    measured(lambda: memory.set_capacity("1GiB", "cpu"))
    assert memory.mem_get_info("cpu")[1] == 1 << 30
    memory.set_capacity(before, "cpu")


def test_emulated_device_without_arrays(emulated):
    report = measured(lambda: (np.ones(MIB), forebay.zeros(MIB, device="cuda:1")), "cuda:1")
    assert dict(report.figures())["allocations"] == "1"
    assert report.snapshot.device == "cuda:1"
    assert "numpy" not in repr(report).lower()


def test_arrays_on_another_device_are_named(monkeypatch):
    monkeypatch.setattr(hook, "installed", lambda: forebay.device("cpu:1"))
    assert "NumPy's arrays were allocated on cpu:1." in measured(lambda: None).remarks()


def test_pluggable_allocator_is_refused(emulated, monkeypatch):
    opened = opened_for("cuda:0")
    monkeypatch.setattr(opened, "pluggable", object())
    with pytest.raises(Unsupported):
        CellMemory(opened)


def test_recording_of_an_allocator_that_records(clean):
    memory.record_history(10, device="cpu")
    with recording.recording_of(allocator(), 5):
        pass
    assert allocator().recording


def test_failing_snapshot_does_not_change_the_outcome(monkeypatch):
    monkeypatch.setattr(cell_memory, "take_snapshot", lambda _: 1 / 0)
    cell = CellMemory(opened_for("cpu"))
    with cell.measuring():
        done = True
    assert done
    assert not allocator().recording
    with pytest.raises(ZeroDivisionError):
        cell.report(5, lambda _: None)


def test_emulation_that_ends_inside(clean):
    emulation = forebay.emulate("cuda")
    report = measured(lambda: (forebay.ones(1000, device="cuda"), emulation.stop()), "cuda:0")
    assert dict(report.figures())["allocations"] == "1"


def test_report_while_numpy_raises_floating_point_errors():
    with np.errstate(all="raise"):
        assert "svg" in measured(lambda: np.ones(MIB))._repr_html_()
