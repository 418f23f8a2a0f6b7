"""The processes of a program under `forebay run` that have no report, and why: Note [Log of processes]."""

from __future__ import annotations

import os
import shlex
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from forebay._base.untrusted import printable, shortened
from forebay.commands import process_log
from forebay.commands.run_output import SNAPSHOT

__all__ = ["Process", "Processes", "find_processes", "short_command"]

_MOST_NAMED = 5
_MOST_COMMAND = 60  # characters
_HELPERS = ("resource_tracker", "multiprocessing.forkserver", "semaphore_tracker")  # of multiprocessing and of loky


@dataclass(frozen=True, slots=True)
class Process:
    """A process with the command that started it, "fork" for a forked child."""

    pid: int
    command: str
    reason: str = ""  # why it is not recorded
    directory: str = ""  # with what was recorded of one that was killed


@dataclass(frozen=True, slots=True)
class Processes:
    """The processes of a program without a report."""

    running: tuple[Process, ...] = ()  # recorded, and still running
    unfinished: tuple[Process, ...] = ()  # recorded, and ended without a report: killed
    failed: tuple[Process, ...] = ()  # interpreters that could not be recorded
    others: tuple[Process, ...] = ()  # not Python, or started without the environment
    without_arrays: int = 0  # Python processes that allocated no array

    def as_json(self) -> dict[str, Any]:
        return {
            "running": [asdict(each) for each in self.running],
            "unfinished": [asdict(each) for each in self.unfinished],
            "not_recorded": [asdict(each) for each in (*self.failed, *self.others)],
            "without_arrays": self.without_arrays,
        }

    def sentences(self) -> Iterator[str]:
        """Yield a line for each kind of process, with its number and names."""
        if self.unfinished:
            yield f"{_count(self.unfinished)} ended without a report (killed, or crashed): {_named(self.unfinished)}."
        if self.running:
            then = "its report" if len(self.running) == 1 else "each report"
            yield f"{_count(self.running)} still running, {then} follows in process-PID: {_named(self.running)}."
        if self.failed:
            yield f"{_count(self.failed)} of Python could not be recorded: {_reasons(self.failed)}."
        if self.others:
            yield f"{_count(self.others)} of other programs not recorded: {_programs(self.others)}."
        if self.without_arrays:
            yield f"{_number(self.without_arrays)} of Python allocated no array."


def find_processes(log: Path, reported: Sequence[int]) -> Processes:
    """Return what the log tells about processes that have no report. `reported` are the numbers of those that have."""
    commands: dict[int, str] = {}
    last: dict[int, str] = {}
    reasons: dict[int, str] = {}
    for event, pid, text in process_log.events(str(log)):
        if event in (process_log.STARTED, process_log.BEGAN):
            commands.setdefault(pid, text)
        if event == process_log.REPLACED:
            commands[pid] = text
        if event == process_log.FAILED:
            reasons[pid] = text
        # A process may note that it begins before its parent notes that it has started it.
        if event != process_log.STARTED or pid not in last:
            last[pid] = event
    found: dict[str, list[Process]] = {event: [] for event in _EVENTS}
    for pid, event in last.items():
        is_helper = any(helper in commands.get(pid, "") for helper in _HELPERS)
        if pid not in reported and pid != os.getpid() and not is_helper:
            found[event].append(Process(pid, commands.get(pid, ""), reasons.get(pid, "")))
    records = found[process_log.RECORDS]
    running = [each for each in records if _is_running(each.pid)]
    idle = [*found[process_log.BEGAN], *found[process_log.ENDED]]
    return Processes(
        tuple(running),
        tuple(_with_directory(each, log.parent) for each in records if each not in running),
        tuple(found[process_log.FAILED]),
        (*found[process_log.STARTED], *found[process_log.REPLACED]),
        len(idle),
    )


_EVENTS = (
    process_log.STARTED, process_log.BEGAN, process_log.RECORDS, process_log.FAILED, process_log.ENDED,
    process_log.REPLACED,
)  # fmt: skip


def short_command(command: str, most: int = _MOST_COMMAND) -> str:
    """Return a command without the folder of the interpreter, in one line."""
    first, _, rest = command.partition(" ")
    return shortened(printable(f"{os.path.basename(first)} {rest}".strip()), most)  # noqa: PTH119 -- a text


def _with_directory(process: Process, output: Path) -> Process:
    """Return a killed process with the directory of what was recorded of it: Note [Unfinished snapshots]."""
    name = f"process-{process.pid}"
    return replace(process, directory=name) if (output / name / SNAPSHOT).is_file() else process


def _is_running(pid: int) -> bool:
    with suppress(OSError, ValueError, IndexError):  # a zombie has ended
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[0] not in "ZX"
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return not Path("/proc/self").exists()  # elsewhere the signal tells


def _number(count: int) -> str:
    return f"{count:,} process{'es' * (count != 1)}"


def _count(found: Sequence[Process]) -> str:
    return _number(len(found))


def _named(found: Sequence[Process]) -> str:
    """Return the first processes with their numbers."""
    texts = []
    for each in found[:_MOST_NAMED]:
        record = f"; its record is in {each.directory}" if each.directory else ""
        texts.append(f"{each.pid} ({short_command(each.command)}{record})")
    return _joined(texts, len(found) - len(texts))


def _reasons(found: Sequence[Process]) -> str:
    texts = [*Counter(f"{short_command(each.command)}: {printable(each.reason)}" for each in found)]
    return _joined(texts[:_MOST_NAMED], len(texts) - _MOST_NAMED)


def _programs(found: Sequence[Process]) -> str:
    """Return the names of the programs, each with its number if it ran several times."""
    names = Counter(_program(each.command) for each in found)
    texts = [f"{name} ({count:,} times)" if count > 1 else name for name, count in names.most_common()]
    return _joined(texts[:_MOST_NAMED], len(texts) - _MOST_NAMED)


def _program(command: str) -> str:
    try:
        words = shlex.split(command)
    except ValueError:
        words = command.split()
    return printable(os.path.basename(words[0])) if words else "?"  # noqa: PTH119 -- a text


def _joined(texts: Sequence[str], more: int) -> str:
    return ", ".join([*texts, *([f"{more:,} more"] if more > 0 else [])])
