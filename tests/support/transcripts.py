"""Transcripts in the documentation: blocks that begin with `$ forebay ...`, with the output of the command.

A page names the files that it uses by `python` blocks, which create them: they are executed in order, before the
commands. `python -m support.transcripts PAGE` (in `tests`) writes the present output into the page.
"""

from __future__ import annotations

import re
import shlex
import sys
import tempfile
from contextlib import chdir, redirect_stdout
from io import StringIO
from pathlib import Path

from forebay.commands.cli import main

__all__ = ["updated"]

SNAPSHOTS = Path(__file__).resolve().parents[1] / "data" / "snapshots"  # that PyTorch wrote
_BLOCK = re.compile(r"^```(python|text)(?: (\S+))?\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def updated(page: str) -> str:
    """Return the page with the present output of its commands, in a temporary folder with the files of SNAPSHOTS."""
    with tempfile.TemporaryDirectory() as folder, chdir(folder):
        for path in SNAPSHOTS.glob("*.pickle.gz"):
            Path(path.name).symlink_to(path)
        return _BLOCK.sub(_run, page)


def _run(block: re.Match[str]) -> str:
    kind, _, text = block.groups()
    if kind == "python":
        exec(compile(text, "train.py", "exec"), {"__name__": "__main__"})
        return block[0]
    command, _, _ = text.partition("\n")
    if not command.startswith("$ forebay "):
        return block[0]
    out = StringIO()
    with redirect_stdout(out):
        main(shlex.split(command)[2:])
    lines = "\n".join(line.rstrip() for line in out.getvalue().rstrip().splitlines())
    return f"```text\n{command}\n{lines}\n```"


if __name__ == "__main__":
    for name in sys.argv[1:]:
        path = Path(name)
        path.write_text(updated(path.read_text()))
