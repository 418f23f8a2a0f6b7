"""`forebay replay`: what it says, to people and to programs, and to those who mistype."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys

import pytest
from support.snapshot_programs import MIB, dumped, program

import forebay
from forebay import OutOfMemory, simulate
from forebay.cli import main
from forebay.snapshot.formats import native


@pytest.fixture
def recording(tmp_path):
    """A pickle of PyTorch's kind: a program of three streams, whose memory never runs out."""
    path = tmp_path / "run.pickle"
    path.write_bytes(dumped(program(streams=3, total=1 << 40)))
    return path


@pytest.fixture
def full(tmp_path):
    """One that ends out of memory: 60 MiB on a device of 96, of which 2 MiB in a segment of 40 are in use."""
    gpu = simulate.Device(96 * MIB)
    gpu.record_history()
    gpu.free(gpu.allocate(40 * MIB))
    gpu.allocate(2 * MIB)
    with pytest.raises(OutOfMemory):
        gpu.allocate(60 * MIB)
    path = tmp_path / "full.pickle"
    path.write_bytes(dumped(gpu.snapshot()))
    return path


def said(capsys, *arguments: object) -> tuple[int, str]:
    status = main(["replay", *map(str, arguments)])
    out, err = capsys.readouterr()
    assert err == ""
    return status, out


def test_it_says_what_was_recorded(capsys, recording):
    status, out = said(capsys, recording)
    assert status == 0
    assert "cuda:0: " in out
    assert " allocations and frees in " in out
    assert "as recorded" in out
    assert "\x1b" not in out  # no colours in a pipe


def test_a_check_that_holds(capsys, recording):
    status, out = said(capsys, recording, "--check")
    placed, of, total, *rest = next(line for line in out.splitlines() if "placed" in line).split()
    assert (status, placed == total, of, rest) == (0, True, "of", ["allocations", "placed", "as", "recorded"])


def test_a_check_that_does_not_hold_names_the_first_difference_and_fails(capsys, recording):
    value = pickle.loads(recording.read_bytes())
    entry = next(entry for entry in value["device_traces"][0] if entry["action"] == "alloc")
    entry["addr"] += 512
    recording.write_bytes(dumped(value))
    status, out = said(capsys, recording, "--check")
    assert status == 1
    assert f"and was recorded at {entry['addr']:#x}" in out
    assert json.loads(said(capsys, recording, "--check", "--json")[1])[0]["check"]["first"]["recorded"] == entry["addr"]


def test_what_other_settings_would_have_done(capsys, full):
    """GIVEN a run that died, WHEN replayed with growing segments, THEN it would not have."""
    status, out = said(capsys, full, "--settings=expandable_segments:True", "--settings", "max_split_size_mb:64")
    assert status == 0
    rows = [line for line in out.splitlines() if "MiB" in line]
    same, grown, split = (next(row for row in rows if word in row) for word in ("the same", "expandable", "max_split"))
    assert "at entry 5, and went on" in same
    assert grown.rstrip().endswith("no")
    assert "at entry 5" in split
    assert "Replayed with 96.00 MiB of memory" in out


def test_the_same_for_programs(capsys, full):
    status, out = said(capsys, full, "--json", "--memory=200MiB", "--settings", "expandable_segments:True")
    assert status == 0
    (told,) = json.loads(out)
    assert (told["device"], told["memory"], told["check"]) == ("cuda:0", 96 * MIB, None)
    assert [replay["ran_out"] for replay in told["replays"]] == [None, None]
    assert [replay["memory"] for replay in told["replays"]] == [200 * MIB] * 2
    assert told["replays"][1]["settings"] == "expandable_segments:True"


def test_a_file_of_forebays_own_is_replayed_too(capsys, recording, tmp_path):
    from forebay.snapshot import load

    (snapshot,) = load(recording)
    path = tmp_path / "own.forebay"
    native.write(snapshot, path)
    assert said(capsys, path, "--check") == said(capsys, recording, "--check")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("", "the following arguments are required: SNAPSHOT"),
        ("nosuch", "cannot read the snapshot 'nosuch': No such file or directory"),
        ("/", "cannot read the snapshot '/': Is a directory"),
        ("a\0b", "cannot read the snapshot 'a\\x00b': "),
        (__file__, "neither a snapshot of forebay's nor a pickle of PyTorch's"),
        ("x --settings foo:1", "argument --settings: 'foo:1': Unrecognized key 'foo'"),
        ("x --settings max_split_size_mb:1", "max_split_size_mb too small, must be >= 20"),
        ("x --settings max_split_size_mb", "argument --settings: 'max_split_size_mb': "),
        ("x --settings max_split_size_mb:1e99", "argument --settings: 'max_split_size_mb:1e99': "),
        ("x --memory lots", "argument --memory: 'lots' is not a size"),
        ("x --speed 3", "unrecognized arguments: --speed 3"),
    ],
)
def test_mistakes_are_told_in_one_line(capsys, arguments, words):
    try:
        status = main(["replay", *filter(None, arguments.split(" "))])
    except SystemExit as error:
        status = error.code
    out, err = capsys.readouterr()
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert err.startswith("forebay: error: ")
    assert words in err


def test_a_pickle_that_would_run_something_is_refused(capsys, tmp_path):
    path = tmp_path / "attack.pickle"
    path.write_bytes(pickle.dumps(print))
    assert main(["replay", str(path)]) == 2
    assert capsys.readouterr().err == f"forebay: error: {path}: not plain data: at byte 30 it names a global\n"


def test_a_reader_that_is_gone_gets_no_traceback(recording):
    command = [sys.executable, "-m", "forebay", "replay", str(recording)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.stdout.close()
        assert process.stderr.read() == b""


@pytest.fixture
def heaps(tmp_path):
    """20 MiB on an MPS device, for which 1 GiB came: then no other 20 may be had. Also in PyTorch's schema."""
    path = tmp_path / "heaps.forebay"
    with forebay.emulate("mps", memory="2GiB"):
        forebay.memory.record_history(device="mps")
        forebay.memory.set_per_process_memory_fraction(0.6, "mps")
        held = [forebay.allocate(20 * MIB, "mps")]
        with pytest.raises(OutOfMemory, match=r"Under PYTORCH_MPS_HIGH_WATERMARK_RATIO=2\.0 the 1 recorded events"):
            forebay.allocate(20 * MIB, "mps")
        native.write(forebay.memory.snapshot("mps"), path)
        path.with_suffix(".pickle").write_bytes(dumped(forebay.memory.memory_snapshot("mps")))
        held.clear()
    return path


@pytest.mark.parametrize("kind", [".forebay", ".pickle"])
def test_heaps_are_replayed_as_heaps(capsys, heaps, kind):
    heaps = heaps.with_suffix(kind)
    settings = ("high_watermark_ratio:0.6,low_watermark_ratio:0.1", "high_watermark_ratio:0.0")
    status, out = said(capsys, heaps, "--json", *(word for text in settings for word in ("--settings", text)))
    (told,) = json.loads(out)
    assert (status, told["settings"]) == (0, "high_watermark_ratio:0.6,low_watermark_ratio:1.4")
    same, small, unlimited = told["replays"]
    assert (same["peak_reserved"], same["device_allocs"]) == (told["peak_reserved"], 1) == (1 << 30, 1)
    assert same["ran_out"] is not None
    assert small["ran_out"] is not None  # 20 MiB are less than a tenth: the heap is as large
    assert unlimited["ran_out"] is None


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--check",), "the memory of mps:0 came as heaps: addresses are compared in segments only"),
        (("--settings", "max_split_size_mb:64"), "mps:0: 'max_split_size_mb:64' is not a setting of heaps"),
    ],
)
def test_what_is_meant_for_segments_is_not_for_heaps(capsys, heaps, arguments, words):
    assert main(["replay", str(heaps), *arguments]) == 2
    assert words in capsys.readouterr().err


def test_what_is_meant_for_heaps_is_not_for_segments(capsys, recording):
    assert main(["replay", str(recording), "--settings", "high_watermark_ratio:1"]) == 2
    assert "Unrecognized key 'high_watermark_ratio'" in capsys.readouterr().err


@pytest.mark.parametrize(
    "notes",
    [
        {"heaps": {"size": 1}},
        {"heaps": 3},
        {"heaps": {"recommended": "1 GiB", "longest": 1}},
        {"heaps": {"recommended": 1 << 61, "longest": 1 << 61}},
        {"watermarks": "low:x"},
    ],
    ids=str,
)
def test_notes_that_make_no_sense_are_as_good_as_none(capsys, heaps, tmp_path, notes):
    from dataclasses import replace

    from forebay.snapshot import load

    (snapshot,) = load(heaps)
    path = tmp_path / "strange.forebay"
    native.write(replace(snapshot, notes={**snapshot.notes, **notes}), path)
    status, out = said(capsys, path, "--json")
    assert (status, json.loads(out)[0]["settings"]) == (0, None)
