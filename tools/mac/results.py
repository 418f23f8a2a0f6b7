"""The file of a run: a page for people, whose last block is the same as JSON, and the entry of verified hardware."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from gpu import records

from mac.machine import Machine

__all__ = ["PartResult", "Run", "read", "with_entry"]

_BEGIN, _END = "```json\n", "\n```\n"
_REQUIRED = ("conformance", "names", "random_numbers", "benchmarks")


@dataclass(frozen=True)
class PartResult:
    """A part, what it found, and the seconds it took."""

    name: str
    title: str
    status: str  # "ok", "failed" or "not run"
    detail: str
    lines: tuple[str, ...]
    seconds: float


@dataclass(frozen=True)
class Run:
    """A run of all parts, or of some."""

    machine: Machine
    day: dt.date
    command: str
    complete: bool
    parts: Sequence[PartResult]

    @property
    def passed(self) -> bool:
        """True if no part failed, and every part ran."""
        return all(part.status == "ok" for part in self.parts)

    def why_nothing_is_verified(self) -> str:
        """Return the reason, or "" if the run verifies the hardware."""
        if self.machine.software:
            return "it was a rehearsal on tests/softmetal, without hardware"
        if not self.complete or {part.name for part in self.parts} != {*_REQUIRED}:
            return "the run was not complete"
        failed = [part.title for part in self.parts if part.status != "ok"]
        return f"not ok: {', '.join(failed)}" if failed else ""

    def page(self) -> str:
        """Return the page."""
        machine = self.machine
        facts = {
            "GPU": f"{machine.gpu}, {machine.cores or 'unknown number of'} cores, family {machine.family or 'unknown'}",
            "memory": f"{machine.memory >> 20:,} MiB, of which Metal recommends {machine.recommended >> 20:,} MiB",
            "system": f"{machine.system}, {machine.processor}",
            "software": f"Python {machine.python}, pyobjc-framework-Metal {machine.pyobjc}",
            "date": self.day.isoformat(),
            "command": f"`{self.command}`",
        }
        reason = self.why_nothing_is_verified()
        lines = ["# forebay on Apple's GPU", "", *([f"**Nothing is verified: {reason}.**", ""] if reason else [])]
        lines += [*(f"* {name}: {value}" for name, value in facts.items()), ""]
        lines += ["| part | result | detail | time |", "|---|---|---|---|"]
        lines += [f"| {part.title} | {part.status} | {part.detail} | {part.seconds:.0f} s |" for part in self.parts]
        for part in self.parts:
            if part.lines:
                lines += ["", f"## {part.title}", "", *part.lines]
        content = {**asdict(self), "day": self.day.isoformat()}
        return "\n".join(lines) + f"\n\n{_BEGIN}{json.dumps(content, indent=1)}{_END}"

    def entry(self) -> str:
        """Return the entry for verified.toml."""
        details = "; ".join(f"{part.name}: {part.detail}" for part in self.parts)
        values = {
            "kind": "mps",
            "on": f"{self.machine.gpu}, {self.machine.system}",
            "how": f"python3 dev.py mac: {details}",
        }
        lines = [f"{name} = {_text(value)}" for name, value in values.items()]
        lines.insert(2, f"when = {self.day.isoformat()}")
        return "\n".join(["[[run]]", *lines, ""])


def read(page: str) -> Run:
    """Return the run of a page. Raises ValueError if there is none."""
    begin = page.rfind(_BEGIN)
    if begin < 0:
        raise ValueError("it has no block of JSON")
    try:
        content = json.loads(page[begin + len(_BEGIN) :].partition(_END)[0])
        parts = [PartResult(**{**part, "lines": tuple(part["lines"])}) for part in content["parts"]]
        return Run(
            Machine(**content["machine"]),
            dt.date.fromisoformat(content["day"]),
            str(content["command"]),
            content["complete"] is True,
            parts,
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"its block of JSON is not that of a run: {error}") from None


def with_entry(path: Path, run: Run) -> str:
    """Return the text of a file of entries with that of a run. Raises ValueError if the run verifies nothing."""
    if reason := run.why_nothing_is_verified():
        raise ValueError(reason)
    return records.with_entry(path, run.entry())


def _text(value: str) -> str:
    escaped = value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", " ")
    return f'"{escaped}"'
