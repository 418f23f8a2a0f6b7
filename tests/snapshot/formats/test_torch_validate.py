"""Validation of plain values: each type and range is checked with a text, before anything is converted."""

from __future__ import annotations

import pickle

import pytest
from support.snapshot_programs import dumped, minimal_snapshot

from forebay.snapshot.formats import native, torch_pickle
from forebay.snapshot.formats.budget import BadSnapshot, Budget
from forebay.snapshot.formats.torch_decode import Decoded
from forebay.snapshot.formats.torch_validate import checked_devices


def checked(value, budget=None):
    return [*checked_devices(Decoded(value, budget or Budget()))]


def test_values_are_checked_and_not_converted():
    (device,) = checked(minimal_snapshot())
    assert device.segments.pools.tolist() == [[0, 3]]
    assert device.entries.pools.tolist() == [[0, 3], [0, 3]]
    assert device.entries.times.tolist() == [1_700_000_000_000_000] * 2
    assert [*device.stacks.frames] == [("train.py", "main", 3, ()), ("net.py", "forward", 7, ())]
    assert [[*frames] for frames in device.stacks] == [[], [0, 1]]
    assert device.blocks.stacks.tolist() == [1, 0]


def test_devices_are_validated_one_after_another():
    value = minimal_snapshot()
    value["segments"].append({"device": 1})
    found = checked_devices(Decoded(value, Budget()))
    assert next(found).name == "cuda:0"
    with pytest.raises(BadSnapshot, match="a segment's address is missing"):
        next(found)


@pytest.mark.parametrize(
    ("key", "wrong", "error"),
    [
        ("action", 7, "an entry's action is not a string"), ("size", None, "an entry's size is not a number"),
        ("stream", -1, "an entry's stream is out of range"), ("time_us", 1 << 52, "an entry's time is out of range"),
        ("frames", 7, "frames are not a list"), ("frames", [7], "a frame is not a dict"),
        ("frames", [{"line": "1"}], "a frame's line is not a number"),
        ("frames", [{"name": 1}], "a text is not a string"),
        ("pool_id", (1,), "a pool's id is not a pair of numbers"), ("pool_id", (1, -1), "a pool's id is out of range"),
        ("user_metadata", [1], "a text is not a string"),
    ],
)  # fmt: skip
def test_error_names_the_value(key, wrong, error):
    value = minimal_snapshot()
    value["device_traces"][0][1][key] = wrong
    with pytest.raises(BadSnapshot, match=f"^{error}$"):
        checked(value)


def test_frames_are_counted_before_they_are_kept():
    frames = [{"filename": "a.py", "name": "f", "line": line} for line in range(1000)]
    entry = {"action": "alloc", "addr": 0, "size": 1, "frames": frames}
    with pytest.raises(BadSnapshot, match="more memory"):
        checked({"segments": [], "device_traces": [[entry]]}, Budget(100_000))


@pytest.mark.parametrize("key", ["device_traces", "host_traces"])
def test_history_of_two_devices_is_refused(key):
    trace = [{"action": action, "addr": 1, "size": 1, "stream": 0, "frames": []} for action in ("unknown", "alloc")]
    value = {"segments": [], "device_traces": [trace]}
    value[key] = [trace, trace] if key == "device_traces" else trace
    for data in (pickle.dumps(value), pickle.dumps(value, 0)):  # in columns, and as plain values
        with pytest.raises(BadSnapshot, match="two devices share their history"):
            torch_pickle.parse(data)


def test_shared_lists_are_rejected():
    """A list that is stored once but referenced a million times must not be expanded."""
    blocks = minimal_snapshot()["segments"][0]["blocks"] * 1000
    many = [minimal_snapshot()["segments"][0] | {"blocks": blocks, "address": at << 40} for at in range(1, 1000)]
    with pytest.raises(BadSnapshot, match="two segments share their blocks"):
        checked(minimal_snapshot(segments=many))
    trace = minimal_snapshot()["device_traces"][0] * 1000
    with pytest.raises(BadSnapshot, match="two devices share their history"):
        checked(minimal_snapshot(device_traces=[trace] * 1000))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("segments", None), ("segments", {}), ("segments", [1]), ("segments", "text"), ("device_traces", 7),
        ("device_traces", [[[]]]), ("device_traces", [{}]), ("device_traces", [[{}]]),
        ("device_traces", [[{"action": 7}]]), ("device_traces", [[{"action": "alloc"}]]),
        ("device_traces", [[]] * 5000),
    ],
)  # fmt: skip
def test_other_schema_is_rejected(key, value):
    with pytest.raises(BadSnapshot):
        checked(minimal_snapshot(**{key: value}))


WRONG_VALUES = [None, -1, 1 << 70, 1.5, "7", b"7", [], {}, True, (1,), [[]]]


@pytest.mark.parametrize("wrong", WRONG_VALUES, ids=repr)
def test_value_of_wrong_type_raises_only_bad_snapshot(wrong):

    def places(value, path=()):
        if isinstance(value, dict):
            for key, inner in value.items():
                yield from places(inner, (*path, key))
        elif isinstance(value, list):
            for number, inner in enumerate(value):
                yield from places(inner, (*path, number))
        yield path

    for path in filter(None, places(minimal_snapshot())):
        value = pickle.loads(dumped(minimal_snapshot()))
        inner = value
        for step in path[:-1]:
            inner = inner[step]
        inner[path[-1]] = wrong
        try:
            snapshots = torch_pickle.snapshots(value)
        except BadSnapshot:
            continue
        for found in snapshots:
            native.check(found)
