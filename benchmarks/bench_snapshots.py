"""Tools for memory snapshots side by side, on one file of 1,000,000 entries: forebay, PyTorch's and ptmem.

Every figure is of a fresh process: seconds until it ends or, in the terminal, until the whole screen is drawn, and its
peak of resident memory (of a page: of its JavaScript). The tools alternate. The others are left out unless environment
variables name them: MEMORY_VIZ is PyTorch's file torch/cuda/_memory_viz.py, which runs without the rest of PyTorch, and
PTMEM the command of ptmem (pip install ptmem). PyTorch's page loads its script from the network, so it is not opened.
ENTRIES is another length of the history.
"""

from __future__ import annotations

import fcntl
import os
import pty
import select
import shutil
import struct
import sys
import tempfile
import termios
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from measure import show, table

ENTRIES = int(os.environ.get("ENTRIES", "1_000_000"))
ROUNDS = 7
LIMIT = 300  # seconds
ROWS, COLUMNS = 32, 120  # of the terminal
FOREBAY = [sys.executable, "-m", "forebay"]
TESTS = Path(__file__).parents[1] / "tests"
WRITE = (  # in a process of its own: the peak of a process counts for those that it starts
    "import sys; sys.path.insert(0, sys.argv[1]); from support.synthetic_history import synthetic; "
    "from forebay.snapshot.formats import torch_writer; torch_writer.write([synthetic(int(sys.argv[2]))], sys.argv[3])"
)
UNPICKLE = "import pickle, sys; pickle.load(open(sys.argv[1], 'rb'))"
LOAD = "import sys; from forebay import snapshot; snapshot.load(sys.argv[1])"


@dataclass
class Run:
    """The time and memory of one process."""

    seconds: float
    mib: float


def ended(command: Sequence[object]) -> Run:
    """Run a command to its end."""
    began = time.perf_counter()
    process = os.posix_spawnp(
        str(command[0]),
        [*map(str, command)],
        os.environ,
        file_actions=[(os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0)],
    )
    _, status, usage = os.wait4(process, 0)
    if status:
        sys.exit(f"bench snapshots: {command} failed")
    return Run(time.perf_counter() - began, usage.ru_maxrss / 1024)


def drawn(command: Sequence[object], mark: bytes) -> Run:
    """Run a command in a terminal until its output contains a mark, which is in the last line of the screen."""
    began = time.perf_counter()
    process, terminal = pty.fork()
    if not process:
        os.environ.update(TERM="xterm-256color")
        os.environ.pop("COLUMNS", None)
        os.execvp(str(command[0]), [*map(str, command)])
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    seen = b""
    while mark not in seen:
        if not select.select([terminal], [], [], LIMIT)[0]:
            sys.exit(f"bench snapshots: {command} drew nothing in {LIMIT} s")
        try:
            seen += os.read(terminal, 1 << 16)
        except OSError:
            sys.exit(f"bench snapshots: {command} ended: {seen[-500:].decode(errors='replace')}")
    seconds = time.perf_counter() - began
    os.write(terminal, b"q")
    with suppress(OSError):
        while os.read(terminal, 1 << 16):
            pass
    _, _, usage = os.wait4(process, 0)
    os.close(terminal)
    return Run(seconds, usage.ru_maxrss / 1024)


def opened(page: Path) -> Run:
    """Open a report page in Chromium, and wait for its first picture."""
    from playwright.sync_api import sync_playwright

    options = ["--no-sandbox", "--disable-gpu", "--enable-precise-memory-info"]
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=options)
        window = browser.new_page(viewport={"width": 1400, "height": 1000})
        window.goto(page.as_uri())
        window.wait_for_selector("[data-filled]", timeout=LIMIT * 1000)
        milliseconds = float(window.evaluate("document.body.dataset.drawn"))
        used = window.evaluate("performance.memory.usedJSHeapSize")
        browser.close()
    return Run(milliseconds / 1000, used / 2**20)


def measured(programs: dict[str, Callable[[], Run]]) -> dict[str, Run]:
    """Return the medians of alternating runs."""
    runs: dict[str, list[Run]] = {name: [] for name in programs}
    for _ in range(ROUNDS):
        for name, program in programs.items():
            runs[name].append(program())
    return {
        name: Run(median(run.seconds for run in each), median(run.mib for run in each)) for name, each in runs.items()
    }


def rows(result: Any, task: str, programs: dict[str, Callable[[], Run]], sizes: dict[str, Path] | None = None) -> None:
    found = measured(programs)
    ours = found["forebay"]
    for name, run in found.items():
        size = f"{sizes[name].stat().st_size / 1e6:.1f} MB" if sizes else ""
        ratio = "" if name == "forebay" else f"{run.seconds / ours.seconds:.1f}"
        result.add_row(task, name, f"{run.seconds:.2f} s", ratio, f"{run.mib:,.0f} MiB", size)


def main() -> None:
    viz, ptmem = os.environ.get("MEMORY_VIZ"), os.environ.get("PTMEM")
    result = table(
        f"{ENTRIES:,} entries: medians of {ROUNDS}", "task", "tool", "time", "to forebay's", "peak memory", "page"
    )
    with tempfile.TemporaryDirectory() as folder:
        path, ours, theirs = (Path(folder, name) for name in ("run.pickle", "ours.html", "theirs.html"))
        ended([sys.executable, "-c", WRITE, TESTS, ENTRIES, path])
        rows(result, "read", {
            "forebay": lambda: ended([sys.executable, "-c", LOAD, path]),
            "pickle.load": lambda: ended([sys.executable, "-c", UNPICKLE, path]),
        })  # fmt: skip
        pages = {"forebay": lambda: ended([*FOREBAY, "report", path, "--output", ours])}
        if viz:
            pages["_memory_viz"] = lambda: ended([sys.executable, viz, "trace_plot", path, "-o", theirs])
        rows(result, "write the page", pages, {"forebay": ours, "_memory_viz": theirs})
        if shutil.which("chromium"):
            rows(result, "open the page", {"forebay": lambda: opened(ours)})
        screens = {"forebay": lambda: drawn([*FOREBAY, "view", path], b"Find")}
        if ptmem:
            cache = path.with_name(f".{path.name}.memcache")

            def without_cache() -> Run:
                cache.unlink(missing_ok=True)
                return drawn([ptmem, path], b"q: Quit")

            screens["ptmem"] = without_cache
            screens["ptmem, from its cache"] = lambda: drawn([ptmem, path], b"q: Quit")
        rows(result, "first screen in the terminal", screens)
        rows(result, "tune, 12 settings", {"forebay": lambda: ended([*FOREBAY, "tune", path])})
    show(result)


if __name__ == "__main__":
    main()
