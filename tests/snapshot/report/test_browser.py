"""The HTML report in a real browser: the script completes, nothing is blocked, and there are no network requests."""

from __future__ import annotations

import subprocess

import pytest
from support.report_pages import BROWSER, SCENARIOS, render, snapshot_of


@pytest.mark.skipif(BROWSER is None, reason="no chromium, chromium-browser or google-chrome on PATH")
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_script_completes_in_browser(tmp_path, scenario):
    path = tmp_path / "report.html"
    path.write_text(render(snapshot_of(scenario)), "utf-8")
    options = ["--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path / 'profile'}"]
    network = ["--host-resolver-rules=MAP * ~NOTFOUND", "--disable-background-networking"]
    command = [BROWSER, *options, *network, "--dump-dom", path.as_uri()]
    shown = subprocess.run(command, capture_output=True, text=True, timeout=100, check=True)
    body = shown.stdout.partition("<body")[2].partition(">")[0]
    assert 'data-ready=""' in body
    assert "data-error" not in body
