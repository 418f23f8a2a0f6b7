"""A part of a run, as its own process executes it: `python -m gpu.NAME FOLDER SECONDS [--quick]`.

This module imports nothing of forebay: the parts that need PyTorch only run while forebay is compiled.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

__all__ = [
    "REAL",
    "RESULT",
    "Job",
    "NotRun",
    "Outcome",
    "compared_with",
    "execute",
    "optional_module",
    "read_outcome",
    "write_file",
    "write_json",
]

FOLLOWED = "2.15"  # the version of PyTorch whose behaviour forebay has
REAL = "FOREBAY_GPU_CARD"  # set where the driver has a GPU: a part that finds none must not rehearse on the CPU
RESULT = "result.json"  # of a part, in its folder: an Outcome

_PARENT_DIED = 1  # PR_SET_PDEATHSIG
_PARENT = 1.0  # seconds between two looks at the parent


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
    """Task of a part: the folder of its files, its deadline, and whether few repetitions suffice."""

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
    if os.getpgid(0) == os.getpid():  # started by a run
        if sys.platform == "linux":  # also if a call that never returns keeps the thread below from running
            ctypes.CDLL(None).prctl(_PARENT_DIED, signal.SIGKILL)
        threading.Thread(target=_end_with_parent, args=(os.getppid(),), daemon=True).start()
    try:
        outcome = work(job)
    except NotRun as reason:
        outcome = Outcome("not run", str(reason))
    except Exception as error:  # noqa: BLE001 - the report of the run shows it
        text = f"{type(error).__name__}: {error}".partition("\n")[0]
        outcome = Outcome("failed", text, ["```text", *traceback.format_exc().splitlines(), "```"])
    job.save(outcome)


def compared_with(torch: Any, wrong: Sequence[str], equal: str) -> tuple[str, str]:
    """Return the status and the detail of a comparison with PyTorch.

    A difference is a failure if this PyTorch is of the version whose behaviour forebay has. Beside another one it may
    be a difference between both versions, and is only listed.
    """
    version = str(torch.__version__)
    if not wrong:
        return "ok", f"{equal}, PyTorch {version}"
    if version.split(".")[:2] == FOLLOWED.split("."):
        return "failed", f"{equal}, PyTorch {version}"
    return "ok", f"{equal}; the differences are beside PyTorch {version}, while forebay follows {FOLLOWED}"


def read_outcome(folder: Path) -> Outcome | None:
    """Return what a part has saved in its folder, or None."""
    try:
        return Outcome(**json.loads((folder / RESULT).read_text()))
    except (OSError, ValueError, TypeError):
        return None


def _end_with_parent(parent: int) -> None:
    """End this process and its group when the run was killed, so that no process uses the GPU after it."""
    while os.getppid() == parent:
        time.sleep(_PARENT)
    os.killpg(0, signal.SIGKILL)


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
