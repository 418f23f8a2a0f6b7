"""A run: stage after stage, each part in a process of its own, with results on disk as they are found."""

from __future__ import annotations

import datetime as dt
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Protocol

from steps import ROOT

from gpu import records
from gpu.card import Card
from gpu.part import Outcome, read_outcome, write_file
from gpu.parts import Part, Result, limit
from gpu.processes import Ending, python, run_process, stop
from gpu.results import Earlier, Results
from gpu.run_folder import RunFolder

__all__ = ["Run", "outcome_of"]

LAST = 6.0  # seconds of a run that are left to write the results
LEAST = 2.0  # seconds below which a part is not begun


class Compiling(Protocol):
    """The compilation that parts wait for."""

    def wait(self) -> str: ...


class Run:
    """A run of some parts on a GPU."""

    def __init__(
        self,
        folder: RunFolder,
        variables: dict[str, str],
        card: Card,
        *,
        deadline: float,
        quick: bool,
        command: str,
        complete: bool,
    ) -> None:
        self.deadline = deadline
        self.compiling: Compiling | None = None
        self._folder, self._variables, self._card = folder, variables, card
        self._quick, self._complete, self._command = quick, complete, command
        self._day = dt.datetime.now().astimezone().date()
        facts = {"card": card.name, "driver": card.driver, "date": self._day.isoformat(), "command": f"`{command}`"}
        facts |= {"rehearsal": "on the software driver: nothing was measured on hardware"} if card.software else {}
        facts |= {"in use": card.in_use} if card.in_use else {}
        self._results = Results(folder, facts)

    def carry_over(self, earlier: Earlier, path: Path) -> None:
        """Take over what an earlier run, whose folder or archive is given, has reached to its end."""
        again = earlier.to_repeat()
        if earlier.facts.get("card") != self._card.name or earlier.facts.get("driver") != self._card.driver:
            print("The earlier run was on other hardware: its results are not taken over.")
            return
        for name, result in earlier.parts.items():
            if name not in again:
                self._folder.adopt(path, name)
                self._results.end(result)

    def stage(self, stage: Sequence[Part], later: Sequence[Sequence[Part]]) -> None:
        """Run the parts of a stage side by side."""
        problem = ""
        if self.compiling is not None and any(part.compiled for part in stage):
            problem = self.compiling.wait()
        seconds = limit(stage, later, self.deadline - LAST - time.monotonic())
        if problem or seconds < LEAST:
            why = f"forebay was not compiled: {problem}" if problem else "no time was left"
            for part in stage:
                result = Result(part, Outcome("not run", why), 0.0)
                self._results.end(result)
                self._report(result)
            return
        with ThreadPoolExecutor(len(stage)) as pool:
            try:
                for result in pool.map(lambda part: self._run(part, seconds), stage):
                    self._report(result)
            except BaseException:
                stop.set()
                raise

    def finish(self) -> int:
        """Write the page and the entry of verified hardware. Return the status of the run."""
        found = list(self._results.ended.values())
        verified = self._complete and records.passed(found) and not self._card.software
        page = records.page(found, self._card, self._day, self._command)
        entry = records.entry(found, self._card, self._day)
        if not verified:
            why = "a rehearsal on the software driver" if self._card.software else "incomplete, or with failures"
            entry = f"# Nothing was verified: the run was {why}.\n" + "".join(
                f"# {line}\n" for line in entry.splitlines()
            )
        write_file(self._folder.path / records.PAGE, page)
        write_file(self._folder.path / records.VERIFIED, entry)
        self._results.pack()
        self._folder.clean()
        kind = "rehearsal" if self._card.software else "verified" if verified else "nothing is verified"
        print(f"{kind}; written: {self._folder.path}")
        return 0 if records.not_failed(found) else 1

    def _run(self, part: Part, seconds: float) -> Result:
        start = time.monotonic()
        folder = self._folder.of(part.name)
        self._results.begin(part)
        arguments = [str(folder), f"{seconds:.1f}", *(["--quick"] if self._quick else [])]
        ending = run_process(
            python(f"{part.package}.{part.name}", *arguments),
            folder / "log.txt",
            seconds + 1.0,  # a part that keeps its limit ends by itself
            folder=ROOT,
            variables=self._variables,
            on_poll=self._results.refresh,
        )
        result = Result(part, outcome_of(ending, read_outcome(folder)), time.monotonic() - start)
        self._results.end(result)
        return result

    def _report(self, result: Result) -> None:
        outcome = result.outcome
        detail = f": {outcome.detail}" if outcome.detail else ""
        print(f"{result.part.title} ... {outcome.status} after {result.seconds:.0f} s{detail}")
        if outcome.status == "failed":
            print("\n".join(f"    {line}" for line in outcome.lines))
        sys.stdout.flush()


def outcome_of(ending: Ending, saved: Outcome | None) -> Outcome:
    """Return the outcome of a part, whose process may have ended before it wrote its last result."""
    ended = not ending.stopped and ending.status == 0
    if saved is not None and ended:
        return saved
    why = ending.stopped or f"its process ended with {ending.status}"
    tail = ["```text", *ending.tail, "```"]
    if saved is None:
        return Outcome("failed", why, tail)
    # What was saved before is kept. A part that only ran out of time has not failed.
    status = "incomplete" if saved.status == "incomplete" and ending.stopped else "failed"
    return Outcome(status, f"{saved.detail}; {why}", [*saved.lines, *([] if status == "incomplete" else tail)])
