"""The limit of seconds of a program: it ends with the line where it was then.

# Note [Time limit]
The process that waits for a program can kill it, but only the program knows its line. A thread of each process
records the line of its main thread when the time is over, as the end of the process; where nothing else ends the
program (`forebay run`, which reports in the process of the program), the thread raises `TimeLimit` in the main thread
and, if that does not end it, ends the process as `os._exit` does. Rejected: a signal, as the program may handle it, and
sees the handler.
Test: tests/interop/torch/processes/test_time_limit.py::test_line_of_the_main_thread_is_recorded
"""

from __future__ import annotations

import ctypes
import linecache
import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType

from forebay._base.untrusted import shortened
from forebay._base.verdicts import Ending, How
from forebay.records.frame_kinds import FrameKind, kind_of_file

__all__ = ["EARLIER", "STATUS", "TimeLimit", "current_line", "ending_at", "watch"]

EARLIER = 0.5  # seconds before the time of the process that kills the program, when the line is recorded
STATUS = 124  # as timeout(1)
_GRACE = 5.0  # seconds for the program's own handlers
_FOREBAY = f"{Path(__file__).parents[3]}/"
_MOST_CHARACTERS = 200


class TimeLimit(SystemExit):
    """The program has taken as long as it may. It is no Exception, which the program may take for one of its own."""

    def __init__(self) -> None:
        super().__init__(STATUS)


def ending_at(seconds: float, line: str = "") -> Ending:
    """Return the end of a program that has taken as long as it may."""
    return Ending(How.TIME_LIMIT, f"the run took longer than {seconds:g} s", line)


def current_line() -> str:
    """Return the line of the program that the main thread executes; "" if it has none."""
    frame: FrameType | None = sys._current_frames().get(threading.main_thread().ident or 0)
    while frame is not None:
        name = frame.f_code.co_filename
        if kind_of_file(name) is FrameKind.OWN and not name.startswith(_FOREBAY):
            text = shortened(linecache.getline(name, frame.f_lineno).strip(), _MOST_CHARACTERS)
            return f"{name}:{frame.f_lineno}" + (f": {text}" if text else "")
        frame = frame.f_back
    return ""


def watch(deadline: float, note: Callable[[str], None], *, ends_program: bool = False) -> None:
    """Call a function with the line of the main thread when the time is over, from a thread.

    Parameters
    ----------
    deadline : float
        The time, of `time.monotonic()`.
    note : callable
        The function.
    ends_program : bool, default False
        End this process, too.
    """

    def wait() -> None:
        time.sleep(max(0.0, deadline - time.monotonic()))
        note(current_line())
        if ends_program:
            _raise_in_main_thread()
            time.sleep(_GRACE)
            os._exit(STATUS)

    threading.Thread(target=wait, name="forebay-time-limit", daemon=True).start()


def _raise_in_main_thread() -> None:
    main = threading.main_thread().ident
    if main is not None:
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(main), ctypes.py_object(TimeLimit))
