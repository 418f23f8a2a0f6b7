"""A part of a run, as its own process executes it: `python -m gpu.NAME RESULT_FILE [--quick]`."""

from __future__ import annotations

import json
import sys
import traceback
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

__all__ = ["NotRun", "Outcome", "execute", "optional_module"]


class NotRun(Exception):
    """The part cannot run here; its text is the reason."""


@dataclass
class Outcome:
    """Result of a part: its state, and the reason or the figures."""

    status: str  # "ok", "failed" or "not run"
    detail: str = ""  # one line
    lines: list[str] = field(default_factory=list)  # Markdown: tables, or what failed


def execute(work: Callable[[bool], Outcome]) -> None:
    """Run a part's function with whether few repetitions are enough, and write its outcome to the result file."""
    try:
        outcome = work("--quick" in sys.argv)
    except NotRun as reason:
        outcome = Outcome("not run", str(reason))
    except Exception as error:  # noqa: BLE001 - the report of the run shows it
        text = f"{type(error).__name__}: {error}".partition("\n")[0]
        outcome = Outcome("failed", text, ["```text", *traceback.format_exc().splitlines(), "```"])
    Path(sys.argv[1]).write_text(json.dumps(asdict(outcome)))


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
