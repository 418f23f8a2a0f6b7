"""Memory of other devices when one of them ran out: at that time, or at their peaks if the file has no times."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.snapshot_programs import MIB, dumped

from forebay import OutOfMemory, simulate
from forebay.records.model import Action
from forebay.snapshot.analysis.other_devices import other_devices
from forebay.snapshot.formats import torch_pickle


def three_devices():
    """Return snapshots of which the second one ran out of memory, and the others used more afterwards."""
    gpus = [simulate.Device(100 * MIB, index=number) for number in range(3)]
    for gpu in gpus:
        gpu.record_history()
    blocks = [gpu.allocate(20 * MIB) for gpu in gpus]
    gpus[1].allocate(60 * MIB)
    gpus[2].free(blocks[2])
    with pytest.raises(OutOfMemory):
        gpus[1].allocate(50 * MIB)
    for number in (0, 2):
        gpus[number].allocate(70 * MIB)
    found = [each for gpu in gpus for each in torch_pickle.parse(dumped(gpu.snapshot())) if len(each.trace)]
    assert [each.device for each in found] == ["cuda:0", "cuda:1", "cuda:2"]
    return found


def shifted(snapshot, entries):
    """Return a snapshot whose entries happened one after the other, at these times."""
    trace = snapshot.trace.copy()
    trace["time_ns"] = entries[: len(trace)]
    return replace(snapshot, trace=trace)


def test_use_is_that_at_the_time_of_the_error():
    before, failed, freed = three_devices()
    entry = int((failed.trace["action"] == Action.OOM).argmax())
    failed = shifted(failed, [*range(1, entry + 1), 1000])
    use = other_devices(
        failed,
        [shifted(before, [10, 20, 2000, 2001]), shifted(freed, [10, 20, 30, 40, 2000, 2001, 2002])],
        entry,
        100 * MIB,
    )  # fmt: skip
    assert [(each.live // MIB, each.reserved // MIB) for each in use] == [(20, 20), (0, 20)]
    assert [(each.unused // MIB, each.assumed, each.at_error, each.ran_out) for each in use] == [
        (80, True, True, False), (100, True, True, False),
    ]  # fmt: skip
    assert use[0].label.endswith("three_devices") or "<listcomp>" in use[0].label
    assert use[1].label == ""


def test_known_memory_is_not_assumed():
    before, failed, _ = three_devices()
    entry = int((failed.trace["action"] == Action.OOM).argmax())
    (use,) = other_devices(failed, [replace(before, capacity=500 * MIB)], entry, 100 * MIB)
    assert (use.capacity // MIB, use.assumed) == (500, False)


def test_memory_below_what_was_reserved_is_not_assumed():
    before, failed, _ = three_devices()
    entry = int((failed.trace["action"] == Action.OOM).argmax())
    (use,) = other_devices(failed, [before], entry, 80 * MIB)
    assert (use.capacity, use.unused) == (0, None)


def test_file_without_times_gives_the_peaks():
    before, failed, _ = three_devices()
    entry = int((failed.trace["action"] == Action.OOM).argmax())
    (use,) = other_devices(shifted(failed, [0] * 99), [shifted(before, [0] * 99)], entry, 100 * MIB)
    assert (use.at_error, use.live // MIB, use.reserved // MIB) == (False, 90, 90)
