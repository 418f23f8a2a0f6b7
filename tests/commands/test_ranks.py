"""`forebay ranks`: text, JSON, the HTML page, and error messages."""

from __future__ import annotations

import json

import pytest
from support.snapshot_programs import dumped, fragmented
from support.snapshot_scenes import MIB, Scene

from forebay.commands.cli import main
from forebay.snapshot.formats import native


@pytest.fixture
def folder(tmp_path):
    for number in range(5):
        made = Scene()
        made.allocate((10 + 20 * (number == 3)) * MIB, made.stack("model.py:4 layer"))
        native.write(made.snapshot(), tmp_path / f"rank{number}.forebay")
    (tmp_path / "rank5.pickle").write_bytes(b"\x80\x04broken")
    (tmp_path / "notes.txt").write_text("not a snapshot")
    return tmp_path


def ranks(capsys, *arguments: object) -> str:
    assert main(["ranks", *map(str, arguments)]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    return out


def test_ranks_are_compared(capsys, folder):
    out = ranks(capsys, folder)
    assert out.startswith("5 ranks\n")
    assert "model.py:4 layer" in out
    assert "1 file could not be read" in out
    assert "notes.txt" not in out
    assert all(len(line) <= 100 for line in out.splitlines())


def test_truncated_ranks_are_marked(capsys, folder):
    content = dumped(fragmented(70, 60).snapshot())
    (folder / "rank6.pickle").write_bytes(content[: len(content) * 2 // 3])
    out = ranks(capsys, folder)
    assert "A file marked “*” is truncated: its newest entries are missing." in out
    rows = [line.split() for line in out.partition("All ranks")[2].splitlines()]
    assert [row[0] for row in rows if row and row[-1].endswith("*")] == ["rank6.pickle"]


def test_comparison_is_printed_as_json(capsys, folder):
    found = json.loads(ranks(capsys, folder, "--json", "--pattern", "rank[0-3]*"))
    assert [rank["peak"] for rank in found["ranks"]] == [10 * MIB] * 3 + [30 * MIB]
    assert found["outliers"][0]["label"] == "model.py:4 layer"
    assert found["skew"] == 2.0


def test_page_is_written(capsys, folder, tmp_path):
    page = tmp_path / "ranks.html"
    assert ranks(capsys, folder, "--html", page).strip() == str(page)
    assert f"<h1>Ranks in {folder.name}</h1>" in page.read_text()


@pytest.mark.slow
def test_processes_give_the_same_text(capsys, folder):
    assert ranks(capsys, folder, "--jobs", "2") == ranks(capsys, folder, "--jobs", "1")


def test_errors_are_reported(capsys, folder):
    for arguments, words in (
        (["nosuch"], "cannot list 'nosuch': No such file or directory"),
        ([folder, "--pattern", "*.nothing"], "contains no snapshot (*.nothing); choose other names with --pattern"),
    ):
        assert main(["ranks", *map(str, arguments)]) == 2
        assert words in capsys.readouterr().err
    assert main(["ranks", str(folder), "--pattern", "*.pickle"]) == 1
    assert "No rank could be read" in capsys.readouterr().out
