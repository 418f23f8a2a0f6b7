"""Processes of a program that used PyTorch without the emulation: what they would take of a device is not known.

# Note [Unseen processes]
A shell script may start `env -i python`, or `python -I`, where no function of Python is called
that could be replaced (see Note [Environment of started processes]). Such a process finds no device, and would be
missing from the sum. While a program runs, its descendants are therefore looked at: one that has mapped PyTorch's
libraries, whose import takes a second, and leaves no record, is unseen. A forked child has the image of its parent, and
is none: PyTorch refuses devices in children that C code forks.
Test: tests/interop/torch/fit/test_tasks.py::test_process_that_a_shell_starts_without_the_emulation_is_named
"""

from __future__ import annotations

import os
import sys
from _thread import allocate_lock, start_new_thread
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from time import sleep

from forebay._base.signal_mask import signals_blocked
from forebay._base.untrusted import printable, shortened
from forebay._base.verdicts import Ending, How, ProcessEvents
from forebay.interop.torch.processes.live_record import SUFFIX

__all__ = ["INTERVAL", "UnseenProcesses", "Watch"]

INTERVAL = 0.25  # seconds between two looks
_LIBRARY = b"/libtorch"
_MOST = 200  # characters of a command
_ENDED = ("0", "0")  # the image of a process that has ended, and was not waited for
_PPID, _SESSION, _STARTED, _STACK, _ARGUMENTS = 1, 3, 19, 25, 45  # fields of /proc/PID/stat behind the name


@dataclass(frozen=True, slots=True)
class _Process:
    """A process with the image that it runs: equal in a forked child, and new after exec."""

    pid: int
    parent: int
    session: int
    started: int
    image: tuple[str, str]


class UnseenProcesses:
    """The processes of one program, on Linux; nothing is found on other systems.

    `pid` is the program's first process, `records` the folder of the records.
    """

    def __init__(self, pid: int, records: Path) -> None:
        self._pid, self._records = pid, records
        self._family: dict[int, _Process] = {}
        self._candidates: dict[_Process, str] = {}
        self._images: dict[int, tuple[str, str]] = {}  # of all processes of the program, by number

    def look(self) -> None:
        """Look at the processes that run now. Never raises OSError."""
        if sys.platform != "linux":
            return
        self._family = self._members({each.pid: each for each in _processes()})
        recorded = self._recorded()
        for each in self._family.values():
            if each.image != _ENDED:
                self._images[each.pid] = each.image
            if each.pid not in recorded and each not in self._candidates:
                command = _command(each.pid)  # first: what is mapped then is of this command, or of a later one
                if _has_library(each.pid):
                    self._candidates[each] = command

    def found(self) -> list[ProcessEvents]:
        """Return the processes that are unseen. Call this at the end, when each process has had time for its record."""
        recorded = self._recorded()
        images = {self._images[pid] for pid in recorded if pid in self._images}
        return [
            ProcessEvents(each.pid, Ending(How.FINISHED), command=command, is_emulated=False)
            for each, command in self._candidates.items()
            if each.pid not in recorded and each.image not in images
        ]

    def _was_member(self, process: _Process) -> bool:
        """Return True for one whose parent may have ended since."""
        known = self._family.get(process.pid)
        return known is not None and known.started == process.started

    def _recorded(self) -> set[int]:
        names = [each.name.removesuffix(SUFFIX).rpartition("-")[2] for each in self._records.glob(f"*{SUFFIX}")]
        return {int(each) for each in names if each.isdecimal()}

    def _members(self, running: dict[int, _Process]) -> dict[int, _Process]:
        """Return those of the processes that descend from the first one, or are in its session."""
        members = {
            pid: each for pid, each in running.items() if self._pid in (pid, each.session) or self._was_member(each)
        }
        pending = [*members]
        children: dict[int, list[_Process]] = {}
        for each in running.values():
            children.setdefault(each.parent, []).append(each)
        while pending:
            for each in children.get(pending.pop(), ()):
                if each.pid not in members:
                    members[each.pid] = each
                    pending.append(each.pid)
        return members


class Watch:
    """A search for unseen processes by the program itself.

    Its thread begins with the first process that the program starts.
    """

    def __init__(self, records: Path) -> None:
        self._pid = os.getpid()
        self._processes = UnseenProcesses(self._pid, records)
        self._looking = allocate_lock()
        self._has_begun = self._has_ended = False

    def begin(self) -> None:
        """Start the thread, once. Does nothing in a forked child, whose processes descend from the program, too."""
        if self._has_begun or os.getpid() != self._pid:
            return
        self._has_begun = True
        with suppress(RuntimeError), signals_blocked():  # the system permits no thread: `found` looks once
            start_new_thread(self._watch, ())

    def _watch(self) -> None:
        while not self._has_ended:
            with self._looking:
                self._processes.look()
            sleep(2 * INTERVAL)  # in the process of the program: half as often

    def found(self) -> list[ProcessEvents]:
        """End the search. Return the processes that are unseen."""
        self._has_ended = True
        if not self._has_begun:
            return []
        with self._looking:
            self._processes.look()
            return self._processes.found()


def _processes() -> Iterator[_Process]:
    for name in os.listdir("/proc"):  # noqa: PTH208 -- names
        if name.isdecimal():
            with suppress(OSError, ValueError, IndexError):  # it has ended
                fields = Path(f"/proc/{name}/stat").read_text(errors="replace").rpartition(")")[2].split()
                yield _Process(
                    int(name), int(fields[_PPID]), int(fields[_SESSION]), int(fields[_STARTED]),
                    (fields[_STACK], fields[_ARGUMENTS]),
                )  # fmt: skip


def _command(pid: int) -> str:
    with suppress(OSError):
        words = Path(f"/proc/{pid}/cmdline").read_bytes().rstrip(b"\0").split(b"\0")
        return shortened(printable(" ".join(os.fsdecode(each) for each in words)), _MOST)
    return ""


def _has_library(pid: int) -> bool:
    with suppress(OSError):
        return _LIBRARY in Path(f"/proc/{pid}/maps").read_bytes()
    return False
