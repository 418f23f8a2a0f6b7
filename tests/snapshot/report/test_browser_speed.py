"""The speed of the report page of a million entries in a real browser, measured by the benchmark of the page."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from support.report_pages import BROWSER, render
from support.synthetic_history import synthetic

pytestmark = pytest.mark.skipif(BROWSER is None, reason="no chromium, chromium-browser or google-chrome on PATH")


@pytest.mark.slow
def test_million_entries_reach_the_goals(browser, tmp_path, monkeypatch):
    """The goals are in seconds and frames per second; here they are in processor time, as the machine may be busy."""
    monkeypatch.syspath_prepend(Path(__file__).parents[3] / "benchmarks")
    import bench_report

    snapshot, path = synthetic(1_000_000), tmp_path / "report.html"
    began = time.process_time()
    path.write_text(render(snapshot), "utf-8")
    assert time.process_time() - began < 5
    assert path.stat().st_size < 15e6
    first, _, cost = bench_report.measure(browser, path)
    assert first < 2 * 1500  # the goal on a machine of its own is 1.5 s
    assert max(cost.values()) < 1000 / 30
