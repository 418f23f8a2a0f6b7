"""Report pages in a headless browser, with everything that goes wrong there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from forebay.records.model import Snapshot
from forebay.snapshot.report import html

CANVAS = "article:not([hidden]) .field canvas"
FILLED = "article:not([hidden]) .explorer[data-filled]"
TIP = "article:not([hidden]) .chart .tip:not([hidden])"
LEFT, RIGHT, ABOVE, BELOW = 74, 12, 24, 26  # margins of the chart, as in report-page/src/chart-drawing.ts


@dataclass
class Report:
    """One opened page. `problems` are console errors, exceptions, dialogs, and requests that leave the file."""

    page: Any
    path: Path
    problems: list[str] = field(default_factory=list)

    @classmethod
    def open(
        cls,
        browser: Any,
        folder: Path,
        snapshots: Sequence[Snapshot],
        address: str = "",
        names: Sequence[str] = (),
        **options: Any,
    ) -> Report:
        """Write a page and open it at an address such as "#moment=7"."""
        path = folder / "report.html"
        with path.open("w", encoding="utf-8") as file:
            html.write_several(snapshots, file, names)
        report = cls(browser.new_page(**{"viewport": {"width": 1400, "height": 1000}} | options), path)
        report.page.set_default_timeout(20_000)
        report.page.on("console", lambda message: report.found(message.type != "log", f"console: {message.text}"))
        report.page.on("pageerror", lambda error: report.found(True, f"exception: {error}"))
        report.page.on("dialog", lambda dialog: (report.found(True, f"dialog: {dialog.message}"), dialog.dismiss()))
        report.page.on("request", lambda request: report.found(not request.url.startswith("file:"), request.url))
        report.page.goto(path.as_uri() + address)
        report.page.wait_for_selector("body[data-ready]", state="attached")
        if report.page.query_selector("article:not([hidden]) .explorer"):
            report.settle()
        return report

    def found(self, wrong: bool, problem: str) -> None:
        if wrong:
            self.problems.append(problem)

    def settle(self) -> None:
        """Wait until all sections show the chosen moment."""
        self.page.evaluate("() => new Promise((done) => requestAnimationFrame(() => setTimeout(done)))")
        self.page.wait_for_selector(FILLED, state="attached")

    def press(self, *keys: str) -> None:
        """Press keys while the chart has the focus."""
        self.page.focus(CANVAS)
        for key in keys:
            self.page.keyboard.press(key)
        self.settle()

    def text(self, selector: str) -> str:
        return self.page.inner_text(f"article:not([hidden]) {selector}")

    def figures(self, place: str = ".details > div:first-child") -> dict[str, float]:
        """Return the exact numbers of a list of figures."""
        script = "(rows) => rows.map((row) => [row.querySelector('dt').textContent, row.querySelector('data')?.value])"
        rows = self.page.eval_on_selector_all(f"article:not([hidden]) {place} .facts > div", script)
        return {name: float(value) for name, value in rows if value is not None}

    def table(self, section: str) -> list[list[str]]:
        """Return the texts of the cells of a table."""
        script = "(rows) => rows.map((row) => [...row.cells].map((cell) => cell.dataset.v ?? cell.textContent))"
        return self.page.eval_on_selector_all(f"article:not([hidden]) .{section} tbody tr", script)

    def rows(self, section: str, count: int) -> None:
        """Wait until a table has a number of rows."""
        from playwright.sync_api import expect

        expect(self.page.locator(f"article:not([hidden]) .{section} tbody tr")).to_have_count(count)

    def hash(self) -> dict[str, str]:
        return dict(self.page.evaluate("[...new URLSearchParams(location.hash.slice(1))]"))

    def hover(self, across: float, up: float) -> dict[str, Any]:
        """Move the pointer to a place of the chart, as fractions of its width and height. Returns the tooltip."""
        box = self.page.query_selector(CANVAS).bounding_box()
        x = box["x"] + LEFT + across * (box["width"] - LEFT - RIGHT)
        y = box["y"] + box["height"] - BELOW - up * (box["height"] - ABOVE - BELOW)
        self.page.mouse.move(x, y)
        tip = self.page.wait_for_selector(TIP)
        frames = tip.eval_on_selector_all(".frame", "(rows) => rows.map((row) => row.textContent)")
        row, moment = (int(tip.evaluate(f"(tip) => tip.dataset.{name}")) for name in ("row", "moment"))
        return {"text": tip.inner_text(), "row": row, "moment": moment, "frames": frames}
