from __future__ import annotations

from support.annotated_history import MIB, annotated

from forebay.snapshot.analysis.range_use import range_use
from forebay.snapshot.analysis.spans import spans
from forebay.snapshot.analysis.timeline import reconstruct
from forebay.snapshot.formats import torch_pickle


def test_memory_by_name_of_the_ranges():
    (snapshot,) = torch_pickle.snapshots(annotated(3))
    found = {use.name: use for use in range_use(snapshot, reconstruct(snapshot), spans(snapshot))}
    step, forward = found["ProfilerStep"], found["forward"]
    assert (step.count, step.peak, step.peak_in, step.change) == (3, 15 * MIB + 1024, "ProfilerStep#2", MIB)
    assert step.allocated == 3 * 13 * MIB + 3 * 512
    assert (forward.peak, forward.allocated) == (10 * MIB + 1024, 24 * MIB + 3 * 512)
    assert forward.change == 8 * MIB + 512
    assert found['{"phase":"forward"}'].count == 3  # the first allocation of each forward pass
