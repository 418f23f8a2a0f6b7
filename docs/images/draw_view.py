"""Draw the terminal of `forebay view`: `python docs/images/draw_view.py view.png`.

Requires Textual, and Chromium to convert the drawing.
"""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from forebay import snapshot
from forebay.commands.view_app import ViewApp

FILE = Path(__file__).parents[2] / "tests/data/snapshots/out_of_memory.pickle.gz"


async def drawing() -> str:
    app = ViewApp([each for each in snapshot.load(FILE) if len(each.trace)], FILE.name)
    async with app.run_test(size=(120, 32)) as pilot:
        await pilot.press("o", "down")
        await pilot.pause()
        return app.export_screenshot()


def main(path: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        drawn = Path(folder, "view.svg")
        drawn.write_text(asyncio.run(drawing()))
        options = ["--headless", "--no-sandbox", "--disable-gpu", "--window-size=1490,850", f"--screenshot={path}"]
        subprocess.run([shutil.which("chromium") or "chromium", *options, drawn.as_uri()], check=True)


if __name__ == "__main__":
    main(sys.argv[1])
