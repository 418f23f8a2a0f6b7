"""Parquet files: every row and column, in bounded row groups, queryable by DuckDB."""

from __future__ import annotations

import sys

import duckdb
import numpy as np
import pyarrow.parquet as pq
import pytest
from support.synthetic_history import synthetic

from forebay.errors import Unsupported
from forebay.records.model import Action, State
from forebay.records.site_labels import label_of
from forebay.snapshot.formats import parquet


@pytest.fixture(scope="module")
def history():
    return synthetic(20_000, out_of_memory=True)


def test_columns_equal_the_history(history, tmp_path):
    calls = []
    parquet.write([history], tmp_path / "file.parquet", progress=lambda done, total: calls.append((done, total)))
    table = pq.read_table(tmp_path / "file.parquet")
    assert calls == [(20_000, 20_000)]
    for name, column in {"address": "address", "bytes": "nbytes", "stream": "queue", "pool": "pool"}.items():
        assert np.array_equal(table[name].to_numpy(), history.trace[column])
    assert table["action"].to_pylist() == [Action(action).name.lower() for action in history.trace["action"].tolist()]
    for row in range(0, 20_000, 2_500):
        frames = [f"{frame.name} ({frame.file}:{frame.line})" for frame in history.stack(history.trace["stack"][row])]
        own = [
            frame
            for frame in history.stack(history.trace["stack"][row])
            if "torch" not in frame.file and "::" not in frame.name
        ]
        assert table["site"][row].as_py() == (label_of(own[0]) if own else "")
        assert table["stack"][row].as_py() == ";".join(reversed(frames))


def test_query_finds_what_numpy_finds(history, tmp_path):
    path = tmp_path / "blocks.parquet"
    parquet.write([history], path, "blocks")
    query = f"SELECT sum(requested) FROM '{path}' WHERE state = 'live'"
    live = history.blocks["state"] == State.LIVE
    assert duckdb.connect().execute(query).fetchone() == (int(history.blocks["requested"][live].sum()),)
    parquet.write([history], tmp_path / "segments.parquet", "segments")
    query = f"SELECT sum(bytes), count(*) FROM '{tmp_path / 'segments.parquet'}'"
    assert duckdb.connect().execute(query).fetchone() == (int(history.segments["nbytes"].sum()), len(history.segments))


def test_long_histories_have_several_row_groups(history, tmp_path, monkeypatch):
    monkeypatch.setattr(parquet, "_ROWS", 3_000)
    parquet.write([history, history], tmp_path / "file.parquet")
    file = pq.ParquetFile(tmp_path / "file.parquet")
    assert file.num_row_groups == 14
    assert file.read()["entry"].to_pylist() == [*range(20_000)] * 2


def test_missing_package_is_named(history, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(Unsupported, match=r"pip install forebay\[parquet\]"):
        parquet.write([history], tmp_path / "file.parquet")
    assert not (tmp_path / "file.parquet").exists()
