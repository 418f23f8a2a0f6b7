"""Shared functions of the commands for snapshot files: a snapshot is never replaced by a command that reads it."""

from __future__ import annotations

import pytest
from support.synthetic_history import synthetic

from forebay.commands.cli import main
from forebay.snapshot.formats import native


@pytest.fixture
def snapshot(tmp_path):
    native.write(synthetic(300), tmp_path / "rank0.forebay")
    return tmp_path / "rank0.forebay"


@pytest.mark.parametrize("other_name", [False, True])
@pytest.mark.parametrize(
    "command",
    [
        lambda path, output: ("convert", path, output, "--to", "pickle"),
        lambda path, output: ("report", path, "--output", output),
        lambda path, output: ("diff", path, path, "--html", output),
        lambda path, output: ("ranks", path.parent, "--pattern", "rank0*", "--html", output),
    ],
)
def test_snapshot_that_is_read_is_not_replaced(snapshot, tmp_path, capsys, command, other_name):
    output = tmp_path / "link" if other_name else snapshot
    if other_name:
        output.symlink_to(snapshot)
    before = snapshot.read_bytes()
    assert main([str(each) for each in command(snapshot, output)]) == 2
    assert "is one of the snapshots: choose another name" in capsys.readouterr().err
    assert snapshot.read_bytes() == before
