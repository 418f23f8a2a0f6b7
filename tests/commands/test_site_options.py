"""Options about sites: the same in all commands that show them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.snapshot_scenes import MIB, Scene

from forebay.commands.cli import main
from forebay.snapshot.formats import native

PACKAGES = "/opt/conda/lib/python3.11/site-packages"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    scene = Scene()
    scene.allocate(3 * MIB, scene.stack("cli.py:1 main", "train.py:9 step", f"{PACKAGES}/pandas/a.py:4 take"))
    scene.allocate(2 * MIB, scene.stack("cli.py:1 main", "train.py:9 step", f"{PACKAGES}/scipy/b.py:5 solve"))
    scene.allocate(MIB, scene.stack("cli.py:1 main", "load.py:3 load"))
    path = tmp_path / "ranks" / "scene.forebay"
    path.parent.mkdir()
    native.write(scene.snapshot(), path)
    return path


@pytest.mark.parametrize(
    ("options", "labels"),
    [
        ((), ["train.py:9 step → pandas/a.py:4 take", "train.py:9 step → scipy/b.py:5 solve", "load.py:3 load"]),
        (
            ("--depth", "2", "--category", "loading=load"),
            ["(other)", "loading"],
        ),
        (("--library",), ["pandas/a.py:4 take", "scipy/b.py:5 solve", "load.py:3 load"]),
        (("--site", "scipy"), ["train.py:9 step", "scipy/b.py:5 solve", "load.py:3 load"]),
        (("--category", "science=pandas|scipy"), ["science", "(other)"]),
    ],
)
def test_explain_shows_the_chosen_sites(capsys, file, options, labels) -> None:
    assert main(["explain", str(file), "--json", *options]) == 0
    (found,) = json.loads(capsys.readouterr().out)
    assert [use["label"] for use in found["sites"]] == labels


def test_depth_adds_the_callers(capsys, file) -> None:
    assert main(["explain", str(file), "--json", "--depth", "2"]) == 0
    (found,) = json.loads(capsys.readouterr().out)
    assert found["sites"][-1]["label"] == "load.py:3 load, cli.py:1 main"


def test_diff_shows_the_chosen_sites(capsys, file) -> None:
    assert main(["diff", str(file), str(file), "--json", "--library"]) == 0
    (found,) = json.loads(capsys.readouterr().out)
    assert {site["label"] for site in found["sites"]} == {"pandas/a.py:4 take", "scipy/b.py:5 solve", "load.py:3 load"}


def test_ranks_show_the_chosen_sites(capsys, file) -> None:
    assert main(["ranks", str(file.parent), "--json", "--category", "all=."]) == 0
    assert json.loads(capsys.readouterr().out)["ranks"][0]["sites"] == [["all", 6 * MIB]]


def test_report_has_the_chosen_sites(capsys, file, tmp_path) -> None:
    page = tmp_path / "page.html"
    assert main(["report", str(file), "--output", str(page), "--category", "everything=."]) == 0
    assert '"sites":["(before recording)","(no stack)","(other)","everything"]' in page.read_text()


@pytest.mark.parametrize("command", [("explain",), ("report",), ("diff", "other.forebay"), ("view",), ("run",)])
@pytest.mark.parametrize(
    ("options", "text"),
    [
        (("--depth", "0"), "from 1 to 100"),
        (("--site", "["), "no regular expression"),
        (("--category", "loss"), "NAME=REGEX"),
    ],
)
def test_wrong_choice_is_one_error(capsys, monkeypatch, file, command, options, text) -> None:
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    monkeypatch.chdir(file.parent)
    name, *others = command
    assert main([name, *options, str(file), *others]) == 2
    assert text in capsys.readouterr().err
