"""Programs in child processes, with and without forebay; some share `programs_on_emulated`."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent

import pytest

LIMIT = 60  # seconds for a child; each needs about one
COMMAND = str(Path(sys.executable).with_name("forebay"))  # as installed: it is a main module of its own
TABLES = "\nMemory of host:0"  # how what forebay says begins


@dataclass
class Outcome:
    status: int
    out: str
    err: str
    output: Path  # where its report is

    @property
    def own(self) -> str:
        """What the program itself said on standard error, and Python when it left."""
        return re.sub(rf"{TABLES}.*?\nreport    [^\n]*\n", "", self.err, flags=re.DOTALL).split(TABLES)[0]

    @property
    def snapshot(self):
        from forebay.snapshot.formats import native

        return native.read(self.output / "snapshot.forebay")


class Runner:
    """Runs sources as `script.py` in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def write(self, source: str, name: str = "script.py") -> Path:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(dedent(source))
        return path

    def command(self, *arguments: str, **settings) -> Outcome:
        settings = {"stdin": subprocess.DEVNULL} | settings if "input" not in settings else settings
        done = subprocess.run(
            [sys.executable, *arguments], cwd=self.folder, capture_output=True, encoding="utf-8", check=False,
            timeout=LIMIT, **settings,
        )  # fmt: skip
        return Outcome(done.returncode, done.stdout, done.stderr, self.folder / "forebay-report")

    def python(self, source: str, *arguments: str, **settings) -> Outcome:
        self.write(source)
        return self.command("script.py", *arguments, **settings)

    def forebay(self, source: str, *arguments: str, options: tuple[str, ...] = (), **settings) -> Outcome:
        self.write(source)
        return self.command(COMMAND, "run", *options, "script.py", *arguments, **settings)

    def same(self, source: str, *arguments: str, **settings) -> Outcome:
        """Run it both ways; the program's own output and outcome must be equal."""
        without = self.python(source, *arguments, **settings)
        observed = self.forebay(source, *arguments, **settings)
        ours = observed.status, nowhere(observed.out), nowhere(observed.own)
        assert ours == (without.status, nowhere(without.out), nowhere(without.err))
        return observed


def nowhere(text: str) -> str:
    """Without addresses."""
    return re.sub(r"\b0x[0-9a-f]+", "0x", text)


@pytest.fixture
def runner(tmp_path):
    return Runner(tmp_path)
