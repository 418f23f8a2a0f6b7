"""`forebay replay`: tables, JSON output and error messages."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from dataclasses import replace

import pytest
from support.snapshot_programs import MIB, dumped, program

import forebay
from forebay import OutOfMemory, simulate
from forebay.commands import snapshot_files as command
from forebay.commands.cli import main
from forebay.snapshot.formats import native
from forebay.snapshot.replay import engine, recorded_heaps


@pytest.fixture
def recording(tmp_path):
    """A PyTorch pickle of a program with three streams that never runs out of memory."""
    path = tmp_path / "run.pickle"
    path.write_bytes(dumped(program(streams=3, total=1 << 40)))
    return path


@pytest.fixture
def full(tmp_path):
    """A pickle that ends out of memory: 60 MiB on a device of 96, with 2 MiB live in a segment of 40."""
    gpu = simulate.Device(96 * MIB)
    gpu.record_history()
    gpu.free(gpu.allocate(40 * MIB))
    gpu.allocate(2 * MIB)
    with pytest.raises(OutOfMemory):
        gpu.allocate(60 * MIB)
    path = tmp_path / "full.pickle"
    path.write_bytes(dumped(gpu.snapshot()))
    return path


def replay(capsys, *arguments: object) -> tuple[int, str]:
    status = main(["replay", *map(str, arguments)])
    out, err = capsys.readouterr()
    assert err == ""
    return status, out


def test_recorded_statistics_are_printed(capsys, recording):
    status, out = replay(capsys, recording)
    assert status == 0
    assert "cuda:0: " in out
    assert " allocations and frees in " in out
    assert "as recorded" in out
    assert "\x1b" not in out  # no colors in a pipe


def test_passing_check_is_reported(capsys, recording):
    status, out = replay(capsys, recording, "--check")
    placed, of, total, *rest = next(line for line in out.splitlines() if "placed" in line).split()
    assert (status, placed == total, of, rest) == (0, True, "of", ["allocations", "placed", "as", "recorded"])


def test_failed_check_reports_first_difference(capsys, recording):
    value = pickle.loads(recording.read_bytes())
    entry = next(entry for entry in value["device_traces"][0] if entry["action"] == "alloc")
    entry["addr"] += 512
    recording.write_bytes(dumped(value))
    status, out = replay(capsys, recording, "--check")
    assert status == 1
    assert f", recorded at {entry['addr']:#x}" in out
    assert (
        json.loads(replay(capsys, recording, "--check", "--json")[1])[0]["check"]["first"]["recorded"] == entry["addr"]
    )


def test_other_settings_are_compared(capsys, full):
    status, out = replay(capsys, full, "--settings=expandable_segments:True", "--settings", "max_split_size_mb:64")
    assert status == 0
    rows = [line for line in out.splitlines() if "MiB" in line]
    same, grown, split = (next(row for row in rows if word in row) for word in ("the same", "expandable", "max_split"))
    assert "at entry 5, and continued" in same
    assert grown.rstrip().endswith("no")
    assert "at entry 5" in split
    assert "Replayed with 96.00 MiB of memory" in out


def test_replay_is_printed_as_json(capsys, full):
    status, out = replay(capsys, full, "--json", "--memory=200MiB", "--settings", "expandable_segments:True")
    assert status == 0
    (result,) = json.loads(out)
    assert (result["device"], result["memory"], result["check"]) == ("cuda:0", 96 * MIB, None)
    assert [each["ran_out"] for each in result["replays"]] == [None, None]
    assert [each["memory"] for each in result["replays"]] == [200 * MIB] * 2
    assert result["replays"][1]["settings"] == "expandable_segments:True"


def test_forebay_snapshot_is_replayed(capsys, recording, tmp_path):
    from forebay.snapshot import load

    (snapshot,) = load(recording)
    path = tmp_path / "own.forebay"
    native.write(snapshot, path)
    assert replay(capsys, path, "--check") == replay(capsys, recording, "--check")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("", "the following arguments are required: SNAPSHOT"),
        ("nosuch", "cannot read the snapshot 'nosuch': No such file or directory"),
        ("/", "cannot read the snapshot '/': Is a directory"),
        ("a\0b", "cannot read the snapshot 'a\\x00b': "),
        (__file__, "neither a forebay snapshot nor a PyTorch snapshot pickle"),
        ("x --settings foo:1", "argument --settings: 'foo:1': Unrecognized key 'foo'"),
        ("x --settings max_split_size_mb:1", "max_split_size_mb too small, must be >= 20"),
        ("x --settings max_split_size_mb", "argument --settings: 'max_split_size_mb': "),
        ("x --settings max_split_size_mb:1e99", "argument --settings: 'max_split_size_mb:1e99': "),
        ("x --memory lots", "argument --memory: 'lots' is not a size"),
        ("x --speed 3", "unrecognized arguments: --speed 3"),
    ],
)
def test_invalid_arguments_are_reported_in_one_line(capsys, arguments, words):
    try:
        status = main(["replay", *filter(None, arguments.split(" "))])
    except SystemExit as error:
        status = error.code
    out, err = capsys.readouterr()
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert err.startswith("forebay: error: ")
    assert words in err


def test_pickle_that_names_a_function_is_rejected(capsys, tmp_path):
    path = tmp_path / "attack.pickle"
    path.write_bytes(pickle.dumps(print))
    assert main(["replay", str(path)]) == 2
    assert capsys.readouterr().err == f"forebay: error: {path}: not plain data: at byte 30 it names a global\n"


def remarks(out: str) -> list[str]:
    return [line.strip() for line in out.splitlines() if line.rstrip().endswith(".")]


def test_assumed_settings_and_dropped_entries_are_remarked(capsys, tmp_path):
    value = program(steps=300, entries=100)
    del value["allocator_settings"]
    path = tmp_path / "short.pickle"
    path.write_bytes(dumped(value))
    first, *others = remarks(replay(capsys, path)[1])
    assert first == "The file does not contain the settings of the recording; the defaults are assumed."
    assert others == []
    from forebay.snapshot import load

    (snapshot,) = load(path)
    native.write(replace(snapshot, lost=1234), tmp_path / "short.forebay")
    (_, dropped) = remarks(replay(capsys, tmp_path / "short.forebay")[1])
    assert dropped == "The ring buffer dropped the first 1,234 entries."


def test_recorded_settings_are_remarked(capsys, tmp_path):
    path = tmp_path / "set.pickle"
    path.write_bytes(dumped(program(settings="max_split_size_mb:64", steps=50)))
    assert remarks(replay(capsys, path)[1]) == ["Recorded with max_split_size_mb:64."]


def test_memory_too_small_for_the_initial_blocks_is_reported(capsys, tmp_path):
    path = tmp_path / "begun.pickle"
    path.write_bytes(dumped(program(steps=400, begin=200)))
    status, out = replay(capsys, path, "--memory=2MiB")
    (row,) = [line for line in out.splitlines() if "the same, replayed" in line]
    assert (status, row.split()[-3:]) == (0, ["at", "the", "start"])
    (result,) = json.loads(replay(capsys, path, "--memory=2MiB", "--json")[1])
    assert [each["ran_out"] for each in result["replays"]] == [-1]


@pytest.mark.parametrize(("learned", "words"), [(1, "1 fact about the initial state, "), (1234, "1,234 facts about ")])
def test_inferred_facts_are_counted(capsys, monkeypatch, recording, learned, words):
    check = engine.check
    monkeypatch.setattr(engine, "check", lambda *arguments: replace(check(*arguments), learned=learned))
    assert words in replay(capsys, recording, "--check")[1]


def test_too_many_pools_are_refused(capsys, monkeypatch, tmp_path):
    path = tmp_path / "pools.pickle"
    path.write_bytes(dumped(program(pools=3, steps=100)))
    monkeypatch.setattr(recorded_heaps, "_MAX_POOLS", 3)
    for options in ([], ["--check"]):
        assert main(["replay", str(path), *options]) == 2
        error = "forebay: error: cannot replay cuda:0: it has 4 private pools, more than 3\n"
        assert capsys.readouterr() == ("", error)


def test_missing_memory_is_reported(capsys, monkeypatch, recording):
    def load(path, progress):
        raise MemoryError

    monkeypatch.setattr("forebay.snapshot.load", load)
    assert main(["replay", str(recording)]) == 2
    error = f"forebay: error: cannot read the snapshot {str(recording)!r}: not enough memory\n"
    assert capsys.readouterr() == ("", error)


def test_progress_is_shown_on_a_terminal_only_for_long_histories(capsys, monkeypatch):
    def shown(entries: int) -> str:
        with command.progress_bar("re[b]ading\x1b", entries) as progress:
            if progress is not None:
                progress(1, 2)
                half = capsys.readouterr().err
                progress(0, 0)  # of an empty file
                return half
        return capsys.readouterr().err

    monkeypatch.setenv("TERM", "xterm")
    assert shown(command.LONG) == ""  # not a terminal
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert shown(command.LONG - 1) == ""
    half = shown(command.LONG)
    assert "re[b]ading" in half
    assert "\x1b " not in half.partition("re[b]ading")[2][:8]
    assert "50%" in half


@pytest.mark.slow
def test_closed_pipe_prints_no_traceback(recording):
    command = [sys.executable, "-m", "forebay", "replay", str(recording)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.stdout.close()
        assert process.stderr.read() == b""


@pytest.fixture
def heaps(tmp_path):
    """A snapshot of 20 MiB on an MPS device in a heap of 1 GiB, where another 20 MiB fail; also as a PyTorch pickle."""
    path = tmp_path / "heaps.forebay"
    with forebay.emulate("mps", memory="2GiB"):
        forebay.memory.record_history(device="mps")
        forebay.memory.set_per_process_memory_fraction(0.6, "mps")
        held = [forebay.allocate(20 * MIB, "mps")]
        with pytest.raises(OutOfMemory, match=r"With PYTORCH_MPS_HIGH_WATERMARK_RATIO=2\.0 the request succeeds"):
            forebay.allocate(20 * MIB, "mps")
        native.write(forebay.memory.snapshot("mps"), path)
        path.with_suffix(".pickle").write_bytes(dumped(forebay.memory.memory_snapshot("mps")))
        held.clear()
    return path


@pytest.mark.parametrize("kind", [".forebay", ".pickle"])
def test_heaps_are_replayed_as_heaps(capsys, heaps, kind):
    heaps = heaps.with_suffix(kind)
    settings = ("high_watermark_ratio:0.6,low_watermark_ratio:0.1", "high_watermark_ratio:0.0")
    status, out = replay(capsys, heaps, "--json", *(word for text in settings for word in ("--settings", text)))
    (result,) = json.loads(out)
    assert (status, result["settings"]) == (0, "high_watermark_ratio:0.6,low_watermark_ratio:1.4")
    same, small, unlimited = result["replays"]
    assert (same["peak_reserved"], same["device_allocs"]) == (result["peak_reserved"], 1) == (1 << 30, 1)
    assert same["ran_out"] is not None
    assert small["ran_out"] is not None  # 20 MiB are less than a tenth of the memory, so the heap is still as large
    assert unlimited["ran_out"] is None


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--check",), "cannot check mps:0: it allocates in heaps, and only segments can be compared"),
        (("--settings", "max_split_size_mb:64"), "mps:0: 'max_split_size_mb:64' is not a setting of heaps"),
    ],
)
def test_segment_options_are_rejected_for_heaps(capsys, heaps, arguments, words):
    assert main(["replay", str(heaps), *arguments]) == 2
    assert words in capsys.readouterr().err


def test_heap_settings_are_rejected_for_segments(capsys, recording):
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
def test_invalid_notes_are_ignored(capsys, heaps, tmp_path, notes):
    from forebay.snapshot import load

    (snapshot,) = load(heaps)
    path = tmp_path / "strange.forebay"
    native.write(replace(snapshot, notes={**snapshot.notes, **notes}), path)
    status, out = replay(capsys, path, "--json")
    assert (status, json.loads(out)[0]["settings"]) == (0, None)
