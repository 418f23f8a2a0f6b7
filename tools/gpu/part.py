"""A part of a run, as its own process executes it: `python -m gpu.NAME FOLDER SECONDS [--quick]`.

This module imports nothing of forebay: the parts that need PyTorch only run while forebay is compiled.
"""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

__all__ = ["RESULT", "Job", "NotRun", "Outcome", "execute", "optional_module", "write_file", "write_json"]

RESULT = "result.json"  # of a part, in its folder: an Outcome


class NotRun(Exception):
    """The part cannot run here; its text is the reason."""


@dataclass
class Outcome:
    """Result of a part: its state, and the reason or the figures."""

    status: str  # "ok", "failed", "not run", or "incomplete": all that ran is ok, but time did not suffice for the rest
    detail: str = ""  # one line
    lines: list[str] = field(default_factory=list)  # Markdown: tables, or what failed


@dataclass(frozen=True)
class Job:
    """What a part is asked to do: where its files go, until when it may work, and how thoroughly."""

    folder: Path
    deadline: float  # of time.monotonic(): the part is killed then, with its children
    quick: bool = False

    def remaining(self) -> float:
        """Return the seconds until the part is killed."""
        return self.deadline - time.monotonic()

    def save(self, outcome: Outcome) -> None:
        """Write what was reached so far, in case that the part is killed."""
        write_json(self.folder / RESULT, asdict(outcome))


def execute(work: Callable[[Job], Outcome]) -> None:
    """Run the function of a part and write its outcome into the folder of the part."""
    folder, seconds, *options = sys.argv[1:]
    job = Job(Path(folder), time.monotonic() + float(seconds), "--quick" in options)
    job.folder.mkdir(parents=True, exist_ok=True)
    try:
        outcome = work(job)
    except NotRun as reason:
        outcome = Outcome("not run", str(reason))
    except Exception as error:  # noqa: BLE001 - the report of the run shows it
        text = f"{type(error).__name__}: {error}".partition("\n")[0]
        outcome = Outcome("failed", text, ["```text", *traceback.format_exc().splitlines(), "```"])
    job.save(outcome)


def write_json(path: Path, value: object) -> None:
    """Write a file that parses at every moment, also if this process is killed."""
    write_file(path, json.dumps(value, indent=1) + "\n")


def write_file(path: Path, text: str) -> None:
    """Replace a file in one step."""
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    unfinished.write_text(text, encoding="utf-8", errors="backslashreplace")
    unfinished.replace(path)


def optional_module(name: str, title: str) -> Any:
    """Import a module that a part compares with; raise NotRun if it is not installed or finds no GPU."""
    try:
        module: ModuleType = import_module(name)
    except ImportError as error:
        raise NotRun(f"{title} is not installed ({error})") from None
    has_gpu = module.cuda.is_available()
    if not has_gpu:
        raise NotRun(f"{title} finds no GPU")
    return module
