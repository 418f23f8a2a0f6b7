"""Files: there and back, whole or not at all, and nothing believed that a stranger wrote."""

from __future__ import annotations

import contextlib
import io
import json
import pickle
import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from support.snapshot_scenes import Scene, steps, told, training

from forebay.errors import ForebayError
from forebay.snapshot.formats import native
from forebay.snapshot.formats.native import BadSnapshot
from forebay.snapshot.model import BLOCK, ENTRY, STACK, VERSION, Action, Snapshot, State

same_folder = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
TABLES = ("segments", "blocks", "trace", "stacks", "frames")
OLD = Path(__file__).parents[2] / "data/snapshots"


def assert_same(one: Snapshot, other: Snapshot) -> None:
    for name in TABLES:
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name))
    for name in ("device", "capacity", "taken_at_ns", "strings", "lost", "stats", "notes", "labels"):
        assert getattr(one, name) == getattr(other, name)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "a.forebay"


@pytest.fixture
def parts():
    """The members of a good file, to be spoiled."""
    whole = io.BytesIO()
    native._pack(training(2, 2), whole, None)
    with zipfile.ZipFile(whole) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def put(path, parts, kind=zipfile.ZIP_DEFLATED):
    with zipfile.ZipFile(path, "w", kind) as archive:
        for name, content in parts.items():
            archive.writestr(name, content)


def spoil(parts, **changes):
    parts["manifest.json"] = json.dumps(json.loads(parts["manifest.json"]) | changes).encode()


@same_folder
@given(steps, st.floats(0, 1), st.booleans())
def test_there_and_back(path, steps, lost, growing):
    snapshot = told(steps, lost, growing)
    native.write(snapshot, path)
    assert_same(native.read(path), snapshot)


def test_every_field_survives_strange_names_too(path):
    scene = Scene()
    scene.take(512, scene.stack("caf\u00e9\udc80\n\U0001f600.py:1 f"))
    snapshot = scene.snapshot(device="host:3", stats={"a.b": 7}, notes={"program": "x", "deep": [1, {"y": None}]})
    native.write(snapshot, path)
    assert_same(native.read(path), snapshot)


def test_labels_and_homes_survive(path):
    scene = Scene()
    scene.take(512)
    snapshot = scene.snapshot(labels=(("compiling f", ""), ("", "step 3\udc80")))
    snapshot.trace["note"], snapshot.trace["home"], snapshot.segments["home"] = [1, 2], 7, 7
    native.write(snapshot, path)
    assert_same(native.read(path), snapshot)


def test_a_file_of_version_1(path):
    """Written by forebay 0.1: columns that came later are zero, and it can be written as it is written now."""
    old = native.read(OLD / "version1.forebay")
    assert [Action(action).name for action in old.trace["action"]] == [
        "RESERVE", "TAKE", "RESERVE", "TAKE", "GIVE", "GIVEN", "OOM",
    ]  # fmt: skip
    assert old.blocks["state"].tolist() == [State.LIVE, State.FREE, State.FREE]
    assert [frame.name for frame in old.stack(int(old.trace["stack"][1]))] == ["weights", "main"]
    for column in (old.segments["home"], old.segments["growing"], old.trace["home"], old.trace["note"]):
        assert not column.any()
    assert (old.stats, old.notes, old.labels) == ({"num_ooms": 1}, {"program": "train.py"}, ())
    native.write(old, path)
    assert_same(native.read(path), old)


@pytest.mark.parametrize("name", ["segments/home.npy", "trace/note.npy"])
def test_a_version_has_the_columns_of_its_time(path, parts, name):
    spoil(parts, version=1)
    put(path, parts)
    with pytest.raises(BadSnapshot, match="missing, foreign"):
        native.read(path)
    spoil(parts, version=VERSION)
    del parts[name]
    put(path, parts)
    with pytest.raises(BadSnapshot, match="missing"):
        native.read(path)


def test_the_same_snapshot_makes_the_same_file(tmp_path):
    for name in "ab":
        native.write(training(2, 2), tmp_path / name)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_plain_numpy_can_read_it(path):
    snapshot = training(2, 2)
    native.write(snapshot, path)
    with np.load(path, allow_pickle=False) as file:
        np.testing.assert_array_equal(file["trace/nbytes"], snapshot.trace["nbytes"])


def test_progress_ends_at_the_end_both_ways(path):
    for use in (lambda tell: native.write(training(2, 2), path, tell), lambda tell: native.read(path, tell)):
        seen = []
        use(lambda done, total, seen=seen: seen.append((done, total)))
        assert seen == sorted(seen)
        assert seen[-1][0] == seen[-1][1] > 0


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError("disk full")])
def test_a_write_that_is_broken_off_leaves_what_was_there(path, error):
    path.write_text("older")

    def stop(done, total):
        raise error

    with pytest.raises((KeyboardInterrupt, OSError)):
        native.write(training(2, 2), path, stop)
    assert [file.name for file in path.parent.iterdir()] == [path.name]
    assert path.read_text() == "older"


@pytest.mark.parametrize(
    ("table", "column", "value", "words"),
    [
        ("trace", "stack", 9999, "the stack of a entry points outside"),
        ("trace", "action", 0, "no known action"),
        ("trace", "action", max(Action) + 1, "no known action"),
        ("trace", "note", 1, "the note of a entry points outside"),
        ("trace", "nbytes", 1 << 63, "sizes are out of range"),
        ("trace", "time_ns", 1 << 63, "time is out of range"),
        ("blocks", "state", 3, "no known state"),
        ("blocks", "segment", 9999, "the segment of a block points outside"),
        ("blocks", "address", 1, "overlap|outside its segment"),
        ("blocks", "nbytes", 1 << 40, "overlap|outside its segment"),
        ("blocks", "requested", 1 << 63, "requested sizes"),
        ("segments", "nbytes", (1 << 64) - 1, "out of range"),
        ("segments", "address", 1 << 62, "out of range"),
        ("frames", "file", 9999, "the file of a frame points outside"),
        ("stacks", "frame", 9999, "the frame of a stack points outside"),
        ("stacks", "parent", 1, "parent does not come before it"),
    ],
)
def test_what_makes_no_sense_is_neither_written_nor_read(path, parts, table, column, value, words):
    snapshot = training(2, 2)
    spoiled = getattr(snapshot, table).copy()
    spoiled[column][1] = value
    with pytest.raises(BadSnapshot, match=words):
        native.write(replace(snapshot, **{table: spoiled}), path)
    out = io.BytesIO()
    np.lib.format.write_array(out, np.ascontiguousarray(spoiled[column]), (1, 0))
    parts[f"{table}/{column}.npy"] = out.getvalue()
    put(path, parts)
    with pytest.raises(BadSnapshot, match=words):
        native.read(path)


def test_another_dtype_is_not_written(path):
    with pytest.raises(BadSnapshot, match="trace has another dtype"):
        native.write(replace(training(1, 1), trace=np.zeros(3, BLOCK)), path)
    assert ENTRY != BLOCK


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"format": "other"}, "not a forebay snapshot"),
        ({"version": VERSION + 1}, f"newer forebay .version {VERSION + 1}; this one reads up to {VERSION}"),
        ({"version": "1"}, "version is not a number"),
        ({"device": 3}, "device is missing or not a str"),
        ({"lost": -1}, "negative"),
        ({"capacity": 1 << 70}, "capacity is missing or not a 64-bit number"),
        ({"stats": {"x": True}}, "x is missing or not"),
        ({"strings": ["a", 3]}, "a string is not a string"),
        ({"strings": []}, "points outside its table"),
        ({"notes": []}, "notes is missing"),
        ({"labels": {}}, "labels is missing"),
        ({"labels": [["a"]]}, "a label is not two strings"),
        ({"labels": [["a", 3]]}, "a label is not two strings"),
        ({"labels": ["ab"]}, "a label is not two strings"),
        ({"rows": {}}, "how long the tables are"),
        ({"rows": dict.fromkeys(TABLES, 1 << 50)}, "cut short"),
        ({"rows": dict.fromkeys(TABLES, -1)}, "cut short"),
        ({"rows": dict.fromkeys(TABLES, 1)}, "holds uint"),
    ],
)
def test_a_manifest_that_is_wrong(path, parts, changes, words):
    spoil(parts, **changes)
    put(path, parts)
    with pytest.raises(BadSnapshot, match=words) as raised:
        native.read(path)
    assert str(path) in str(raised.value)
    assert isinstance(raised.value, ForebayError)
    assert isinstance(raised.value, ValueError)


@pytest.mark.parametrize("raw", [b"", b"{", b"[]", b"\xff", b"[" * 100_000])
def test_a_manifest_that_is_no_object(path, parts, raw):
    put(path, parts | {"manifest.json": raw})
    with pytest.raises(BadSnapshot):
        native.read(path)


@pytest.mark.parametrize("name", ["../../etc/passwd", "/etc/passwd", "trace/extra.npy"])
def test_foreign_members(path, parts, name):
    put(path, parts | {name: b"x"})
    with pytest.raises(BadSnapshot, match="foreign"):
        native.read(path)


def test_members_missing_twice_or_packed_in_a_foreign_way(path, parts):
    put(path, {name: content for name, content in parts.items() if name != "trace/nbytes.npy"})
    with pytest.raises(BadSnapshot, match="missing"):
        native.read(path)
    put(path, parts)
    with pytest.warns(UserWarning, match="Duplicate"), zipfile.ZipFile(path, "a") as archive:
        archive.writestr("trace/nbytes.npy", parts["trace/nbytes.npy"])
    with pytest.raises(BadSnapshot, match="twice"):
        native.read(path)
    put(path, parts, zipfile.ZIP_BZIP2)
    with pytest.raises(BadSnapshot, match="foreign way"):
        native.read(path)


@pytest.mark.parametrize(
    "content",
    [
        pickle.dumps(np.array([print], object)),
        b"\x93NUMPY\x01\x00\x10\x00{'descr': '|O', }",
        b"\x93NUMPY\x02\x00\x10\x00\x00\x00",
        b"\x93NUMPY\x01\x00\xff\xff" + b"(" * 65535,
    ],
)
def test_a_column_that_is_no_plain_array(path, parts, content):
    put(path, parts | {"trace/nbytes.npy": content.ljust(len(parts["trace/nbytes.npy"]))})
    with pytest.raises(BadSnapshot, match=r"trace/nbytes\.npy"):
        native.read(path)


def test_a_column_of_objects_is_never_unpickled(path, parts):
    out = io.BytesIO()
    np.lib.format.write_array(out, np.array([print] * 3000, object), (1, 0), allow_pickle=True)
    put(path, parts | {"trace/nbytes.npy": out.getvalue().ljust(len(parts["trace/nbytes.npy"]))})
    with pytest.raises(BadSnapshot, match="holds object"):
        native.read(path)


def test_a_column_longer_than_its_table(path, parts):
    put(path, parts | {"trace/nbytes.npy": parts["trace/nbytes.npy"] + b"\0" * 8})
    with pytest.raises(BadSnapshot, match="longer than"):
        native.read(path)


def test_a_bomb_is_told_by_its_size(path, parts):
    put(path, parts | {"trace/nbytes.npy": bytes(200 << 20)})
    assert path.stat().st_size < 1 << 20
    with pytest.raises(BadSnapshot, match="claims to unpack to"):
        native.read(path)


def test_a_history_of_a_million_equal_entries_is_no_bomb(path):
    trace = np.zeros(1_000_000, ENTRY)
    trace["action"] = 1
    native.write(replace(Scene().snapshot(), trace=trace), path)
    assert len(native.read(path).trace) == 1_000_000


def test_no_file_is_another_error(tmp_path):
    with pytest.raises(FileNotFoundError):
        native.read(tmp_path / "none.forebay")


WHOLE = io.BytesIO()
native._pack(training(1, 1), WHOLE, None)
size = len(WHOLE.getvalue())


@same_folder
@given(st.lists(st.tuples(st.integers(0, size - 1), st.integers(0, 255)), max_size=8), st.integers(0, size))
@example([], 0)
def test_any_damage_is_a_bad_snapshot_or_none(path, damage, end):
    raw = bytearray(WHOLE.getvalue())
    for at, byte in damage:
        raw[at] = byte
    path.write_bytes(raw[: end or size])
    with contextlib.suppress(BadSnapshot):
        native.check(native.read(path))


@same_folder
@given(st.binary(max_size=400))
def test_noise_is_a_bad_snapshot(path, noise):
    path.write_bytes(noise)
    with pytest.raises(BadSnapshot):
        native.read(path)


@same_folder
@given(st.binary(max_size=300), st.sampled_from(["manifest.json", "trace/time_ns.npy", "stacks/parent.npy"]))
def test_a_member_of_noise_is_a_bad_snapshot(path, noise, name):
    with zipfile.ZipFile(WHOLE) as archive:
        members = {each: archive.read(each) for each in archive.namelist()}
    put(path, members | {name: noise})
    with pytest.raises(BadSnapshot):
        native.read(path)


@given(st.lists(st.integers(0, 40), max_size=40))
def test_a_stack_always_ends(parents):
    """Whatever passes the check cannot go in circles."""
    stacks = np.array([(0, 0), *((parent, 0) for parent in parents)], STACK)
    scene = Scene()
    scene.stack("a.py:1 f")
    snapshot = replace(scene.snapshot(), stacks=stacks)
    try:
        native.check(snapshot)
    except BadSnapshot:
        return
    assert len(list(snapshot.stack(len(parents)))) <= len(parents)
