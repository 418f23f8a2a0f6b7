"""Fixture that runs programs in child processes, with and without `forebay run`."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent

import pytest

LIMIT = 60  # seconds for a child process, which takes about one
COMMAND = str(Path(sys.executable).with_name("forebay"))  # the installed command
TABLES = r"\n(?:Resident memory |Memory of )"  # the beginning of the report


@dataclass
class Outcome:
    """Exit status and output of a child process."""

    status: int
    out: str
    err: str
    output: Path  # folder of the report

    @property
    def own(self) -> str:
        """Standard error without the report of forebay."""
        without = re.sub(rf"{TABLES}.*?\nreport    [^\n]*\n", "", self.err, flags=re.DOTALL)
        return re.split(TABLES, without)[0]

    @property
    def snapshot(self):
        from forebay.snapshot.formats import native

        return native.read(self.output / "snapshot.forebay")


class Runner:
    """Runs programs as `script.py` in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.limit = LIMIT

    def write(self, source: str, name: str = "script.py") -> Path:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(dedent(source))
        return path

    def command(self, *arguments: str, **settings) -> Outcome:
        settings = {"stdin": subprocess.DEVNULL} | settings if "input" not in settings else settings
        done = subprocess.run(
            [sys.executable, *arguments], cwd=self.folder, capture_output=True, encoding="utf-8", check=False,
            timeout=self.limit, **settings,
        )  # fmt: skip
        return Outcome(done.returncode, done.stdout, done.stderr, self.folder / "forebay-report")

    def python(self, source: str, *arguments: str, **settings) -> Outcome:
        self.write(source)
        return self.command("script.py", *arguments, **settings)

    def forebay(self, source: str, *arguments: str, options: tuple[str, ...] = (), **settings) -> Outcome:
        self.write(source)
        return self.command(COMMAND, "run", *options, "script.py", *arguments, **settings)

    def same(self, source: str, *arguments: str, **settings) -> Outcome:
        """Run a program with and without `forebay run` and compare exit status and output."""
        without = self.python(source, *arguments, **settings)
        observed = self.forebay(source, *arguments, **settings)
        result = observed.status, without_addresses(observed.out), without_addresses(observed.own)
        assert result == (without.status, without_addresses(without.out), without_addresses(without.err))
        return observed


def without_addresses(text: str) -> str:
    """Replace addresses in the text."""
    return re.sub(r"\b0x[0-9a-f]+", "0x", text)


@pytest.fixture
def runner(tmp_path):
    return Runner(tmp_path)
