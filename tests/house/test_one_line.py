"""The lines of docs/one-line.md, each executed in an empty folder with an empty home."""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path

import pytest
from support.beside import TORCH, needs_torch

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def one_lines():
    with pytest.MonkeyPatch.context() as patched:
        patched.syspath_prepend(ROOT / "tools")
        yield importlib.import_module("one_lines")


def place(one_lines, tmp_path):
    folder, home = tmp_path / "project", tmp_path / "home"
    folder.mkdir()
    home.mkdir()
    one_lines.make_files(folder)
    return folder, home


def run_all(one_lines, tmp_path, python, *, with_torch):
    folder, home = place(one_lines, tmp_path)
    packages = [] if with_torch else [each for each in sys.path if each.endswith("site-packages")]
    failed, count = {}, 0
    for line in one_lines.lines():
        if line.with_torch == with_torch:
            count += 1
            done = one_lines.execute(line, python, folder, home, [str(ROOT / "src"), *packages])
            if done.returncode:
                failed[line.command] = done.stdout + done.stderr
    assert failed == {}
    assert {each.name for each in home.iterdir()} <= {".cache"}  # of PyTorch; forebay writes nothing there
    return count


def test_each_line_works_in_an_empty_environment(one_lines, tmp_path):
    assert run_all(one_lines, tmp_path, sys.executable, with_torch=False) == 14


@needs_torch
def test_each_line_with_pytorch_works_in_an_empty_environment(one_lines, tmp_path):
    assert run_all(one_lines, tmp_path, str(TORCH), with_torch=True) == 6


def test_page_names_each_file_once_and_the_readme_names_the_page(one_lines):
    commands = " ".join(line.command for line in one_lines.lines())
    assert [name for name in one_lines.FILES if name not in commands] == []
    assert "docs/one-line.md" in (ROOT / "README.md").read_text()
    assert os.path.exists(one_lines.SNAPSHOT)  # noqa: PTH110 -- of a module that is not typed here
