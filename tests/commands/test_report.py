"""`forebay report`: the page of one or several files, its name, and error messages."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.page_columns import devices
from support.snapshot_programs import dumped, program
from support.snapshot_scenes import Scene, training

from forebay.commands.cli import main
from forebay.snapshot.formats import native


@pytest.fixture
def recording(tmp_path, monkeypatch):
    """A PyTorch pickle in the current directory."""
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "run.pickle"
    path.write_bytes(dumped(program(streams=3, total=1 << 40)))
    return path


def names(path):
    return [device["name"] for device in devices(path.read_text("utf-8"))]


def error_of(capsys, *arguments):
    assert main(["report", *map(str, arguments)]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    return err


def test_page_of_a_pickle_is_written_to_the_current_directory(capsys, recording):
    assert main(["report", str(recording)]) == 0
    assert capsys.readouterr() == ("report.html\n", "")
    assert names(recording.with_name("report.html")) == ["cuda:0"]


def test_page_of_several_files_names_the_files(capsys, recording, tmp_path):
    native.write(replace(training(), device="cuda:0"), tmp_path / "b.forebay")
    assert main(["report", "run.pickle", "b.forebay", "--output", "both.html"]) == 0
    assert names(tmp_path / "both.html") == ["run.pickle · cuda:0", "b.forebay · cuda:0 · out of memory"]


def test_files_of_the_same_name_are_told_apart_by_their_folders(capsys, recording, tmp_path):
    (tmp_path / "other").mkdir()
    (tmp_path / "other/run.pickle").write_bytes(recording.read_bytes())
    assert main(["report", "run.pickle", "other/run.pickle"]) == 0
    assert names(tmp_path / "report.html") == ["run.pickle · cuda:0", "other/run.pickle · cuda:0"]


def test_unused_devices_are_left_out(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    native.write(Scene().snapshot(device="cuda:7"), tmp_path / "unused.forebay")
    assert main(["report", "unused.forebay"]) == 0
    assert names(tmp_path / "report.html") == ["cuda:7"]


@pytest.mark.parametrize(("opens", "status"), [(True, 0), (False, 2)])
def test_browser_is_opened_on_request(capsys, recording, monkeypatch, opens, status):
    shown = []
    monkeypatch.setattr("webbrowser.open", lambda address: shown.append(address) or opens)
    assert main(["report", str(recording), "--open"]) == status
    assert shown == [recording.with_name("report.html").as_uri()]
    assert ("no browser could be started" in capsys.readouterr().err) is not opens


def test_snapshot_is_not_replaced_by_the_page(capsys, recording):
    before = recording.read_bytes()
    assert "is one of the snapshots" in error_of(capsys, recording, "--output", recording)
    assert recording.read_bytes() == before


def test_errors_are_one_line(capsys, recording, tmp_path):
    assert "cannot read the snapshot" in error_of(capsys, tmp_path / "absent.pickle")
    assert "cannot write the page" in error_of(capsys, recording, "--output", tmp_path / "no/folder/page.html")
    recording.write_bytes(b"no snapshot")
    assert error_of(capsys, recording).count("\n") == 1
