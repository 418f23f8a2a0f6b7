"""The report page of a long history: its size, the time to write it, and its speed in headless Chromium.

The first picture is counted from the navigation to the page. Frames per second are the mean over a second or more of
continuous zooming or dragging, of the whole history; 60 is the most that the browser shows. On a busy machine they say
little, so the processor time of the page's thread for a frame is measured, too: 30 frames per second leave it 33 ms.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
import time
from pathlib import Path
from statistics import mean, median
from typing import Any

from measure import show, table

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from support.snapshot_scenes import long_run
from support.synthetic_history import synthetic

from forebay.snapshot import Snapshot
from forebay.snapshot.report import html

ROUNDS, FRAMES = 7, 60
# Each frame changes the window, and its length is the time until the next: with the chart's work and the browser's.
MEASURE = """([frames, action]) => new Promise((done) => {
  const canvas = document.querySelector("article:not([hidden]) .field canvas");
  const box = canvas.getBoundingClientRect();
  const [x, y] = [box.left + box.width / 2, box.top + box.height / 2];
  const pointer = (type, x) => canvas.dispatchEvent(
    new PointerEvent(type, { clientX: x, clientY: y, pointerId: 1, bubbles: true }));
  canvas.setPointerCapture = () => undefined;
  canvas.focus();
  const times = [];
  let last = performance.now();
  if (action === "pan") {
    for (let i = 0; i < 2; i++) canvas.dispatchEvent(new KeyboardEvent("keydown", { key: "+", bubbles: true }));
    pointer("pointerdown", x);
  }
  const step = (now) => {
    times.push(now - last);
    last = now;
    if (times.length > frames) return done(times.slice(1));
    if (action === "pan") pointer("pointermove", x + 150 * Math.sin(times.length / 8));
    else canvas.dispatchEvent(new WheelEvent("wheel", {
      clientX: x, clientY: y, deltaY: times.length % 40 < 20 ? -60 : 60, ctrlKey: true, cancelable: true }));
    requestAnimationFrame(step);
  };
  requestAnimationFrame(step);
})"""


def measure(browser: Any, path: Path) -> tuple[float, dict[str, list[float]], dict[str, float]]:
    """Open the page once.

    Returns the milliseconds until the first picture, those of each frame, and those of processor time for a frame.
    """
    page = browser.new_page(viewport={"width": 1400, "height": 1000})
    page.goto(path.as_uri())
    page.wait_for_selector("[data-filled]", timeout=120_000)
    first = float(page.evaluate("document.body.dataset.drawn"))
    session = page.context.new_cdp_session(page)
    session.send("Performance.enable", {"timeDomain": "threadTicks"})

    def busy() -> float:
        found = {each["name"]: each["value"] for each in session.send("Performance.getMetrics")["metrics"]}
        return 1000 * float(found["TaskDuration"])

    frames, cost = {}, {}
    for action in ("zoom", "pan"):
        before = busy()
        frames[action] = page.evaluate(MEASURE, [FRAMES, action])
        cost[action] = (busy() - before) / FRAMES
    page.close()
    return first, frames, cost


def row(browser: Any, snapshot: Snapshot, folder: Path, rounds: int = ROUNDS) -> list[str]:
    path, written = folder / "report.html", []
    for _ in range(rounds):
        begin = time.perf_counter()
        with path.open("w", encoding="utf-8") as file:
            html.write(snapshot, file)
        written.append(time.perf_counter() - begin)
    opened = [measure(browser, path) for _ in range(rounds)]
    rates = [1000 / median(mean(frames[action]) for _, frames, _ in opened) for action in ("zoom", "pan")]
    slowest = max(sorted(frames[action])[int(0.95 * FRAMES)] for _, frames, _ in opened for action in frames)
    size, first = path.stat().st_size / 1e6, median(first for first, *_ in opened) / 1000
    return [
        f"{median(written):.2f} s",
        f"{size:.1f} MB",
        f"{first:.2f} s",
        *(f"{rate:.0f}" for rate in rates),
        f"{slowest:.0f} ms",
        *(f"{median(cost[action] for *_, cost in opened):.1f} ms" for action in ("zoom", "pan")),
    ]


def main() -> None:
    from playwright.sync_api import sync_playwright

    executable = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if executable is None:
        sys.exit("bench report: no chromium, chromium-browser or google-chrome on PATH")
    columns = ["written", "size", "first picture", "zoom fps", "pan fps", "95 % of frames", "zoom CPU", "pan CPU"]
    result = table("Report page: medians", "history", *columns)
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=executable, args=["--no-sandbox", "--disable-gpu"])
        result.add_row("1,000,000 entries of training", *row(browser, synthetic(1_000_000), Path(folder)))
        result.add_row("1,000,000 random entries", *row(browser, long_run(), Path(folder)))
        result.add_row("5,000,000 entries of training", *row(browser, synthetic(5_000_000), Path(folder), rounds=3))
        browser.close()
    show(result)


if __name__ == "__main__":
    main()
