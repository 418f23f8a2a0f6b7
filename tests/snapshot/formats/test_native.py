"""forebay's snapshot format: round trips, atomic writes, and rejection of damaged or malicious files."""

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
from support.snapshot_scenes import Scene, random_history, steps, training

from forebay.errors import ForebayError
from forebay.records.model import BLOCK, ENTRY, STACK, VERSION, Action, Snapshot, State
from forebay.snapshot.formats import native
from forebay.snapshot.formats.native import BadSnapshot

same_folder = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
TABLES = ("segments", "blocks", "trace", "stacks", "frames")
OLD_FILES = Path(__file__).parents[2] / "data/snapshots"


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
    """The members of a valid file, to be damaged."""
    whole = io.BytesIO()
    native._pack(training(2, 2), whole, None)
    with zipfile.ZipFile(whole) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def write_zip(path, parts, kind=zipfile.ZIP_DEFLATED):
    with zipfile.ZipFile(path, "w", kind) as archive:
        for name, content in parts.items():
            archive.writestr(name, content)


def damage(parts, **changes):
    parts["manifest.json"] = json.dumps(json.loads(parts["manifest.json"]) | changes).encode()


@same_folder
@given(steps, st.floats(0, 1), st.booleans())
def test_snapshot_round_trip(path, steps, lost, growing):
    snapshot = random_history(steps, lost, growing)
    native.write(snapshot, path)
    assert_same(native.read(path), snapshot)


def test_round_trip_of_unusual_names(path):
    scene = Scene()
    scene.allocate(512, scene.stack("caf\u00e9\udc80\n\U0001f600.py:1 f"))
    snapshot = scene.snapshot(device="cpu:3", stats={"a.b": 7}, notes={"program": "x", "deep": [1, {"y": None}]})
    native.write(snapshot, path)
    assert_same(native.read(path), snapshot)


def test_round_trip_of_annotations_and_pools(path):
    scene = Scene()
    scene.allocate(512)
    snapshot = scene.snapshot(labels=(("compiling f", ""), ("", "step 3\udc80")))
    snapshot.trace["note"], snapshot.trace["pool"], snapshot.segments["pool"] = [1, 2], 7, 7
    native.write(snapshot, path)
    assert_same(native.read(path), snapshot)


def test_version_1_file_is_read(path):
    """Written by forebay 0.1: later columns are zero, and the snapshot can be written in the current format."""
    old = native.read(OLD_FILES / "version1.forebay")
    assert old.trace["action"].tolist() == [
        Action.RESERVE, Action.ALLOC, Action.RESERVE, Action.ALLOC, Action.FREE_REQUESTED,
        Action.FREE_COMPLETED, Action.OOM,
    ]  # fmt: skip
    assert old.blocks["state"].tolist() == [State.LIVE, State.FREE, State.FREE]
    assert [frame.name for frame in old.stack(int(old.trace["stack"][1]))] == ["weights", "main"]
    for column in (old.segments["pool"], old.segments["growing"], old.trace["pool"], old.trace["note"]):
        assert not column.any()
    assert (old.stats, old.notes, old.labels) == ({"num_ooms": 1}, {"program": "train.py"}, ())
    native.write(old, path)
    assert_same(native.read(path), old)


@pytest.mark.parametrize("name", ["segments/home.npy", "trace/note.npy"])
def test_columns_must_match_version(path, parts, name):
    damage(parts, version=1)
    write_zip(path, parts)
    with pytest.raises(BadSnapshot, match="missing, unknown"):
        native.read(path)
    damage(parts, version=VERSION)
    del parts[name]
    write_zip(path, parts)
    with pytest.raises(BadSnapshot, match="missing"):
        native.read(path)


def test_file_is_deterministic(tmp_path):
    for name in "ab":
        native.write(training(2, 2), tmp_path / name)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_file_is_readable_with_numpy(path):
    snapshot = training(2, 2)
    native.write(snapshot, path)
    with np.load(path, allow_pickle=False) as file:
        np.testing.assert_array_equal(file["trace/nbytes"], snapshot.trace["nbytes"])


def test_progress_is_reported_up_to_the_total(path):
    for call in (lambda report: native.write(training(2, 2), path, report), lambda report: native.read(path, report)):
        seen = []
        call(lambda done, total, seen=seen: seen.append((done, total)))
        assert seen == sorted(seen)
        assert seen[-1][0] == seen[-1][1] > 0


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError("disk full")])
def test_interrupted_write_keeps_old_file(path, error):
    path.write_text("older")

    def stop(done, total):
        raise error

    with pytest.raises((KeyboardInterrupt, OSError)):
        native.write(training(2, 2), path, stop)
    assert [file.name for file in path.parent.iterdir()] == [path.name]
    assert path.read_text() == "older"


@pytest.mark.parametrize(
    ("table", "column", "value", "message"),
    [
        ("trace", "stack", 9999, "the stack of an entry is not in its table"),
        ("trace", "action", 0, "unknown action"),
        ("trace", "action", max(Action) + 1, "unknown action"),
        ("trace", "note", 1, "the note of an entry is not in its table"),
        ("trace", "nbytes", 1 << 63, "the sizes in trace are out of range"),
        ("trace", "time_ns", 1 << 63, "time is out of range"),
        ("blocks", "state", 3, "unknown state"),
        ("blocks", "segment", 9999, "the segment of a block is not in its table"),
        ("blocks", "address", 1, "overlap|outside its segment"),
        ("blocks", "nbytes", 1 << 40, "overlap|outside its segment"),
        ("blocks", "requested", 1 << 63, "requested sizes"),
        ("segments", "nbytes", (1 << 64) - 1, "out of range"),
        ("segments", "address", 1 << 62, "out of range"),
        ("frames", "file", 9999, "the file of a frame is not in its table"),
        ("stacks", "frame", 9999, "the frame of a stack is not in its table"),
        ("stacks", "parent", 1, "parent does not precede it"),
    ],
)
def test_inconsistent_snapshot_is_neither_written_nor_read(path, parts, table, column, value, message):
    snapshot = training(2, 2)
    damaged = getattr(snapshot, table).copy()
    damaged[column][1] = value
    with pytest.raises(BadSnapshot, match=message):
        native.write(replace(snapshot, **{table: damaged}), path)
    out = io.BytesIO()
    np.lib.format.write_array(out, np.ascontiguousarray(damaged[column]), (1, 0))
    parts[f"{table}/{column}.npy"] = out.getvalue()
    write_zip(path, parts)
    with pytest.raises(BadSnapshot, match=message):
        native.read(path)


def test_wrong_dtype_is_not_written(path):
    with pytest.raises(BadSnapshot, match="trace does not have the dtype of the schema"):
        native.write(replace(training(1, 1), trace=np.zeros(3, BLOCK)), path)
    assert ENTRY != BLOCK


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"format": "other"}, "not a forebay snapshot"),
        ({"version": VERSION + 1}, f"newer forebay .version {VERSION + 1}; this one reads up to {VERSION}"),
        ({"version": "1"}, "version is not a positive integer"),
        ({"device": 3}, "device is missing or not a str"),
        ({"lost": -1}, "negative"),
        ({"capacity": 1 << 70}, "capacity is missing or not a 64-bit integer"),
        ({"stats": {"x": True}}, "x is missing or not"),
        ({"strings": ["a", 3]}, "an item of strings is not a string"),
        ({"strings": []}, "is not in its table"),
        ({"notes": []}, "notes is missing"),
        ({"labels": {}}, "labels is missing"),
        ({"labels": [["a"]]}, "a label is not a pair of strings"),
        ({"labels": [["a", 3]]}, "a label is not a pair of strings"),
        ({"labels": ["ab"]}, "a label is not a pair of strings"),
        ({"rows": {}}, "the lengths of the tables"),
        ({"rows": dict.fromkeys(TABLES, 1 << 50)}, "truncated"),
        ({"rows": dict.fromkeys(TABLES, -1)}, "truncated"),
        ({"rows": dict.fromkeys(TABLES, 1)}, "holds 15 of"),
    ],
)
def test_invalid_manifest_is_rejected(path, parts, changes, message):
    damage(parts, **changes)
    write_zip(path, parts)
    with pytest.raises(BadSnapshot, match=message) as raised:
        native.read(path)
    assert str(path) in str(raised.value)
    assert isinstance(raised.value, ForebayError)
    assert isinstance(raised.value, ValueError)


@pytest.mark.parametrize("raw", [b"", b"{", b"[]", b"\xff", b"[" * 100_000])
def test_manifest_that_is_not_an_object_is_rejected(path, parts, raw):
    write_zip(path, parts | {"manifest.json": raw})
    with pytest.raises(BadSnapshot):
        native.read(path)


@pytest.mark.parametrize("name", ["../../etc/passwd", "/etc/passwd", "trace/extra.npy"])
def test_unknown_members_are_rejected(path, parts, name):
    write_zip(path, parts | {name: b"x"})
    with pytest.raises(BadSnapshot, match="unknown"):
        native.read(path)


def test_missing_duplicate_and_unsupported_members_are_rejected(path, parts):
    write_zip(path, {name: content for name, content in parts.items() if name != "trace/nbytes.npy"})
    with pytest.raises(BadSnapshot, match="missing"):
        native.read(path)
    write_zip(path, parts)
    with pytest.warns(UserWarning, match="Duplicate"), zipfile.ZipFile(path, "a") as archive:
        archive.writestr("trace/nbytes.npy", parts["trace/nbytes.npy"])
    with pytest.raises(BadSnapshot, match="duplicated"):
        native.read(path)
    write_zip(path, parts, zipfile.ZIP_BZIP2)
    with pytest.raises(BadSnapshot, match="unsupported compression"):
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
def test_invalid_column_is_rejected(path, parts, content):
    write_zip(path, parts | {"trace/nbytes.npy": content.ljust(len(parts["trace/nbytes.npy"]))})
    with pytest.raises(BadSnapshot, match=r"trace/nbytes\.npy"):
        native.read(path)


def test_column_of_objects_is_not_unpickled(path, parts):
    out = io.BytesIO()
    np.lib.format.write_array(out, np.array([print] * 3000, object), (1, 0), allow_pickle=True)
    write_zip(path, parts | {"trace/nbytes.npy": out.getvalue().ljust(len(parts["trace/nbytes.npy"]))})
    with pytest.raises(BadSnapshot, match=r"invalid \.npy header"):
        native.read(path)


def test_column_longer_than_table_is_rejected(path, parts):
    write_zip(path, parts | {"trace/nbytes.npy": parts["trace/nbytes.npy"] + b"\0" * 8})
    with pytest.raises(BadSnapshot, match="longer than"):
        native.read(path)


@pytest.mark.slow
def test_zip_bomb_is_rejected_by_size(path, parts):
    write_zip(path, parts | {"trace/nbytes.npy": bytes(200 << 20)})
    assert path.stat().st_size < 1 << 20
    with pytest.raises(BadSnapshot, match=r"unsupported \.npy version"):
        native.read(path)


@pytest.mark.slow
def test_million_equal_entries_are_accepted(path):
    trace = np.zeros(1_000_000, ENTRY)
    trace["action"] = 1
    native.write(replace(Scene().snapshot(), trace=trace), path)
    assert len(native.read(path).trace) == 1_000_000


def test_missing_file_raises_os_error(tmp_path):
    with pytest.raises(FileNotFoundError):
        native.read(tmp_path / "none.forebay")


WHOLE = io.BytesIO()
native._pack(training(1, 1), WHOLE, None)
size = len(WHOLE.getvalue())


@same_folder
@given(st.lists(st.tuples(st.integers(0, size - 1), st.integers(0, 255)), max_size=8), st.integers(0, size))
@example([], 0)
def test_damaged_file_raises_only_bad_snapshot(path, changes, end):
    raw = bytearray(WHOLE.getvalue())
    for at, byte in changes:
        raw[at] = byte
    path.write_bytes(raw[: end or size])
    with contextlib.suppress(BadSnapshot):
        native.check(native.read(path))


@same_folder
@given(st.binary(max_size=400))
def test_random_bytes_raise_bad_snapshot(path, noise):
    path.write_bytes(noise)
    with pytest.raises(BadSnapshot):
        native.read(path)


@same_folder
@given(st.binary(max_size=300), st.sampled_from(["manifest.json", "trace/time_ns.npy", "stacks/parent.npy"]))
def test_random_bytes_in_a_member_raise_bad_snapshot(path, noise, name):
    with zipfile.ZipFile(WHOLE) as archive:
        members = {each: archive.read(each) for each in archive.namelist()}
    write_zip(path, members | {name: noise})
    with pytest.raises(BadSnapshot):
        native.read(path)


@given(st.lists(st.integers(0, 40), max_size=40))
def test_checked_stacks_are_not_circular(parents):
    stacks = np.array([(0, 0), *((parent, 0) for parent in parents)], STACK)
    scene = Scene()
    scene.stack("a.py:1 f")
    snapshot = replace(scene.snapshot(), stacks=stacks)
    try:
        native.check(snapshot)
    except BadSnapshot:
        return
    assert len(list(snapshot.stack(len(parents)))) <= len(parents)
