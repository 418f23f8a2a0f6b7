"""A trace where a package's backend is wrong: the program goes on as without it, and what others did is told."""

from __future__ import annotations

import pytest
from support.perfetto_files import decoded

import forebay
from forebay.observe import Trace

pytestmark = pytest.mark.usefixtures("clean")


def raises(error):
    def method(*_):
        raise error("nonsense")

    return method


def logs(plugin, given=lambda self: 1, log=lambda self, most: lambda number: (0, 0)):
    plugin.queue.given, plugin.queue.log = given, log


WRONG = {
    "mark": [raises(ValueError), raises(KeyError), None],
    "elapsed_ms": [raises(ValueError), raises(KeyError), float("nan"), "1"],
    "reached": [raises(ValueError), raises(KeyError), None],
}
LOGS = {
    "given raises": {"given": raises(KeyError)},
    "given what is none": {"given": lambda self: None},
    "log raises": {"log": raises(ValueError)},
    "log that is none": {"log": lambda self, most: None},
    **{
        f"times of {times!r}": {"log": lambda self, most, times=times: lambda number: times}
        for times in (None, 7, ("a", "b"), (5, 3), (-5, -3), (1 << 70, 1 << 70), (1,))
    },
    "times that raise": {"log": lambda self, most: raises(KeyError)},
}


def traced(plugin, path):
    """The trace of three fills by that backend, and of a copy on the host's device; all while it is wrong."""
    plugin.spoilt = False
    tensor, other = forebay.empty(10, device="acme:0"), forebay.zeros(10, device="host:0")
    forebay.synchronize("acme:0")
    plugin.spoilt = True
    made = Trace(path, limit=0.05)
    made.start()
    for _ in range(3):
        tensor.fill_(0)
    other.copy_(forebay.zeros(10, device="host:0"))
    made.stop()
    plugin.spoilt = False
    assert made.written
    file = decoded(path)
    assert [each.name for each in file.executed if "host" in each.track] == ["fill_", "copy_"]
    mine = [each for each in file.slices if each.name == "fill_" and each.details.get("device") == "acme:0"]
    assert len([each for each in mine if not each.does]) == 3
    return mine


@pytest.mark.parametrize(
    ("name", "value"), [(name, value) for name, values in WRONG.items() for value in values], ids=repr
)
def test_marks_that_are_wrong(plugin, tmp_path, name, value):
    plugin.spoil("queue", name, value)
    asked = traced(plugin, tmp_path / "made")
    assert all(each.details.get("execution") != "recorded for a graph" for each in asked)


@pytest.mark.parametrize("wrong", LOGS.values(), ids=LOGS)
def test_logs_that_are_wrong(plugin, tmp_path, wrong):
    logs(plugin, **wrong)
    asked = traced(plugin, tmp_path / "made")
    assert all(each.details.get("execution") != "recorded for a graph" for each in asked)


def test_a_good_log(plugin, tmp_path):
    """What stands beside the wrong ones."""
    numbers = iter(range(1000))
    logs(plugin, lambda self: next(numbers), lambda self, most: lambda number: (number + 1, number + 2))
    traced(plugin, tmp_path / "made")


def test_what_is_not_known_is_no_work_for_a_graph_and_not_undone(plugin, tmp_path):
    plugin.spoil("queue", "mark", raises(KeyError))
    asked = traced(plugin, tmp_path / "made")
    assert all(each.details["execution"] == "not known: its queue gave no mark" for each in asked)
