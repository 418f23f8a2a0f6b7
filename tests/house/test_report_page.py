"""The built script of the report page: it is in the package, and rebuilding it needs a recent Node.js."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.fixture
def tool(root, monkeypatch):
    monkeypatch.syspath_prepend(root / "tools")
    yield pytest.importorskip("report_page")
    for name in ("report_page", "steps"):
        sys.modules.pop(name, None)


def test_missing_npm_is_named(tool, monkeypatch, capsys):
    monkeypatch.setattr(tool.shutil, "which", lambda name: None)
    assert tool.main([]) == 0
    assert capsys.readouterr().out == "explorer.js is not rebuilt: npm was not found\n"


@pytest.mark.parametrize(
    ("version", "words"), [("v18.20.4", "Node.js is v18.20.4, and Vite needs 20.19"), ("v20.19.0", "")]
)
def test_old_node_is_named(tool, monkeypatch, version, words):
    monkeypatch.setattr(tool.shutil, "which", lambda name: name)
    answer = subprocess.CompletedProcess([], 0, f"{version}\n")
    monkeypatch.setattr(tool.subprocess, "run", lambda *arguments, **options: answer)
    assert tool.missing_tool() == words


@pytest.mark.parametrize(("built", "arguments", "written"), [(b"new", ["--write"], b"new"), (b"old", [], b"old")])
def test_script_is_compared_and_replaced(tool, monkeypatch, tmp_path, built, arguments, written):
    script = tmp_path / "explorer.js"
    script.write_bytes(b"old")
    monkeypatch.setattr(tool, "SCRIPT", script)
    monkeypatch.setattr(tool, "missing_tool", lambda: "")
    monkeypatch.setattr(tool, "build", lambda target: built)
    assert tool.main(arguments) == 0
    assert script.read_bytes() == written


def test_other_script_than_the_built_one_is_an_error(tool, monkeypatch):
    monkeypatch.setattr(tool, "missing_tool", lambda: "")
    monkeypatch.setattr(tool, "build", lambda target: b"other")
    with pytest.raises(SystemExit, match=r"explorer\.js is not what report-page/ builds"):
        tool.main([])
