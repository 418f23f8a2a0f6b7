"""The memory of several processes together, from the times of their changes."""

from __future__ import annotations

import numpy as np
import pytest

from forebay._base.outside_memory import OutsideMemory
from forebay._base.verdicts import DeviceEvents, Ending, How, ProcessEvents, Verdict
from forebay.interop.torch.processes import ProcessRecord, program_use, read_records
from forebay.interop.torch.processes.live_record import CHANGES, SUFFIX, LiveRecord

GIB = 1 << 30


def record(pid, *changes, ended, started=None, index=0, allocated=None):
    """Return a record with changes of a device, as pairs of time and GiB."""
    peak = max(gib for _, gib in changes) * GIB
    used = DeviceEvents(index, 24 * GIB, peak if allocated is None else allocated * GIB, peak)
    rows = np.array([(time, index, gib * GIB) for time, gib in changes], np.int64)
    events = ProcessEvents(pid, Ending(How.FINISHED), (used,), is_main=pid == 1)
    began = changes[0][0] if started is None else started
    return ProcessRecord(events, began, ended, rows, {index: {"pid": pid}})


def test_processes_at_different_times_have_the_peak_of_the_largest():
    found = program_use([record(1, (1, 10), ended=5), record(2, (6, 20), ended=9), record(3, (9, 15), ended=12)])
    (device,) = found.devices
    assert (device.events.reserved, device.is_exact, device.details) == (20 * GIB, True, {"pid": 2})
    assert [each.pid for each in device.processes] == [2, 3, 1]
    assert found.judge().verdict is Verdict.FITS


def test_processes_at_one_time_are_added_up():
    both = record(1, (1, 10), (4, 2), ended=9), record(2, (3, 8), (5, 12), ended=9)
    (device,) = program_use(both).devices
    assert (device.events.reserved, device.is_exact) == (18 * GIB, False)
    assert device.events.allocated == 18 * GIB
    (device,) = program_use([record(1, (1, 10), ended=9, allocated=3), record(2, (3, 8), ended=9, allocated=4)]).devices
    assert device.events.allocated == 7 * GIB


def test_processes_that_run_at_one_time_are_tight_if_only_their_times_prevent_an_error():
    """As two workers that ended so soon here that one began to allocate after the other."""
    found = program_use([record(1, (1, 14), (2, 0), ended=3), record(2, (4, 14), ended=9, started=1)])
    (device,) = found.devices
    assert (device.events.reserved, device.events.at_most) == (14 * GIB, 28 * GIB)
    assert found.judge().verdict is Verdict.TIGHT
    assert "reserve up to 28.00 GiB of 24.00 GiB of cuda:0" in found.judge().reasons[0]


def test_each_process_that_runs_at_one_time_has_a_context():
    outside = OutsideMemory(1, 2, 3, "recorded")
    apart = [record(1, (1, 10), ended=5), record(2, (6, 20), ended=9)]
    together = [record(1, (1, 10), ended=7), record(2, (6, 20), ended=9), record(3, (1, 1), ended=9, index=1)]
    assert [each.events.outside for each in program_use(apart, outside).devices] == [outside]
    assert program_use(together, outside).devices[0].events.outside == OutsideMemory(2, 4, 6, "recorded")
    assert program_use(together, outside).devices[1].events.outside == outside


def test_process_without_an_end_keeps_its_memory():
    found = program_use([record(1, (1, 10), ended=None), record(2, (6, 20), ended=9)])
    assert found.devices[0].events.reserved == 30 * GIB
    assert found.judge().verdict is Verdict.DOES_NOT_FIT


def test_devices_are_apart():
    found = program_use([record(1, (1, 10), ended=9), record(2, (1, 20), ended=9, index=3)])
    assert [(each.events.index, each.events.reserved // GIB, each.is_exact) for each in found.devices] == [
        (0, 10, True),
        (3, 20, True),
    ]
    assert found.judge(3).verdict is Verdict.FITS


@pytest.fixture
def live(tmp_path):
    return LiveRecord(str(tmp_path))


def test_live_record_is_read_while_it_is_written(live, tmp_path):
    live.used(0, 24 * GIB, 3, 20)
    live.used(0, 24 * GIB, 2, 18)
    live.used(127, 24 * GIB, 5, 5)
    live.refused(0, 24 * GIB, 99)
    live.refused(0, 24 * GIB, 7)
    (found,) = read_records(tmp_path)
    first, last = found.events.devices
    assert first == DeviceEvents(0, 24 * GIB, 3, 20, 2, 7, idle_since_oom=True)
    assert last == DeviceEvents(127, 24 * GIB, 5, 5)
    assert (found.ended, found.changes[:, 1:].tolist()) == (None, [[0, 20], [0, 18], [127, 5]])
    live.used(0, 24 * GIB, 1, 18)
    live.end(3)
    (found,) = read_records(tmp_path)
    assert not found.events.devices[0].idle_since_oom
    assert found.ended > found.started
    assert found.events.ending == Ending(How.STATUS, "exit status 3")


def test_full_record_takes_the_peak_from_then_on(live, tmp_path):
    for number in range(CHANGES + 5):
        live.used(0, 24 * GIB, 1, 1_000_000 - number)
    (found,) = read_records(tmp_path)
    assert len(found.changes) == CHANGES + 1
    assert found.changes[-1].tolist()[1:] == [0, 1_000_000]


def test_unfinished_and_foreign_files_are_ignored(tmp_path):
    (tmp_path / f"1{SUFFIX}").write_bytes(b"")
    (tmp_path / f"2{SUFFIX}").write_bytes(bytes(100_000))
    (tmp_path / "3.json").write_text("[]")
    assert read_records(tmp_path) == []
    assert read_records(tmp_path / "missing") == []


def test_texts_that_are_no_json_are_ignored(live, tmp_path):
    live.end(0)
    live.path.with_suffix(".json").write_text("{")
    assert read_records(tmp_path)[0].events.ending.how is How.FINISHED
