"""`forebay diff`: tables, JSON, the HTML page, and error messages."""

from __future__ import annotations

import json

import pytest
from support.snapshot_programs import dumped, program
from support.snapshot_scenes import training

from forebay.commands.cli import main
from forebay.snapshot.formats import native


@pytest.fixture
def files(tmp_path):
    """Two runs of a training program, the second one longer."""
    paths = tmp_path / "before.forebay", tmp_path / "after.forebay"
    for path, steps in zip(paths, (3, 8), strict=True):
        native.write(training(steps=steps), path)
    return paths


def diff(capsys, *arguments: object) -> str:
    assert main(["diff", *map(str, arguments)]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    return out


def test_grown_sites_are_printed(capsys, files):
    out = diff(capsys, *files)
    assert "The peak of live memory grew by" in out
    assert "engine/metrics.py:27 History.append" in out
    assert "+170.00 MiB" in out  # 34 MiB in each of five steps
    assert "\x1b" not in out


def test_comparison_is_printed_as_json(capsys, files):
    (found,) = json.loads(diff(capsys, *files, "--json"))
    grown = {site["label"].rpartition("/")[2]: site for site in found["sites"]}["metrics.py:27 History.append"]
    assert [held["blocks"] for held in grown["end"]] == [3, 8]


def test_page_is_written(capsys, files, tmp_path):
    page = tmp_path / "diff.html"
    assert diff(capsys, *files, "--html", page).strip() == str(page)
    text = page.read_text()
    assert "<h1>before.forebay and after.forebay</h1>" in text
    assert "History.append" in text


def test_timelines_and_call_stacks_are_compared(capsys, files):
    out = diff(capsys, *files, "--stacks", "2")
    assert "Live memory over time" in out
    assert "█" in out
    assert "Call stacks that changed at the peak" in out
    assert " ← " in out
    (found,) = json.loads(diff(capsys, *files, "--stacks=2", "--json"))
    assert len(found["timelines"]["before"]) == len(found["timelines"]["after"]) == 240
    assert {len(each["frames"]) for each in found["stacks"]} <= {1, 2}
    assert main(["diff", *map(str, files)]) == 0
    assert "Call stacks" not in capsys.readouterr().out


def test_devices_are_compared_by_name(capsys, tmp_path):
    both, other = program(1, steps=100), program(2, steps=100, index=1)
    both["segments"] += other["segments"]
    both["device_traces"] += other["device_traces"][1:]
    (tmp_path / "both.pickle").write_bytes(dumped(both))
    (tmp_path / "one.pickle").write_bytes(dumped(program(3, steps=100, index=1)))
    out = diff(capsys, tmp_path / "both.pickle", tmp_path / "both.pickle")
    assert ("Memory of cuda:0" in out, "Memory of cuda:1" in out) == (True, True)
    out = diff(capsys, tmp_path / "both.pickle", tmp_path / "one.pickle")
    assert ("Memory of cuda:0" in out, "Memory of cuda:1" in out) == (False, True)


def test_errors_are_reported_in_one_line(capsys, files, tmp_path):
    both, other = program(1, steps=100), program(2, steps=100, index=1)
    both["segments"] += other["segments"]
    both["device_traces"] += other["device_traces"][1:]
    (tmp_path / "both.pickle").write_bytes(dumped(both))
    for arguments, words in (
        ([files[0], "nosuch"], "cannot read the snapshot 'nosuch'"),
        ([files[0], tmp_path / "both.pickle"], "the files share no device: "),
        ([*files, "--html", tmp_path / "no" / "such.html"], "cannot write"),
    ):
        assert main(["diff", *map(str, arguments)]) == 2
        out, err = capsys.readouterr()
        assert (out, err.count("\n")) == ("", 1)
        assert words in err
