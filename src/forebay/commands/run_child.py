"""Recording of a process that a program under `forebay run` has started: Note [Started children]."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

from forebay.commands import process_log
from forebay.commands.run_session import RunSession
from forebay.records.site_choice import SiteChoice

__all__ = ["begin", "leave"]

_leave: list[Callable[[], None]] = []  # end the recording of this process


def begin(path: str) -> RunSession:
    """Record this process, which a recorded one has started, or by which it has replaced itself.

    `path` is that of the log of the program's processes.
    """
    given = json.loads(process_log.options(path))
    sites = {**given["sites"], "categories": tuple(map(tuple, given["sites"]["categories"])), "split": ()}
    is_first = given["pid"] == os.getpid()  # the program has replaced itself by os.exec*
    session = RunSession(
        Path(given["wanted"] if is_first else given["output"]),
        sys.orig_argv[1:],
        given["memory"],
        given["entries"],
        monitor=given["monitor"],
        quiet=given["quiet"],
        as_json=given["as_json"],
        site_choice=SiteChoice(**sites),
    )
    _leave.append(session.cancel)
    if is_first:
        Path(path).unlink(missing_ok=True)
        session.prepare()
        session.start()
    else:
        session.run = given["run"]
        session.start_in_child(Path(path))
    return session


def leave() -> None:
    """End the recording of this process, which is a command of forebay and no part of what is measured."""
    while _leave:
        _leave.pop()()
