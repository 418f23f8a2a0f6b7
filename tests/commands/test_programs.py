"""The program of `fit` and `run` on the command line."""

from __future__ import annotations

import argparse
import os
import sys

import pytest

from forebay.commands import CommandError, programs


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder that is the only one on PATH."""
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "bin"


def command(folder, name, text):
    (folder / name).write_text(text)
    (folder / name).chmod(0o755)
    return str(folder / name)


def resolve(*argv, form=None):
    return programs.argv_of(argparse.Namespace(form=form, program=[*argv]), "fit")


def test_command_on_path_is_its_script(folder):
    path = command(folder, "trl", f"#!{sys.executable}\nimport sys\n")
    assert resolve("trl", "sft", "--model", "x") == (None, [path, "sft", "--model", "x"])


@pytest.mark.parametrize("first", ["#!/usr/bin/env python3", "#!/bin/sh"])
def test_command_of_any_python_on_path_is_its_script(folder, first):
    path = command(folder, "trl", f"{first}\n'''exec' python \"$0\" \"$@\"\n' '''\n")
    assert resolve("trl") == (None, [path])


def test_file_is_preferred_to_a_command(folder, tmp_path):
    command(folder, "train", f"#!{sys.executable}\n")
    (tmp_path / "train").write_text("")
    assert resolve("train") == (None, ["train"])


def test_torchrun_without_its_script_is_its_module(folder, monkeypatch):
    monkeypatch.setattr(programs.sys, "executable", str(folder / "python"))
    monkeypatch.setattr(programs, "find_spec", lambda name: name == "torch" or None)
    assert resolve("torchrun", "--nproc-per-node", "2", "x.py") == (
        "module", ["torch.distributed.run", "--nproc-per-node", "2", "x.py"],
    )  # fmt: skip


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("#!/opt/other/bin/python3\n", "belongs to another Python, /opt/other/bin/python3"),
        ("#!/usr/bin/perl\n", "is not a Python program"),
        ("\x7fELF", "is not a Python program"),
        ("", "is not a Python program"),
    ],
)
def test_command_that_cannot_be_run_is_refused(folder, text, message):
    command(folder, "other", text)
    with pytest.raises(CommandError, match=message):
        resolve("other")


def test_path_is_no_command(folder):
    assert resolve("./torchrun") == (None, ["./torchrun"])
    with pytest.raises(CommandError, match="there is no such file"):
        programs.python_arguments(None, ["./torchrun"])


def test_module_of_the_working_directory_is_found(folder, tmp_path):
    (tmp_path / "mine.py").write_text("")
    assert programs.python_arguments("module", ["mine", "-x"]) == ("-m", "mine", "-x")
    assert os.path.lexists("mine.py")


@pytest.mark.parametrize(
    ("mode", "is_default", "word"),
    [
        ("shapes", True, "as --compute was not given"),
        ("shapes", False, "as --shapes-only was given"),
        ("strict", False, "--strict"),
        ("compute", False, "With values"),
    ],
)
def test_first_line_says_what_was_computed(mode, is_default, word):
    sentence = programs.mode_sentence(mode, is_default=is_default)
    assert word in sentence
    assert len(sentence) <= 80
