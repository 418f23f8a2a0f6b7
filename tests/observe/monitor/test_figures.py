"""The JSON form of figures: equal after reading, and refused where it is not valid."""

from __future__ import annotations

import json
from dataclasses import asdict

import pytest

from forebay.observe.monitor.figures import DeviceFigures, ProcessFigures, Readings, SiteFigures
from forebay.observe.monitor.live_stacks import LiveStacks

DEVICE = DeviceFigures(
    device="cuda:0", name="H200", emulated=True, capacity=None, allocated=1 << 60, reserved=2, peak=3, allocations=4,
    frees=5, retries=6, ooms=7, streams=8, busy_streams=1, readings=Readings(busy=0.25, temperature=31),
    sites=(SiteFigures("a.py:1 f", 10, 2, "numpy/a.py:1"),),
    stacks=LiveStacks(("a", "b"), (0, 1, 7), (0, 0), (1, 10, 2), 5, 1),
)  # fmt: skip
PROCESS = ProcessFigures(pid=7, program="a.py ü", seconds=1.5, taken_at=2.0, resident=9, devices=(DEVICE,))


def test_figures_are_equal_after_reading():
    assert ProcessFigures.from_json(PROCESS.to_json()) == PROCESS


def changed(path: str, value: object) -> str:
    """Return the JSON with one value replaced; an Ellipsis removes its key."""
    data = json.loads(json.dumps(asdict(PROCESS)))
    *parents, last = [int(part) if part.isdecimal() else part for part in path.split(".")]
    node = data
    for part in parents:
        node = node[part]
    if value is ...:
        del node[last]
    else:
        node[last] = value
    return json.dumps(data)


@pytest.mark.parametrize(
    ("path", "value", "place"),
    [
        ("pid", "7", "ProcessFigures.pid"),
        ("pid", True, "ProcessFigures.pid"),
        ("pid", ..., "ProcessFigures"),
        ("more", 1, "ProcessFigures"),
        ("seconds", float("nan"), "ProcessFigures.seconds"),
        ("devices", {}, "ProcessFigures.devices"),
        ("devices.0", [], r"ProcessFigures.devices\[0\]"),
        ("devices.0.capacity", 1.5, "capacity"),
        ("devices.0.readings", None, "readings"),
        ("devices.0.readings.busy", "0.5", "busy"),
        ("devices.0.sites.0.label", 1, r"sites\[0\].label"),
        ("resident", 10**400, "resident must be from 0"),
        ("resident", -1, "resident must be from 0"),
        ("seconds", 10**400, "seconds"),
        ("seconds", float("inf"), "seconds must be from 0"),
        ("devices.0.readings.power", 1 << 63, "power must be from 0"),
        ("devices.0.stacks.live", [-1], r"live\[0\] must be from 0"),
        ("devices.0.stacks.live", [0] * 500_001, "live has more than 500,000 items"),
        (
            "devices.0.sites",
            [{"label": "", "nbytes": 0, "count": 0, "library": ""}] * 1001,
            "sites has more than 1,000 items",
        ),
    ],
)
def test_other_types_and_keys_are_refused(path, value, place):
    with pytest.raises(ValueError, match=place):
        ProcessFigures.from_json(changed(path, value))


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "[" * 100_000, b"\xff\xfe"])
def test_text_that_is_not_an_object_is_refused(text):
    with pytest.raises(ValueError):  # noqa: PT011 - the text is of the JSON parser
        ProcessFigures.from_json(text)


def test_text_is_made_printable_and_shortened():
    found = ProcessFigures.from_json(changed("devices.0.device", "\x1b[2J\n[red]"))
    assert found.devices[0].device == r"\x1b[2J\x0a[red]"
    assert len(ProcessFigures.from_json(changed("program", "x" * 5000)).program) <= 1000


def test_integer_is_accepted_for_a_number_of_seconds():
    assert ProcessFigures.from_json(changed("seconds", 3)).seconds == 3.0
