"""Names of any length, which files of others may hold: they take time in proportion to the file."""

from __future__ import annotations

import io
import time
from dataclasses import replace

import numpy as np
import pytest
from support.snapshot_scenes import training

from forebay.commands.view_model import ViewModel
from forebay.snapshot.analysis.comparison import compare
from forebay.snapshot.formats import parquet
from forebay.snapshot.report import held_stacks

SECONDS = 3.0


@pytest.fixture(scope="module")
def snapshot():
    """A history of deep stacks whose frames share a file name of a megabyte."""
    given = training(steps=3)
    frames = np.zeros(2000, given.frames.dtype)
    frames["line"] = np.arange(len(frames))
    stacks = np.zeros(len(frames) + 1, given.stacks.dtype)
    stacks["parent"][1:] = stacks["frame"][1:] = np.arange(len(frames))
    for table in (given.trace, given.blocks):
        table["stack"] = len(frames) - np.arange(len(table)) % 1000
    return replace(given, stacks=stacks, frames=frames, strings=("y" * 1_000_000,))


@pytest.mark.parametrize("use", [
    lambda snapshot, _: compare(snapshot, snapshot),
    lambda snapshot, _: held_stacks.write_folded([snapshot], io.StringIO()),
    lambda snapshot, folder: parquet.write([snapshot], folder / "file.parquet"),
    lambda snapshot, _: ViewModel(snapshot).search("y:12"),
], ids=["compare", "folded", "parquet", "view"])  # fmt: skip
def test_long_names_are_cut_before_they_are_used(snapshot, tmp_path, use):
    began = time.process_time()
    use(snapshot, tmp_path)
    assert time.process_time() - began < SECONDS
