"""The process that starts a program with private changes: waits for it, passes signals on, and creates new files."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from forebay._base.byte_sizes import format_bytes
from forebay.rehearsal.changes import Change, read_changes
from forebay.rehearsal.files_report import FilesReport, make_report
from forebay.rehearsal.launch import Launched, launch
from forebay.rehearsal.mount_plan import is_semaphore
from forebay.rehearsal.mount_table import is_below
from forebay.rehearsal.new_files import choose, create
from forebay.rehearsal.services import DROPPED

__all__ = ["Rehearsal", "end_as"]

_FORWARDED = [
    getattr(signal, name)
    for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2", "SIGALRM", "SIGCONT", "SIGWINCH")
]
_WAITED = {*_FORWARDED, signal.SIGCHLD}


def _never(_path: str) -> bool:
    return False


@dataclass
class Rehearsal:
    """A program that changes no file of the user."""

    real: Sequence[str]  # folders that the program changes for real: that of the report, and caches of downloads
    # Returns True for the path of a file that is written for real at the end, also if it exists: one that the user
    # named, and those of the report.
    is_written: Callable[[str], bool] = _never
    caches: Sequence[str] = ()  # folders in which new files are created whatever they contain
    dry: bool = False  # create no new files either
    services: tuple[str, ...] = ()  # what is not sent to other services, for the report
    size: str = ""  # what changes may take, as for `launch`
    _reported: bool = field(default=False, init=False)

    def run(self, program: Sequence[str]) -> tuple[int, FilesReport, dict[str, str]]:
        """Run a program, as a shell would, until it ends.

        Return its status, negative for a signal; the report; and why new files could not be created, by path.
        """
        launched = launch(program, self.real, size=self.size)
        try:
            with _blocked(_WAITED):
                threading.Thread(target=self._answer, args=(launched,), daemon=True).start()
                status = _wait(launched.process.pid)
            launched.process.returncode = status  # it was waited for here
            report = self.report(launched)
            changes = self.changes(launched)
            _, failed = create(self._chosen(changes), self.is_written)
            return status, report, failed
        finally:
            launched.close()

    @contextmanager
    def started(self, program: Sequence[str], environment: Mapping[str, str], **options: Any) -> Iterator[Launched]:
        """Context manager: a program that was started with an environment and options of `subprocess.Popen`.

        At the end it is waited for, and no new files are created.
        """
        launched = launch(program, self.real, environment=environment, size=self.size, **options)
        try:
            with launched.process:
                yield launched
        finally:
            launched.close()

    @property
    def has_reported(self) -> bool:
        """True if the program has asked for the report, to include it in its own."""
        return self._reported

    def report(self, launched: Launched) -> FilesReport:
        """Return the changes up to now."""
        changes = self.changes(launched)
        full = format_bytes(launched.capacity) if launched.is_full else ""
        return make_report(
            changes, self._chosen(changes), launched.mechanism, launched.why_not, launched.read_only, self.services,
            full,
        )  # fmt: skip

    def changes(self, launched: Launched) -> list[Change]:
        """Return what the program has changed up to now, without semaphores, which only the system keeps as files."""
        found = read_changes(launched.layers)
        return [each for each in found if not is_semaphore(each.path)]

    def _chosen(self, changes: list[Change]) -> list[Change]:
        changes = [each for each in changes if not is_below(each.path, DROPPED)]
        if self.dry:
            changes = [each for each in changes if self.is_written(each.path)]
        # See Note [New files].
        return choose(changes, self._is_kept, self.is_written)

    def _is_kept(self, path: str) -> bool:
        return self.is_written(path) or any(is_below(path, folder) for folder in self.caches)

    def _answer(self, launched: Launched) -> None:
        """Send the report to the program each time it asks, until it ends."""
        with suppress(OSError):
            while launched.channel.recv(1):
                report = json.dumps(self.report(launched).as_json()).encode()
                self._reported = True
                launched.channel.sendall(len(report).to_bytes(8, "big") + report)


class _blocked:  # noqa: N801 -- used as a function
    """Context manager: signals wait for `_wait`, in this thread and in those that it starts."""

    def __init__(self, numbers: set[signal.Signals]) -> None:
        self._numbers = numbers

    def __enter__(self) -> None:
        self._before = signal.pthread_sigmask(signal.SIG_BLOCK, self._numbers)

    def __exit__(self, *_: object) -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, self._before)


def _wait(pid: int) -> int:
    """Wait until a child ends. Signals are passed on, except those of the terminal, which it gets itself."""
    while True:
        done, status = os.waitpid(pid, os.WNOHANG | os.WUNTRACED)
        if done and os.WIFSTOPPED(status):
            os.kill(os.getpid(), signal.SIGSTOP)  # as the program, so that the shell notices
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
        elif done:
            return os.waitstatus_to_exitcode(status)
        else:
            _pass_signal(pid)


def _pass_signal(pid: int) -> None:
    wait = getattr(signal, "sigwaitinfo", None)
    if wait is None:  # macOS, which does not tell where a signal comes from
        number, sender = signal.sigwait(_WAITED), 0
    else:
        found = wait(_WAITED)
        number, sender = found.si_signo, found.si_code
    if number != signal.SIGCHLD and sender <= 0:  # positive: the kernel, for the whole group of the terminal
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def end_as(status: int) -> int:
    """Return the exit status of a program; end by the same signal if it was ended by one."""
    if status >= 0:
        return status
    with suppress(OSError, ValueError):
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # the program's core, if any, is the one of interest
        signal.signal(-status, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {-status})
        sys.stdout.flush()
        os.kill(os.getpid(), -status)
    return 128 - status
