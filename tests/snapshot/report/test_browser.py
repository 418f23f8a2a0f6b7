"""The page in a real browser: its script runs to the end, nothing is blocked, and nothing is asked of the network."""

from __future__ import annotations

import subprocess

import pytest
from support.report_pages import BROWSER, STORIES, page, scene_of


@pytest.mark.skipif(BROWSER is None, reason="no chromium, chromium-browser or google-chrome on PATH")
@pytest.mark.parametrize("story", STORIES)
def test_the_script_runs_to_its_end(tmp_path, story):
    path = tmp_path / "report.html"
    path.write_text(page(scene_of(story)), "utf-8")
    options = ["--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path / 'profile'}"]
    network = ["--host-resolver-rules=MAP * ~NOTFOUND", "--disable-background-networking"]
    command = [BROWSER, *options, *network, "--dump-dom", path.as_uri()]
    shown = subprocess.run(command, capture_output=True, text=True, timeout=100, check=True)
    body = shown.stdout.partition("<body")[2].partition(">")[0]
    assert 'data-ready=""' in body
    assert "data-error" not in body
