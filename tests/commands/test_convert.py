"""The command `convert`: each format from each format, by suffix or --to, with errors in one line."""

from __future__ import annotations

import json
import sys
from dataclasses import replace

import duckdb
import pytest
from support.annotated_history import annotated
from support.equal_snapshots import assert_equal
from support.perfetto_files import decode
from support.snapshot_programs import dumped
from support.synthetic_history import synthetic

from forebay import snapshot
from forebay.commands import cli, convert
from forebay.snapshot.analysis.timeline import reconstruct
from forebay.snapshot.formats import native, torch_writer


@pytest.fixture(scope="module")
def history():
    return synthetic(3_000, out_of_memory=True)


@pytest.fixture
def path(history, tmp_path):
    native.write(history, tmp_path / "in.forebay")
    return tmp_path / "in.forebay"


def run(*arguments):
    return cli.main(["convert", *map(str, arguments)])


def test_snapshot_survives_both_of_its_formats(path, tmp_path, history, capsys):
    assert run(path, tmp_path / "a.pickle") == 0
    assert run(tmp_path / "a.pickle", tmp_path / "b.forebay") == 0
    (found,) = snapshot.load(tmp_path / "b.forebay")
    assert_equal(found, replace(history, notes=found.notes))
    assert f"wrote {tmp_path / 'b.forebay'} (forebay): 3,000 entries of cuda:0" in capsys.readouterr().out


def test_perfetto_has_the_counters_and_events(path, tmp_path, history):
    assert run(path, tmp_path / "a.pftrace") == 0
    found = decode(tmp_path / "a.pftrace")
    (name,) = (name for name in found.counters if name.endswith("allocated"))
    timeline = reconstruct(history)
    assert max(value for _, value in found.counters[name]) == timeline.allocated.max()
    assert found.counters[name][-1][1] == timeline.allocated[-1]
    (moment,) = found.moments
    assert (moment.name, moment.details["bytes"]) == ("out of memory", 80 << 30)
    assert moment.file == "model.py"


@pytest.mark.parametrize("name", ["a.speedscope.json", "a.flame.json"])
def test_json_formats(path, tmp_path, name):
    assert run(path, tmp_path / name) == 0
    assert json.loads((tmp_path / name).read_text())


def test_format_is_chosen_by_option(path, tmp_path):
    assert run(path, tmp_path / "strange", "--to", "folded") == 0
    assert "cuda:0;main" in (tmp_path / "strange").read_text()


@pytest.mark.parametrize(("table", "rows"), [("history", 3_000), ("blocks", None), ("segments", None)])
def test_tables_of_parquet(path, tmp_path, history, table, rows):
    assert run(path, tmp_path / "a.parquet", "--table", table) == 0
    count = duckdb.connect().execute(f"SELECT count(*) FROM '{tmp_path / 'a.parquet'}'").fetchone()[0]
    assert count == (rows or len(getattr(history, table)))


@pytest.fixture
def two(history, tmp_path):
    torch_writer.write([history, replace(history, device="cuda:1")], tmp_path / "two.pickle")
    return tmp_path / "two.pickle"


def test_one_of_several_devices_is_chosen(two, tmp_path, capsys):
    assert run(two, tmp_path / "a.forebay", "--device", "cuda:1") == 0
    assert snapshot.load(tmp_path / "a.forebay")[0].device == "cuda:1"
    assert run(two, tmp_path / "a.forebay", "--device", "cuda:7") == 2
    assert "no device 'cuda:7'" in capsys.readouterr().err


def test_all_devices_are_written(two, tmp_path, capsys):
    """A file for each device in forebay's format, and one with all of them in the other formats."""
    assert run(two, tmp_path / "run.forebay") == 0
    names = ["run.cuda0.forebay", "run.cuda1.forebay"]
    assert [path.name for path in sorted(tmp_path.glob("*.forebay"))] == names
    assert [snapshot.load(tmp_path / name)[0].device for name in names] == ["cuda:0", "cuda:1"]
    out = capsys.readouterr().out
    assert all(f"{name} (forebay): 3,000 entries of {device}\n" in out for name, device in
               zip(names, ("cuda:0", "cuda:1"), strict=True))  # fmt: skip
    for suffix in ("pickle", "folded", "pftrace", "speedscope.json", "flame.json"):
        assert run(two, tmp_path / f"all.{suffix}") == 0
        content = (tmp_path / f"all.{suffix}").read_bytes()
        if suffix == "pickle":
            assert [each.device for each in snapshot.load(tmp_path / "all.pickle")] == ["cuda:0", "cuda:1"]
        else:
            assert (b"cuda:0" in content, b"cuda:1" in content) == (True, True)


def test_file_of_another_device_is_not_replaced(two, tmp_path, capsys):
    (tmp_path / "run.cuda1.forebay").write_text("mine")
    assert run(two, tmp_path / "run.forebay") == 2
    assert "was not made by forebay" in capsys.readouterr().err
    assert not (tmp_path / "run.cuda0.forebay").exists()


def test_unknown_suffix_names_the_option(path, tmp_path, capsys):
    assert run(path, tmp_path / "a.parket") == 2
    error = capsys.readouterr().err
    assert "did you mean '.parquet'" in error
    assert "--to FORMAT" in error
    assert error.count("\n") == 1


@pytest.mark.parametrize(("package", "name"), [("pyarrow", "a.parquet"), ("perfetto.trace_builder", "a.pftrace")])
def test_missing_package_is_one_line(path, tmp_path, capsys, monkeypatch, package, name):
    monkeypatch.setitem(sys.modules, package, None)
    assert run(path, tmp_path / name) == 2
    error = capsys.readouterr().err
    assert "pip install" in error
    assert error.count("\n") == 1
    assert not (tmp_path / name).exists()


def test_folder_that_does_not_exist_is_one_line(path, tmp_path, capsys):
    for suffix in (".forebay", ".pickle", ".folded", ".parquet", ".pftrace"):
        assert run(path, tmp_path / f"nothing/a{suffix}") == 2
        assert capsys.readouterr().err.count("\n") == 1


def test_truncated_snapshot_is_stated(two, tmp_path, capsys):
    content = two.read_bytes()
    (tmp_path / "cut").write_bytes(content[: len(content) // 3])
    assert run(tmp_path / "cut", tmp_path / "a.pickle") == 0
    assert "cut is truncated: the file ends after" in capsys.readouterr().err


def test_every_format_has_a_writer():
    assert set(convert.FORMATS) == set(convert._WRITERS)


def test_named_ranges_are_in_parquet_and_perfetto(tmp_path):
    (tmp_path / "steps.pickle").write_bytes(dumped(annotated(2)))
    for name in ("a.parquet", "a.pftrace"):
        assert run(tmp_path / "steps.pickle", tmp_path / name) == 0
    rows = duckdb.sql(f"SELECT DISTINCT ranges FROM '{tmp_path / 'a.parquet'}' ORDER BY ranges").fetchall()
    steps = ["ProfilerStep#0", "ProfilerStep#1"]
    assert [row[0] for row in rows] == ["", *(step + part for step in steps for part in ("", ";backward", ";forward"))]
    assert {"ProfilerStep#0", "forward", '{"phase":"forward"}'} <= {
        each.name for each in decode(tmp_path / "a.pftrace").slices
    }
