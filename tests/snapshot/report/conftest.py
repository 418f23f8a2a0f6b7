"""A browser for the tests of the report page, and pages in which nothing may go wrong."""

from __future__ import annotations

import pytest
from support.browser_pages import Report
from support.report_pages import BROWSER


@pytest.fixture(scope="module")
def browser():
    playwright = pytest.importorskip("playwright.sync_api")
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=BROWSER, args=["--no-sandbox", "--disable-gpu"])
        yield browser
        browser.close()


@pytest.fixture
def show(browser, tmp_path):
    """Return a function that opens a page of snapshots; at the end nothing may have gone wrong in any."""
    opened = []

    def show(*snapshots, address="", **options):
        report = Report.open(browser, tmp_path, snapshots, address, **options)
        opened.append(report)
        return report

    yield show
    assert [report.problems for report in opened] == [[]] * len(opened)
    for report in opened:
        assert report.page.evaluate("document.body.dataset.error") is None
        report.page.close()
