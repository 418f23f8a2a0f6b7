"""Ends of a program under `forebay run` that call no exit handlers: os._exit, os.exec*, SIGTERM and SIGHUP.

# Note [Signals that end a program]
A program that a supervisor stops gets SIGTERM, and one whose terminal is closed SIGHUP. Both end it at once, and the
report is wanted most then. Python's handler of another, unused signal writes the report: the native handler of SIGTERM
only tells Python that this one has arrived. For the program, signal.getsignal(SIGTERM) is SIG_DFL as without forebay,
and a handler that it sets replaces the native one. Python calls handlers in the main thread between two instructions,
and sleeps and reads are interrupted for it; a long computation of NumPy is not. The process then ends by the same
signal, so that its parent sees the status that it expects. A second signal does not interrupt the report.
Rejected: signal.signal(SIGTERM, ...), as libraries that find a handler do not set theirs; and a thread that waits for
the signals, as the program would continue while the report is written.
Test: tests/process/test_run_signals.py::test_signal_ends_the_program_with_a_report
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import wraps
from types import FrameType
from typing import Any, NoReturn

from forebay.commands import _end_signals

__all__ = ["ProgramEnds"]

_NUMBERS = (signal.SIGTERM, signal.SIGHUP)
_HANDLED = signal.SIGRTMAX - 2 if hasattr(signal, "SIGRTMAX") else signal.Signals["SIGEMT"]


class ProgramEnds:
    """Calls `report` when this process ends, also in its forked children. `announce` gets the path of a new program."""

    def __init__(self, report: Callable[[], object], announce: Callable[[str], object]) -> None:
        self._report, self._announce = report, announce
        self._is_reporting = False

    def watch(self, *, signals: bool) -> None:
        """Call the functions from now on. `signals`: for signals, too, that the program leaves to the system."""
        self._replace_functions()
        if signals:
            self.watch_signals()

    def watch_signals(self) -> None:
        """Call the function when a signal is about to end the process; only in the main thread."""
        with suppress(ValueError):  # another thread: the streamed record remains
            if signal.getsignal(_HANDLED) is signal.SIG_DFL:
                signal.signal(_HANDLED, self._on_signal)
        for number in _NUMBERS:
            if signal.getsignal(_HANDLED) == self._on_signal:
                _end_signals.watch(number, _HANDLED)

    @contextmanager
    def restarting(self) -> Iterator[None]:
        """Context manager for the beginning of a forked child: a signal that arrives in it ends the process behind it.

        There is nothing to report yet, and the state is that of the parent, which may have been writing its report.
        Python forgets signals that arrive in a child before it calls the fork handlers; the native handler does not.
        """
        self._is_reporting = True
        try:
            yield
        finally:
            self._is_reporting = False
            _end_signals.end()

    @contextmanager
    def reporting(self) -> Iterator[None]:
        """Context manager for the report: a signal that arrives in it ends the process behind it."""
        outer, self._is_reporting = self._is_reporting, True
        try:
            yield
        finally:
            self._is_reporting = outer
            if not outer:
                _end_signals.end()

    def _on_signal(self, _number: int, _frame: FrameType | None) -> None:
        if not self._is_reporting:
            self._report()  # which ends the process
            _end_signals.end()

    def _replace_functions(self) -> None:
        exit_now = os._exit

        @wraps(exit_now)
        def report_and_exit(status: int) -> NoReturn:
            self._report()
            exit_now(status)

        def reporting(replace: Callable[..., NoReturn]) -> Callable[..., NoReturn]:
            @wraps(replace)
            def report_and_replace(path: Any, *args: Any, **keywords: Any) -> NoReturn:
                if os.access(path, os.X_OK):  # os.execvp tries each folder of PATH
                    self._announce(os.fsdecode(path))
                    self._report()
                replace(path, *args, **keywords)

            return report_and_replace

        os._exit, os.execv, os.execve = report_and_exit, reporting(os.execv), reporting(os.execve)
