"""Draw the terminal of `forebay run` with a PyTorch program: `python docs/images/draw_fit.py will-my-model-fit.png`.

`python docs/images/draw_fit.py fit.png fit` draws that of `forebay fit`.

Requires PyTorch, and Chromium to convert the drawing.
"""

from __future__ import annotations

import os
import pty
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.text import Text

EXAMPLES = Path(__file__).parents[2] / "examples"
ARGUMENTS = ["run", "--emulate", "cuda:1@rtx_4090", "--shapes-only", "train_gpt2.py", "--batch", "24"]
FIT = ["fit", "--cards", "t4,l4,rtx_4090,a100", "train_gpt2.py", "--batch", "24"]
FIT_COLUMNS, FIT_ROWS = 80, 16
COLUMNS = 100
SHOWN = "ran out of memory", "Memory of process"  # in the first line that is shown, and in the first that is not
SHOWN_AS = "~/forebay"  # not longer than the repository's own path, so that lines keep their breaks


def output() -> str:
    """Run the command in a terminal of its own, and return what it prints."""
    main, side = pty.openpty()
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "forebay", ARGUMENTS[0], "--output", folder, *ARGUMENTS[1:]]
        environment = os.environ | {"COLUMNS": str(COLUMNS), "TERM": "xterm-256color"}
        process = subprocess.Popen(command, cwd=EXAMPLES, env=environment, stdout=side, stderr=side)
        os.close(side)
        parts = []
        try:
            while part := os.read(main, 1 << 16):
                parts.append(part)
        except OSError:  # the terminal's other end is closed
            pass
        process.wait()
    text = b"".join(parts).decode().replace("\r\n", "\n")
    here = str(EXAMPLES.parent)
    padding = " " * (len(here) - len(SHOWN_AS))  # before the frame's right side
    return re.sub(rf"{re.escape(here)}([^\n\x1b]*)", rf"{SHOWN_AS}\1{padding}", text)


def draw_fit(path: str) -> None:
    """Draw the first lines of `forebay fit`."""
    environment = os.environ | {"COLUMNS": str(FIT_COLUMNS)}
    command = [sys.executable, "-m", "forebay", *FIT]
    done = subprocess.run(command, cwd=EXAMPLES, env=environment, capture_output=True, text=True, check=False)
    draw(
        path,
        f"$ forebay {' '.join(FIT)}\n" + "\n".join(done.stdout.splitlines()[:FIT_ROWS]),
        FIT_COLUMNS,
        "forebay fit",
    )


def main(path: str) -> None:
    lines = output().splitlines()
    first = next(at for at, line in enumerate(lines) if SHOWN[0] in line and "cuda:0" in line)
    last = next(at for at, line in enumerate(lines) if at > first and SHOWN[1] in line)
    text = "\n".join([f"$ forebay {' '.join(ARGUMENTS)}", "", *lines[first:last]])
    draw(path, text, COLUMNS, "forebay run")


def draw(path: str, text: str, columns: int, title: str) -> None:
    """Draw a terminal with a text."""
    with Path(os.devnull).open("w") as nowhere:
        console = Console(record=True, width=columns, file=nowhere, force_terminal=True)
        console.print(Text.from_ansi(text.rstrip()))
    height = 24 * (text.rstrip().count("\n") + 1) + 100
    with tempfile.TemporaryDirectory() as folder:
        drawn = Path(folder, "fit.svg")
        drawn.write_text(console.export_svg(title=title))
        options = [
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            f"--window-size={12 * columns + 40},{height}",
            f"--screenshot={path}",
        ]
        subprocess.run([shutil.which("chromium") or "chromium", *options, drawn.as_uri()], check=True)


if __name__ == "__main__":
    (draw_fit if sys.argv[2:] == ["fit"] else main)(sys.argv[1])
