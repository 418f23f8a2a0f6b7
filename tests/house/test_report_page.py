"""The built files of the pages: they are in the package, and building them needs a recent Node.js and ziglang."""

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


@pytest.fixture
def page(tool, monkeypatch, tmp_path):
    """Return a folder with built files that the tool compares, of which the sources have not changed."""
    monkeypatch.setattr(tool, "PAGE", tmp_path)
    monkeypatch.setattr(tool, "ROOT", tmp_path)
    monkeypatch.setattr(tool, "READER", tmp_path / "reader.wasm")
    monkeypatch.setattr(tool, "RECORD", tmp_path / "reader.txt")
    monkeypatch.setattr(tool, "missing_tool", lambda: "")
    monkeypatch.setattr(tool, "compiler_version", lambda: "")
    (tmp_path / "viewer.js").write_bytes(b"old")
    (tmp_path / "reader.txt").write_text(f"{tool.inputs_hash()} 1.0\n")
    return tmp_path


def test_missing_npm_is_named(tool, page, monkeypatch, capsys):
    monkeypatch.undo()
    monkeypatch.setattr(tool.shutil, "which", lambda name: None)
    monkeypatch.setattr(tool, "check_reader", lambda **_: None)
    assert tool.main([]) == 0
    assert capsys.readouterr().out == "the scripts of the page are not rebuilt: npm was not found\n"


@pytest.mark.parametrize(
    ("version", "words"), [("v18.20.4", "Node.js is v18.20.4, and Vite needs 20.19"), ("v20.19.0", "")]
)
def test_old_node_is_named(tool, monkeypatch, version, words):
    monkeypatch.setattr(tool.shutil, "which", lambda name: name)
    answer = subprocess.CompletedProcess([], 0, f"{version}\n")
    monkeypatch.setattr(tool.subprocess, "run", lambda *arguments, **options: answer)
    assert tool.missing_tool() == words


@pytest.mark.parametrize(("built", "arguments"), [(b"new", ["--write"]), (b"old", [])])
def test_script_is_compared_and_replaced(tool, page, monkeypatch, built, arguments):
    monkeypatch.setattr(tool, "build", lambda target: {"viewer.js": built})
    assert tool.main(arguments) == 0
    assert (page / "viewer.js").read_bytes() == built


def test_other_script_than_the_built_one_is_an_error(tool, page, monkeypatch):
    monkeypatch.setattr(tool, "build", lambda target: {"viewer.js": b"other"})
    with pytest.raises(SystemExit, match=r"viewer\.js is not what its sources build"):
        tool.main([])


def test_reader_in_the_package_has_the_current_sources(tool):
    """A change of native/pickle needs a new reader, also where no compiler is installed."""
    assert tool.RECORD.read_text().split()[0] == tool.inputs_hash()


@pytest.mark.parametrize("compiler", ["", "0.9"])
def test_changed_source_of_the_reader_is_an_error_without_its_compiler(tool, page, monkeypatch, compiler):
    monkeypatch.setattr(tool, "compiler_version", lambda: compiler)
    tool.check_reader(is_written=False)
    (page / "native/pickle").mkdir(parents=True)
    (page / "native/pickle/new.hpp").write_text("//")
    with pytest.raises(SystemExit, match=r"the sources of reader\.wasm have changed"):
        tool.check_reader(is_written=False)


def test_reader_is_built_by_its_compiler(tool, page, monkeypatch):
    monkeypatch.setattr(tool, "compiler_version", lambda: "1.0")
    monkeypatch.setattr(tool, "call", lambda what, command, *_, **__: tool.Path(command[-1]).write_bytes(b"built"))
    with pytest.raises(SystemExit, match=r"reader\.wasm is not what its sources build"):
        tool.check_reader(is_written=False)
    tool.check_reader(is_written=True)
    tool.check_reader(is_written=False)
    assert (page / "reader.wasm").read_bytes() == b"built"
