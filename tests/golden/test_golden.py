"""Every golden trace, done again: equal to PyTorch's allocator in all that is recorded, and so is the plain model."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.golden import command

DATA = Path(__file__).parents[1] / "data"
FILES = sorted((*DATA.glob("torch-golden/*.jsonl.xz"), *DATA.glob("golden/*.jsonl.xz")))
# A text may say what PyTorch warns of.
pytestmark = pytest.mark.filterwarnings("ignore:Ignoring invalid expandable-segment reserve")


def name_of(path):
    return path.name.removesuffix(".jsonl.xz")


def all_equal(report):
    assert report.equal, str(report)
    assert report.operations > 0
    assert all(equal == every for equal, every in report.counts.values())
    return True


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_a_trace_is_done_again_to_the_byte(path):
    assert all_equal(command.run(path))


# The model reads well-formed settings only, and is slow where many blocks live.
PLAIN = [path for path in FILES if name_of(path) != "settings_texts" and "long_" not in path.name]


@pytest.mark.parametrize("path", PLAIN, ids=name_of)
def test_the_model_does_so_too(path):
    assert all_equal(command.run(path, *command.simulated(model=True)))


def test_all_given_traces_are_here(root):
    given = {path.name for path in (root / "../shared/data/torch-golden").glob("*.xz")}
    if not given:
        pytest.skip("the shared data is not here")
    assert given <= {path.name for path in FILES}
