"""Files that commands write: a snapshot that they read is never replaced, nor a file that forebay has not made."""

from __future__ import annotations

import io
import os
import pickle
import zipfile

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


def test_snapshot_that_is_read_is_not_replaced_with_overwrite(snapshot, capsys):
    assert main(["report", str(snapshot), "--output", str(snapshot), "--overwrite"]) == 2
    assert "is one of the snapshots" in capsys.readouterr().err


def archive():
    written = io.BytesIO()
    with zipfile.ZipFile(written, "w") as file:
        file.writestr("thesis.txt", "text")
    return written.getvalue()


FOREIGN = {
    "text": b"text",
    "page": b"<!doctype html>\n<html>thesis",
    "source": b"import torch\n",
    "json": b'{"name": "x"}',
    "binary": b"\x00\xff" * 2000,
    "archive": archive(),
    "recording of PyTorch": pickle.dumps({"segments": [], "device_traces": []}, protocol=4),
    "table": b"PAR1" + bytes(100) + b"PAR1",
}
OUTPUTS = {
    "report": lambda path, output: ("report", path, "--output", output),
    "diff": lambda path, output: ("diff", path, path, "--html", output),
    "ranks": lambda path, output: ("ranks", path.parent, "--pattern", "rank*", "--html", output),
    **{
        name: lambda path, output, name=name: ("convert", path, output, "--to", name)
        for name in ("forebay", "pickle", "perfetto", "speedscope", "flamegraph", "folded", "parquet")
    },
}


@pytest.mark.parametrize("command", OUTPUTS.values(), ids=OUTPUTS)
def test_file_that_forebay_has_not_made_is_replaced_only_with_overwrite(snapshot, tmp_path, capsys, command):
    (tmp_path / "rank1.forebay").write_bytes(snapshot.read_bytes())
    output = tmp_path / "output"
    arguments = [str(each) for each in command(snapshot, output)]
    for content in FOREIGN.values():
        output.write_bytes(content)
        assert main(arguments) == 2
        error = capsys.readouterr().err
        assert "was not made by forebay: choose another name, or replace it with --overwrite" in error
        assert error.count("\n") == 1
        assert output.read_bytes() == content
    assert main([*arguments, "--overwrite"]) == 0
    assert output.read_bytes() not in FOREIGN.values()


@pytest.mark.parametrize("name", OUTPUTS)
def test_file_of_an_earlier_run_and_an_empty_file_are_replaced(snapshot, tmp_path, capsys, name):
    (tmp_path / "rank1.forebay").write_bytes(snapshot.read_bytes())
    output = tmp_path / ("output.folded" if name == "folded" else "output")
    output.touch()
    arguments = [str(each) for each in OUTPUTS[name](snapshot, output)]
    for _ in range(2):
        assert main(arguments) == 0, capsys.readouterr().err
        assert output.stat().st_size > 0


@pytest.mark.skipif(os.name != "posix", reason="a pipe is a file of POSIX")
def test_device_is_written_and_a_folder_refused(snapshot, tmp_path, capsys):
    assert main(["report", str(snapshot), "--output", os.devnull]) == 0
    assert main(["report", str(snapshot), "--output", str(tmp_path)]) == 2
    assert "directory" in capsys.readouterr().err


def test_trace_of_a_run_replaces_no_other_file(tmp_path, capsys):
    output, program = tmp_path / "notes", tmp_path / "program.py"
    output.write_text("notes")
    program.write_text("print(1)")
    assert main(["run", "--output", str(tmp_path / "report"), "--trace", str(output), str(program)]) == 2
    assert "--trace" in capsys.readouterr().err
    assert output.read_text() == "notes"
    assert not (tmp_path / "report").exists()
