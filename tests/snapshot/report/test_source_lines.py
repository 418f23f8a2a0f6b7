"""Source lines: only of the user's own files that are at hand and unchanged."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from forebay.records.model import Frame
from forebay.snapshot.report.source_lines import source_line


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.write_text("import torch\n\n    logits = model(x)  \x1b[2J\n")
    os.utime(path, ns=(1000, 1000))
    return path


def test_line_of_the_users_own_file(program) -> None:
    assert source_line(Frame(str(program), "main", 3), 2000) == r"logits = model(x)  \x1b[2J"
    assert source_line(Frame(str(program), "main", 1), 0) == "import torch"


def test_file_that_changed_after_the_snapshot_has_no_line(program) -> None:
    os.utime(program, ns=(3000, 3000))
    assert source_line(Frame(str(program), "main", 3), 2000) == ""


@pytest.mark.parametrize("line", [0, -1, 4, 1 << 40])
def test_line_outside_of_the_file(program, line) -> None:
    assert source_line(Frame(str(program), "main", line), 0) == ""


def test_other_files_are_not_read(program, tmp_path) -> None:
    secret = tmp_path / "id_rsa"
    secret.write_text("secret\n")
    pipe = tmp_path / "pipe.py"
    os.mkfifo(pipe)
    package = tmp_path / "site-packages" / "x.py"
    package.parent.mkdir()
    package.write_text("secret\n")
    for path in (secret, pipe, package, tmp_path / "missing.py", Path("train.py"), Path("/dev/zero"), Path("a\0.py")):
        assert source_line(Frame(str(path), "f", 1), 0) == ""
