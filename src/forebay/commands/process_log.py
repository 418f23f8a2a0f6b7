"""Log of the processes of a program under `forebay run`: one file in the folder of the report, to which all append.

# Note [Log of processes]
A child has its report when it ends, and many do not: programs that are not Python, other interpreters, processes that
are killed or that still run. So that the summary can count and name them, each process appends a line when it starts
another one, when it begins, when its recording begins, fails or ends, and when another program replaces it. One write
to a file that is open for appending is never mixed with others, and no process waits for another. Only the program's
first process creates the file, and deletes it with its report: a child that finds none has outlived the program.
Rejected: a folder of one file for each process, as hundreds of children would leave hundreds of files if the program is
killed; and a socket, whose reader must run while the program does.
Test: tests/process/test_run_started.py::test_what_is_not_recorded_is_counted_and_named

This file imports the standard library only: each Python process that the program starts loads it by its path.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress

__all__ = ["NAME", "VARIABLE", "append", "create", "events", "options", "remove"]

VARIABLE = "FOREBAY_RUN"  # the path of the log
NAME = "processes.log"
STARTED, BEGAN, RECORDS, FAILED, ENDED, REPLACED = "started", "began", "records", "failed", "ended", "replaced"
FORK = "fork"  # the command of a forked child
_MOST = 300  # characters of a command
_FLAGS = os.O_CLOEXEC | getattr(os, "O_NOFOLLOW", 0)


def create(path: str, text: str) -> None:
    """Create the log, whose first line is what each process needs to know. Raises OSError."""
    number = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | _FLAGS, 0o600)
    try:
        os.write(number, f"{text}\n".encode())
    finally:
        os.close(number)


def append(path: str, event: str, pid: int, text: str = "") -> bool:
    """Append an event of a process. Returns False if the program has ended, or the file cannot be written."""
    line = f"{event}\t{pid}\t{text[:_MOST].encode('unicode_escape', 'backslashreplace').decode()}\n"
    try:
        number = os.open(path, os.O_WRONLY | os.O_APPEND | _FLAGS)
        try:
            os.write(number, line.encode())
        finally:
            os.close(number)
    except OSError:
        return False
    return True


def remove(path: str) -> None:
    """Delete the log, if it is there."""
    with suppress(OSError):
        os.unlink(path)  # noqa: PTH108 -- pathlib is slow to import


def options(path: str) -> str:
    """Return the first line; "" if there is no log."""
    return next(iter(_lines(path)), "")


def events(path: str) -> list[tuple[str, int, str]]:
    """Return the events in their order, with the number of the process and the text of each."""
    found = []
    for line in list(_lines(path))[1:]:
        event, pid, text = [*line.split("\t", 2), "", ""][:3]
        if pid.isdecimal():
            found.append((event, int(pid), text.encode().decode("unicode_escape", "replace")))
    return found


def _lines(path: str) -> Iterable[str]:
    try:
        number = os.open(path, os.O_RDONLY | _FLAGS)
        with os.fdopen(number, encoding="utf-8", errors="replace") as file:
            return file.read().splitlines()
    except OSError:
        return []
