"""Damaged snapshot files: 10,000 executions of the fuzzer in `support/file_fuzzing.py`, which uses no coverage here."""

from __future__ import annotations

from itertools import islice

import pytest
from support.file_fuzzing import execute, mutations, seeds


def test_seeds_are_read(tmp_path):
    assert all(execute(content, tmp_path / "file") for content in seeds())


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10))
def test_damaged_files_raise_only_bad_snapshot(seed, tmp_path):
    for content in islice(mutations(seed), 1000):
        execute(content, tmp_path / "file")
