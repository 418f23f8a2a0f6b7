"""Session of `forebay run`: records NumPy's memory, and reports after the program's threads and exit handlers."""

from __future__ import annotations

import atexit
import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from forebay.commands import (
    CommandError,
    run_children,
    run_devices,
    run_output,
    run_process,
    run_rehearsal,
    run_report,
    run_torch,
)
from forebay.commands.reserved_descriptors import ReservedDescriptors
from forebay.commands.run_output import reason
from forebay.commands.run_progress import ProgressLine
from forebay.commands.terminal import Terminal
from forebay.errors import ForebayError, warn_unraisable
from forebay.observe.monitor.endpoint import Endpoint
from forebay.records.site_choice import DEFAULT_CHOICE, SiteChoice
from forebay.rehearsal.inside import Channel

if TYPE_CHECKING:
    from forebay.observe import Trace
    from forebay.records.model import Snapshot


@dataclass
class RunSession:
    """A recording from `start` until the process exits. Each forked child continues with its own."""

    output: Path  # absolute, as the program may change the working directory
    argv: list[str]
    memory: int | None = None
    entries: int | None = None  # size of the history; None: no history
    show_page: bool = False
    overwrite: bool = False  # an earlier report in `output`
    quiet: bool = False  # print errors only
    as_json: bool = False  # print the summary as JSON instead of tables
    children: bool = True  # forked processes report, too
    progress: bool = False  # print a line while the program runs
    monitor: bool = True  # offer figures to forebay top and forebay exporter
    site_choice: SiteChoice = DEFAULT_CHOICE  # for the report
    interrupted: bool = False  # the program was ended by Ctrl-C
    _terminal: Terminal = field(default_factory=Terminal)
    _process: int = field(default_factory=os.getpid)
    _path: list[str] = field(default_factory=lambda: sys.path[not sys.flags.safe_path :])
    _wanted: Path = field(default_factory=Path)
    _started: float = 0.0
    _run: str = field(default_factory=lambda: f"{os.getpid()}-{time.time_ns()}")
    _progress: ProgressLine | None = None
    _endpoint: Endpoint | None = None
    _is_child: bool = False
    _finished: bool = False
    _ends_replaced: bool = False
    _trace: Trace | None = None
    _rehearsal: Channel = field(default_factory=Channel)  # of a program that changes no files
    _descriptors: ReservedDescriptors = field(default_factory=ReservedDescriptors)

    def prepare(self) -> None:
        """Check that the core loads and the report can be written. Raises CommandError."""
        try:
            from forebay import memory  # noqa: F401 - raises ImportError if the compiled core cannot be loaded
        except ImportError as error:
            raise CommandError(str(error)) from error
        self._wanted = self.output
        if not self.overwrite:
            self.output = run_output.free_directory(self._wanted)
        run_output.make_directory(self.output)

    def start(self) -> None:
        """Start recording. Call before the program: the exit handler registered first runs last."""
        atexit.register(self._finish)
        run_children.report_before(self._finish_early, self._announce)
        try:
            run_devices.start(self.memory, self.entries)
        except (ForebayError, ValueError, MemoryError) as error:
            self.cancel()
            notes = getattr(error, "__notes__", ())  # name the environment variable with the bad value
            raise CommandError("; ".join([str(error), *notes])) from error
        self._started = time.perf_counter()
        if self.progress:
            self._progress = ProgressLine(self._terminal)
        if self.monitor:
            self._start_endpoint()
        if self.children:
            os.register_at_fork(after_in_child=self._continue_in_child)

    def _start_endpoint(self) -> None:
        self._endpoint = Endpoint()
        try:
            self._endpoint.start()
        except OSError as error:  # the program runs without
            if not (self.quiet or self.as_json):
                self._terminal.print_line(f"forebay: forebay top cannot read this program: {reason(error)}")

    def _continue_in_child(self) -> None:
        """Record anew in a forked child. Never raises, as a fork handler."""
        if os.getppid() != self._process or self._finished:  # forked by a child that is no part of the program
            return
        try:
            self._process, self._is_child, self._started = os.getpid(), True, time.perf_counter()
            run_devices.restart(self.entries)
            if self._endpoint is not None:
                with suppress(Exception):
                    self._endpoint.start()
            if not self._ends_replaced:
                self._ends_replaced = True
                run_children.report_every_end(self._finish_child)
        except Exception as error:  # noqa: BLE001 - the child runs without a report
            self._process = 0
            warn_unraisable(f"forebay run does not record process {os.getpid()}: {reason(error)}")

    def _finish_child(self) -> None:
        """Write the report of a forked child, once, and unless it allocated nothing. Never raises."""
        if os.getpid() != self._process or self._finished:
            return
        self._finished = True
        with suppress(BaseException):  # the child's outcome must not change, and its standard error is the program's
            if self._endpoint is not None:
                self._endpoint.stop()
            from forebay.interop import numpy

            process = run_process.measure()
            numpy.uninstall()
            found = run_devices.snapshots({}, opened_only=True)
            if process.other_count or any(each.stats["allocation.all.allocated"] for each in found):
                notes = {**self._notes(time.perf_counter() - self._started), "run": self._run, "parent": os.getppid()}
                found = [replace(each, notes={**each.notes, **notes}) for each in found]
                output = run_children.directory_of(self.output, os.getpid())
                run_report.write_child(self._with_choice(found), process, notes, self._terminal, output)

    def start_trace(self, path: Path) -> None:
        """Trace the program; the trace is written before the report. Raises CommandError."""
        from forebay.observe import Trace

        self._trace = Trace(path)
        try:
            self._trace.start()
        except (OSError, ValueError, ImportError) as error:
            self.cancel()
            raise CommandError(f"cannot write a trace to {str(path)!r}: {reason(error)}") from error

    def cancel(self) -> None:
        """Cancel the report, as the program was not run."""
        atexit.unregister(self._finish)
        self._finished = True
        run_torch.discard()

    def _announce(self) -> None:
        """Say that another program replaces this one."""
        if os.getpid() == self._process and not self._is_child and not self.quiet and not self.as_json:
            self._terminal.print_line("forebay: another program replaces this one (os.exec*); it is not in the report")

    def _finish_early(self) -> None:
        """Report before os._exit and os.exec*, which run no exit handlers. What the program has buffered stays so."""
        if not self._is_child:
            self._finish(early=True)

    def _finish(self, *, early: bool = False) -> None:
        if self._is_child:
            self._finish_child()
        if os.getpid() != self._process or self._finished:
            return
        self._finished = True  # processes that are forked from now on are not the program's
        try:
            with nullcontext() if early else _interruptible_once():
                seconds = time.perf_counter() - self._started
                sys.setrecursionlimit(max(sys.getrecursionlimit(), 1000))  # may be too low for the report
                if not early:
                    with suppress(Exception):  # closed, broken or replaced by the program; Python reports that at exit
                        sys.stdout.flush()
                sys.path[:] = self._path  # later imports must not load modules from the program's folder
                if self._progress is not None:
                    self._progress.stop()
                if self._endpoint is not None:
                    self._endpoint.stop()
                self._descriptors.release()
                self._report(seconds)
        except KeyboardInterrupt:
            self._terminal.print_line("forebay: interrupted before the report was finished")
        except Exception as error:  # noqa: BLE001 - a failing report must not change the program's outcome
            self._terminal.print_line(f"forebay: error: the report failed: {type(error).__name__}: {reason(error)}")
        if self.interrupted:
            # CPython exits by SIGINT only if the last code run by exec() ended with KeyboardInterrupt. Imports use
            # exec() as well (dataclasses, named tuples), so it must be repeated here.
            with suppress(KeyboardInterrupt):
                exec("raise KeyboardInterrupt")  # noqa: S102 - see above

    def _report(self, seconds: float) -> None:
        import numpy as np

        from forebay.interop import numpy

        process = run_process.measure()
        numpy.uninstall()  # arrays of the report must not be recorded, and the device may be full
        with np.errstate(all="ignore"):  # the program may have enabled exceptions
            if not self.overwrite and run_output.has_report(self.output):  # another run has written one since
                self.output = run_output.free_directory(self._wanted)
            style = "quiet" if self.quiet else "json" if self.as_json else "tables"
            notes = {**self._notes(seconds), "run": self._run}
            files = self._rehearsal.report()
            snapshots = run_devices.snapshots({**notes, **run_rehearsal.notes_of(files)})
            run_report.report(self._with_choice(snapshots), process, notes, self._terminal, self.output, style, files)
            if self._trace is not None and self._trace.written and style == "tables":
                self._terminal.console().print(f"{'trace':9} {self._trace.path}", soft_wrap=True, markup=False)
            if self.show_page:
                run_report.show_page(self._terminal, self.output)

    def _with_choice(self, snapshots: list[Snapshot]) -> list[Snapshot]:
        return [replace(each, site_choice=self.site_choice) for each in snapshots]

    def _notes(self, seconds: float) -> dict[str, object]:
        import platform

        import numpy as np

        import forebay

        versions = {"forebay": forebay.__version__, "python": platform.python_version(), "numpy": np.__version__}
        return {"program": self.argv, "seconds": round(seconds, 3), "platform": platform.platform(), **versions}


@contextmanager
def _interruptible_once() -> Iterator[None]:
    """Context manager: the first Ctrl-C raises KeyboardInterrupt, later ones are ignored. Ends with SIG_DFL."""

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the cleanup that follows is short
        raise KeyboardInterrupt

    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # set by the program
        yield
        return
    signal.signal(signal.SIGINT, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
