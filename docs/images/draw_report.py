"""Run the demo and draw the top of its report page: `python docs/images/draw_report.py report.png [dark]`.

Requires Playwright and Chromium.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

from forebay import snapshot
from forebay.snapshot.report import html

DEMO = Path(__file__).parents[2] / "examples/train_digits.py"
CHART = ".field canvas"
ACROSS, UP = 0.46, 0.3  # what is pinned, as fractions of the chart
SHOWN_AS = "/home/ada/forebay"


def main(path: str, theme: str = "light") -> None:
    from playwright.sync_api import sync_playwright

    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        command = [sys.executable, "-m", "forebay", "run", "--quiet", "--output", folder, str(DEMO.name)]
        subprocess.run(command, cwd=DEMO.parent, check=True, stdout=subprocess.DEVNULL)
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        (recorded,) = snapshot.load(Path(folder, "snapshot.forebay"))
        strings = tuple(text.replace(str(DEMO.parents[1]), SHOWN_AS) for text in recorded.strings)
        with Path(folder, "report.html").open("w", encoding="utf-8") as file:
            html.write(replace(recorded, strings=strings), file)
        page = browser.new_page(viewport={"width": 1200, "height": 1180}, color_scheme=theme)
        page.goto(Path(folder, "report.html").as_uri())
        page.wait_for_selector("[data-filled]")
        for _ in range(2):
            page.click(".tool[aria-label='Zoom in']")
        box = page.query_selector(CHART).bounding_box()
        x, y = box["x"] + ACROSS * box["width"], box["y"] + (1 - UP) * box["height"]
        page.mouse.click(x, y)
        page.wait_for_selector("[data-filled]")
        page.mouse.move(0, 0)
        page.screenshot(path=path)
        browser.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
