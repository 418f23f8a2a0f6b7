"""The viewer page: the time from a chosen file to the picture of its memory, in headless Chromium.

The seconds say little on a busy machine, so the processor time of all processes of the browser is measured, too. The
longest pause is that of the page's own thread while the file is read: what a click on *Cancel* may wait for. Memory is
the largest sum of the private memory of the browser's processes.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import psutil
from measure import show, table

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from support.synthetic_history import synthetic

from forebay.snapshot.formats import native, torch_writer
from forebay.snapshot.report.page import viewer

ROUNDS = 3
PAUSES = """() => {
  window.pause = 0;
  let last = performance.now();
  const tick = () => {
    const now = performance.now();
    if (!("ready" in document.body.dataset)) window.pause = Math.max(window.pause, now - last);
    last = now;
    setTimeout(tick, 5);
  };
  tick();
}"""


def measure(browser: Any, page_path: Path, file: Path) -> tuple[float, float, float, float]:
    """Open the file once. Returns seconds, seconds of processor time, milliseconds of the pause, and bytes."""
    page = browser.new_page()
    page.set_default_timeout(300_000)
    page.goto(page_path.as_uri())
    page.wait_for_selector("body[data-loaded]", state="attached")
    page.evaluate(PAUSES)
    before, began, most = processor_time(), time.perf_counter(), 0.0
    page.set_input_files("#file", file)
    while not page.query_selector("body[data-ready], .problem:not([hidden])"):
        most = max(most, memory())
        time.sleep(0.1)
    seconds = time.perf_counter() - began
    used, pause = processor_time() - before, float(page.evaluate("window.pause"))
    assert not page.query_selector(".problem:not([hidden])"), page.inner_text(".problem")
    page.close()
    return seconds, used, pause, most


def processes() -> list[psutil.Process]:
    """Return the processes of the browser."""
    return [each for each in psutil.Process().children(recursive=True) if "chrom" in each.name()]


def processor_time() -> float:
    times = [each.cpu_times() for each in processes()]
    return sum(each.user + each.system for each in times)


def memory() -> float:
    found = 0
    for each in processes():
        try:
            found += each.memory_full_info().uss
        except psutil.Error:  # it has ended
            continue
    return float(found)


def row(browser: Any, page: Path, file: Path) -> list[str]:
    """Return the cells of a file."""
    opened = [measure(browser, page, file) for _ in range(ROUNDS)]
    seconds, used, pause, most = (median(values) for values in zip(*opened, strict=True))
    return [
        f"{file.stat().st_size / 1e6:.0f} MB", f"{seconds:.1f} s", f"{used:.1f} s", f"{pause:.0f} ms",
        f"{most / 1e6:.0f} MB",
    ]  # fmt: skip


def main(arguments: list[str]) -> None:
    from playwright.sync_api import sync_playwright

    executable = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if executable is None:
        sys.exit("bench viewer: no chromium, chromium-browser or google-chrome on PATH")
    result = table("Viewer: medians", "file", "size", "shown after", "processor time", "longest pause", "memory")
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=executable, args=["--no-sandbox", "--disable-gpu"])
        page = Path(folder, "viewer.html")
        with page.open("w", encoding="utf-8") as out:
            viewer.write(out)
        for entries in map(int, arguments or ["1_000_000", "2_500_000"]):
            history = synthetic(entries)
            pickled, own = Path(folder, "a.pickle"), Path(folder, "a.forebay")
            torch_writer.write([history], pickled)
            native.write(history, own)
            result.add_row(f"{entries:,} entries, pickle", *row(browser, page, pickled))
            result.add_row(f"{entries:,} entries, forebay", *row(browser, page, own))
        browser.close()
    show(result)


if __name__ == "__main__":
    main(sys.argv[1:])
