"""Every golden trace, done again on the simulated device: equal to PyTorch's allocator in all that is recorded."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.testing import golden

simulate = pytest.importorskip("penstock.simulate")
DATA = Path(__file__).parents[1] / "data"
FILES = sorted((*DATA.glob("torch-golden/*.jsonl.xz"), *DATA.glob("golden/*.jsonl.xz")))
NEEDS = {"pinned_": "Pinned", "capture_": "Device.begin_capture"}  # what of penstock.simulate a family of traces is for


def is_there(name):
    found = simulate
    for part in name.split("."):
        found = getattr(found, part, None)
    return found is not None


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name.removesuffix(".jsonl.xz"))
def test_a_trace_is_done_again_to_the_byte(path):
    for family, name in NEEDS.items():
        if path.name.startswith(family) and not is_there(name):
            pytest.skip(f"penstock.simulate has no {name}")
    report = golden.run(path)
    assert report.equal, str(report)
    assert report.operations > 0
    assert all(equal == every for equal, every in report.counts.values())


def test_all_given_traces_are_here(root):
    given = {path.name for path in (root / "../shared/data/torch-golden").glob("*.xz")}
    if not given:
        pytest.skip("the shared data is not here")
    assert given <= {path.name for path in FILES}
