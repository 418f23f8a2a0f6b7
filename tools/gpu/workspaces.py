"""Memory that calls of operators allocate on this GPU: results, temporaries and workspaces, in their order.

`workspaces.json` has "machine" and "calls". A call has family, operator, parameters, flags, name, inputs and outputs
(type, shape, strides if not contiguous), and "first" and "second" with what it allocated, see call_memory.py; or
"error". It needs PyTorch only. Without a GPU the calls run on the CPU, with small inputs, and record no memory.
"""

from __future__ import annotations

import json
import os
import select
import signal
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from gpu.call_memory import temporaries_of
from gpu.call_worker import fork_worker
from gpu.operator_calls import Call, catalogue
from gpu.part import Job, NotRun, Outcome, execute, write_file

__all__ = ["FILE", "Measurements", "run_calls"]

FILE = "workspaces.json"
CALL_SECONDS = 20.0  # for a stage of a call; the first one may load libraries of gigabytes
_START_SECONDS = 60.0  # for the first use of CUDA in a process
_SAVED_EVERY = 2.0  # seconds
_MARGIN = 2.5  # seconds before the deadline, for the last files
_ENOUGH = 600  # calls; those that follow are for the time that is left
_FAILED_STARTS = 3  # processes in a row that end before their first call


@dataclass
class Measurements:
    """Measurements so far."""

    calls: Sequence[Call]
    machine: dict[str, Any] = field(default_factory=dict)
    records: dict[int, dict[str, Any]] = field(default_factory=dict)
    failure: str = ""  # of ours, not of a call

    def save(self, job: Job) -> None:
        """Write workspaces.json and the outcome."""
        write_file(job.folder / FILE, self.text())
        job.save(self.outcome())

    def text(self) -> str:
        """Return the JSON, with a line for each call."""
        lines = [json.dumps(self.row(number)) for number in sorted(self.records)]
        machine = json.dumps(self.machine, indent=1)
        return f'{{"machine": {machine},\n"calls": [\n' + ",\n".join(lines) + "\n]}\n"

    def row(self, number: int) -> dict[str, Any]:
        """Return the description and the record of a call."""
        call = self.calls[number]
        description = {
            "family": call.family,
            "operator": call.operator,
            "name": call.name,
            "parameters": call.all_parameters(),
        }
        return {**description, **({"flags": dict(call.flags)} if call.flags else {}), **self.records[number]}

    def outcome(self) -> Outcome:
        """Return the outcome with a table by family."""
        errors = sum("error" in each for each in self.records.values())
        with_temporaries = sum(bool(_temporaries(each)) for each in self.records.values())
        done = f"{len(self.records)} of {len(self.calls)} calls"
        detail = f"{done}, {with_temporaries} with temporaries, {errors} errors"
        if self.machine.get("device") == "cpu":
            detail = f"rehearsal on the CPU, which records no memory: {done}, {errors} errors"
        if self.failure:
            return Outcome("failed", f"{self.failure}; {detail}", self.table())
        is_enough = len(self.records) >= min(len(self.calls), _ENOUGH)
        return Outcome("ok" if is_enough else "incomplete", detail, self.table())

    def table(self) -> list[str]:
        """Return the Markdown table."""
        lines = ["| calls of | measured | with temporaries | largest temporary | errors |", "|---|---|---|---|---|"]
        for family in dict.fromkeys(call.family for call in self.calls):
            numbers = [at for at, call in enumerate(self.calls) if call.family == family]
            records = [self.records[at] for at in numbers if at in self.records]
            sizes = [_temporaries(each) for each in records]
            largest = max((max(each) for each in sizes if each), default=0)
            errors = sum("error" in each for each in records)
            cells = [f"{len(records)} of {len(numbers)}", sum(map(bool, sizes)), f"{largest:,} bytes", errors]
            lines.append("| " + " | ".join(map(str, [family, *cells])) + " |")
        ended = [at for at in sorted(self.records) if "lost" in self.records[at]]
        lines += ["", *(f"* {self.calls[at].name}: {self.records[at]['lost']}" for at in ended[:20])] if ended else []
        return lines


def _temporaries(record: dict[str, Any]) -> list[int]:
    """Return the temporaries of both calls."""
    return [size for key in ("first", "second") if record.get(key) for size in temporaries_of(record[key]["rows"])]


class _Process:
    """A process that runs calls, and the lines that it has written."""

    def __init__(self, torch: Any, calls: Sequence[Call], numbers: Sequence[int]) -> None:
        self.pid, self.descriptor = fork_worker(torch, calls, numbers)
        self.rest = b""
        self.current: int | None = None  # the call that runs
        self.stage = "the start"
        self.changed = time.monotonic()

    def lines(self, seconds: float) -> list[Any] | None:
        """Return the lines that arrive within a time, or None at the end of the process."""
        if not select.select([self.descriptor], [], [], max(0.0, seconds))[0]:
            return []
        read = os.read(self.descriptor, 1 << 20)
        if not read:
            return None
        self.changed = time.monotonic()
        *lines, self.rest = (self.rest + read).split(b"\n")
        return [json.loads(line) for line in lines]

    def is_late(self) -> bool:
        """Return True if nothing has happened for too long."""
        limit = _START_SECONDS if self.current is None else CALL_SECONDS
        return time.monotonic() - self.changed > limit

    def end(self) -> str:
        """Kill the process if it runs, and say how it ended. One that is stuck in the driver is left."""
        os.close(self.descriptor)
        for attempt in range(60):
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                code = os.waitstatus_to_exitcode(status)
                return f"signal {-code}" if code < 0 else f"status {code}"
            if attempt == 10:  # it has closed its lines, or is to be stopped
                with suppress(ProcessLookupError):
                    os.kill(self.pid, signal.SIGKILL)
            time.sleep(0.02)
        return "not at all"


def run_calls(job: Job, torch: Any, calls: Sequence[Call]) -> Measurements:
    """Run calls until all are done, or the time of the part ends; save what they allocate."""
    found = Measurements(calls)
    waiting = [*range(len(calls))]
    failed_starts = 0
    saved = time.monotonic()
    while waiting and job.remaining() > _MARGIN and not found.failure:
        process = _Process(torch, calls, waiting)
        started, why = False, ""
        while job.remaining() > _MARGIN:
            lines = process.lines(min(_SAVED_EVERY, job.remaining() - _MARGIN))
            if lines is None:
                break
            for kind, *content in lines:
                if kind == "machine":
                    found.machine = content[0]
                elif kind == "stage":
                    started, (process.current, process.stage) = True, content
                else:
                    number, record = content
                    found.records[number] = record
                    waiting.remove(number)
                    process.current, started = None, True
            if process.is_late():
                why = f"no progress for {time.monotonic() - process.changed:.0f} s, stopped"
                break
            if time.monotonic() - saved > _SAVED_EVERY:
                found.save(job)
                saved = time.monotonic()
        ended = process.end()
        if job.remaining() <= _MARGIN or not waiting:
            break
        if (current := process.current) is not None:  # it has ended the process, or hangs
            text = f"in {process.stage}: {why or f'its process ended with {ended}'}"
            found.records[current] = {"error": text, "lost": text}
            waiting.remove(current)
        failed_starts = 0 if started else failed_starts + 1
        if failed_starts == _FAILED_STARTS:
            found.failure = f"{failed_starts} processes ended before their first call, the last one with {why or ended}"
    found.save(job)
    return found


def record_workspaces(job: Job) -> Outcome:
    """Record what calls of operators allocate."""
    try:
        import torch
    except ImportError as error:
        raise NotRun(f"PyTorch is not installed ({error})") from None
    return run_calls(job, torch, catalogue(quick=job.quick)).outcome()


if __name__ == "__main__":
    execute(record_workspaces)
