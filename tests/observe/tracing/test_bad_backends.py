"""Traces with a faulty backend: the program is unaffected, and other devices are traced."""

from __future__ import annotations

import pytest
from support.perfetto_files import decode

import forebay
from forebay.observe import Trace

pytestmark = pytest.mark.usefixtures("clean")


def raises(error):
    def method(*_):
        raise error("nonsense")

    return method


def add_log(plugin, given=lambda self: 1, log=lambda self, most: lambda numbers: [(0, 0)] * len(numbers)):
    plugin.queue.last_work_number, plugin.queue.log = given, log


FAULTS = {
    "mark": [raises(ValueError), raises(KeyError), None],
    "elapsed_ms": [raises(ValueError), raises(KeyError), float("nan"), "1"],
    "reached": [raises(ValueError), raises(KeyError), None],
}
LOG_FAULTS = {
    "given raises": {"given": raises(KeyError)},
    "given returns None": {"given": lambda self: None},
    "log raises": {"log": raises(ValueError)},
    "log returns None": {"log": lambda self, most: None},
    **{
        f"times of {times!r}": {"log": lambda self, most, times=times: lambda numbers: [times] * len(numbers)}
        for times in (None, 7, ("a", "b"), (5, 3), (-5, -3), (1 << 70, 1 << 70), (1,))
    },
    "no list": {"log": lambda self, most: lambda numbers: None},
    "too few times": {"log": lambda self, most: lambda numbers: [(1, 2)] * (len(numbers) - 1)},
    "times raise": {"log": lambda self, most: raises(KeyError)},
}


def trace_fills(plugin, path):
    """Trace three fills of the faulty backend and a copy of the CPU device. Return the fills' slices.

    The CPU device has finished before the trace stops, so that the result does not depend on a limit in seconds.
    """
    plugin.broken = False
    tensor, other = forebay.empty(10, device="acme:0"), forebay.zeros(10, device="cpu")
    forebay.synchronize("acme:0")
    plugin.broken = True
    trace = Trace(path, limit=0)
    trace.start()
    for _ in range(3):
        tensor.fill_(0)
    other.copy_(forebay.zeros(10, device="cpu"))
    forebay.synchronize("cpu")
    trace.stop()
    plugin.broken = False
    assert trace.written
    file = decode(path)
    assert [each.name for each in file.executed if "cpu" in each.track] == ["fill_", "copy_"]
    mine = [each for each in file.slices if each.name == "fill_" and each.details.get("device") == "acme:0"]
    assert len([each for each in mine if not each.executed_ids]) == 3
    return mine


@pytest.mark.parametrize(
    ("name", "value"),
    [(name, value) for name, values in FAULTS.items() for value in values],
    ids=lambda value: repr(value).split(" at 0x")[0],
)
def test_faulty_marks_do_not_fail_the_trace(plugin, tmp_path, name, value):
    plugin.break_method("queue", name, value)
    fills = trace_fills(plugin, tmp_path / "made")
    assert all(each.details.get("execution") != "captured into a graph" for each in fills)


@pytest.mark.parametrize("fault", LOG_FAULTS.values(), ids=LOG_FAULTS)
def test_faulty_logs_do_not_fail_the_trace(plugin, tmp_path, fault):
    add_log(plugin, **fault)
    fills = trace_fills(plugin, tmp_path / "made")
    assert all(each.details.get("execution") != "captured into a graph" for each in fills)


def test_correct_log_is_traced(plugin, tmp_path):
    numbers = iter(range(1000))
    add_log(
        plugin,
        lambda self: next(numbers),
        lambda self, most: lambda numbers: [(each + 1, each + 2) for each in numbers],
    )
    trace_fills(plugin, tmp_path / "made")


def test_operation_without_a_mark_has_an_unknown_time(plugin, tmp_path):
    plugin.break_method("queue", "mark", raises(KeyError))
    fills = trace_fills(plugin, tmp_path / "made")
    assert all(each.details["execution"] == "unknown: the queue returned no mark" for each in fills)
