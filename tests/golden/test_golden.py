"""Replays of all golden traces: the allocator and the plain model equal PyTorch in everything recorded."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.golden import command

DATA = Path(__file__).parents[1] / "data"
FILES = sorted((*DATA.glob("torch-golden/*.jsonl.xz"), *DATA.glob("golden/*.jsonl.xz")))
# The settings of some traces cause a warning, in PyTorch too.
pytestmark = pytest.mark.filterwarnings("ignore:Ignoring invalid expandable-segment reserve")


def name_of(path):
    return path.name.removesuffix(".jsonl.xz")


def all_equal(report):
    assert report.equal, str(report)
    assert report.operations > 0
    assert all(equal == total for equal, total in report.counts.values())
    return True


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_allocator_reproduces_the_trace(path):
    assert all_equal(command.run(path))


# The model accepts well-formed settings only, and is slow with many live blocks.
MODEL_FILES = [path for path in FILES if name_of(path) != "settings_texts" and "long_" not in path.name]


@pytest.mark.parametrize("path", MODEL_FILES, ids=name_of)
def test_model_reproduces_the_trace(path):
    assert all_equal(command.run(path, *command.simulated(model=True)))


def test_all_shared_traces_are_in_the_repository(root):
    shared = {path.name for path in (root / "../shared/data/torch-golden").glob("*.xz")}
    if not shared:
        pytest.skip("no shared data")
    assert shared <= {path.name for path in FILES}
