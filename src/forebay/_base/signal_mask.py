"""Signal mask of the calling thread."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["signals_blocked"]

_FAULTS = {signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGTRAP, signal.SIGABRT, signal.SIGSYS}


@contextmanager
def signals_blocked() -> Iterator[None]:
    """Context manager: threads that are created in it get no signals, except those of faults.

    A thread inherits the mask of its creator. If a thread of a library accepted signals, a program that blocks a signal
    in its own threads and waits for it with `signal.sigwait` would not get it.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    try:  # setting a mask runs pending handlers, which may raise
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals() - _FAULTS)
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
