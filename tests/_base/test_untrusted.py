"""Text and files from other people: nothing controls the terminal, and only regular files are opened."""

from __future__ import annotations

import os
import socket

import pytest

from forebay import snapshot
from forebay._base.untrusted import open_regular, printable, shortened


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[2J", r"\x1b[2J"), ("a\nb\r", r"a\x0ab\x0d"), ("\u202etxt", r"\u202etxt"), ("\ud800", r"\ud800"),
        ("\x9b", r"\x9b"), ("naïve 値 \N{GRINNING FACE}", "naïve 値 \N{GRINNING FACE}"),
    ],
)  # fmt: skip
def test_control_characters_are_shown_as_escape_sequences(text, shown):
    assert printable(text) == shown


def test_long_text_keeps_beginning_and_end():
    assert shortened("a" * 100 + "end", 12) == "aaaaaaa…aend"


@pytest.mark.parametrize("reader", [open_regular, snapshot.load])
def test_special_files_are_refused(reader, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(str(tmp_path / "socket"))
    for path in (tmp_path, tmp_path / "pipe", tmp_path / "socket", "/dev/zero"):
        with pytest.raises(OSError, match=r"regular|directory|No such device"):
            reader(path)
    listening.close()
