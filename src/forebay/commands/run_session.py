"""Session of `forebay run`: records NumPy's memory, and reports after the program's threads and exit handlers."""

from __future__ import annotations

import atexit
import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from forebay._base.config import EMULATE
from forebay.commands import (
    CommandError,
    process_log,
    run_children,
    run_devices,
    run_output,
    run_process,
    run_rehearsal,
    run_report,
    run_resident,
    run_started,
    run_torch,
)
from forebay.commands.reserved_descriptors import ReservedDescriptors
from forebay.commands.run_devices import Sampling
from forebay.commands.run_ends import ProgramEnds
from forebay.commands.run_output import reason
from forebay.commands.run_progress import ProgressLine
from forebay.commands.run_stream import Stream
from forebay.commands.terminal import Terminal
from forebay.errors import ForebayError, warn_unraisable
from forebay.observe.monitor.endpoint import Endpoint
from forebay.records.site_choice import DEFAULT_CHOICE, SiteChoice
from forebay.rehearsal.inside import Channel

if TYPE_CHECKING:
    from forebay.commands.run_processes import Processes
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
    started: bool = True  # so do those that are started, unless `children` is false
    progress: bool = False  # print a line while the program runs
    monitor: bool = True  # offer figures to forebay top and forebay exporter
    site_choice: SiteChoice = DEFAULT_CHOICE  # for the report
    sampling: Sampling | None = None  # of the arrays that NumPy allocates itself
    interrupted: bool = False  # the program was ended by Ctrl-C
    _terminal: Terminal = field(default_factory=Terminal)
    _process: int = field(default_factory=os.getpid)
    _path: list[str] = field(default_factory=lambda: sys.path[not sys.flags.safe_path :])
    wanted: Path = field(default_factory=Path)  # `output` before it got a number
    run: str = field(default_factory=lambda: f"{os.getpid()}-{time.time_ns()}")  # of all processes of the program
    _started: float = 0.0
    _log: Path | None = None  # of the program's processes
    _progress: ProgressLine | None = None
    _endpoint: Endpoint | None = None
    _is_child: bool = False
    _is_forked: bool = False
    _is_replaced: bool = False  # by another Python, which reads the log
    _finished: bool = False
    _stream: Stream | None = None  # the state of the program, while it runs
    _ends: ProgramEnds | None = None
    _trace: Trace | None = None
    _rehearsal: Channel = field(default_factory=Channel)  # of a program that changes no files
    _descriptors: ReservedDescriptors = field(default_factory=ReservedDescriptors)

    def prepare(self) -> None:
        """Check that the core loads and the report can be written. Raises CommandError."""
        try:
            from forebay import memory  # noqa: F401 - raises ImportError if the compiled core cannot be loaded
        except ImportError as error:
            raise CommandError(str(error)) from error
        self.wanted = self.output
        if not self.overwrite:
            self.output = run_output.free_directory(self.wanted)
        run_output.make_directory(self.output)

    def start(self) -> None:
        """Start recording. Call before the program: the exit handler registered first runs last."""
        atexit.register(self._finish)
        self._ends = ProgramEnds(self._finish_early, self._announce)
        self._ends.watch(signals=self.started)
        try:
            run_devices.start(self.memory, self.entries, self.sampling)
        except (ForebayError, ValueError, MemoryError) as error:
            self.cancel()
            notes = getattr(error, "__notes__", ())  # name the environment variable with the bad value
            raise CommandError("; ".join([str(error), *notes])) from error
        run_resident.begin()
        self._started = time.perf_counter()
        if self.progress:
            self._progress = ProgressLine(self._terminal)
        if self.monitor:
            self._start_endpoint()
        if self.children:
            os.register_at_fork(after_in_child=self._continue_in_child)
        if self.children and self.started:
            self._reach_processes()
        if self.started:
            self._start_stream(self.output, at_once=True)

    def start_in_child(self, log: Path) -> None:
        """Start recording in a process that the program has started. Raises as the runtime does."""
        self._log, self._is_child, self._process = log, True, os.getpid()
        run_devices.start(self.memory, self.entries)
        self._started = time.perf_counter()
        if self.monitor:
            self._endpoint = Endpoint()
            with suppress(OSError):  # the process runs without
                self._endpoint.start()
        self._ends = ProgramEnds(self._finish_early, self._announce)
        self._ends.watch(signals=True)
        os.register_at_fork(after_in_child=self._continue_in_child)
        self._note(process_log.RECORDS)
        self._start_stream(run_children.free_directory(self.output, os.getpid()))

    def finish(self) -> None:
        """Write the report, unless that is done. Never raises."""
        self._finish()

    def _reach_processes(self) -> None:
        """Let processes that the program starts record themselves. Without a log, they are not recorded."""
        options = {
            "run": self.run, "wanted": str(self.wanted), "memory": self.memory, "entries": self.entries,
            "monitor": self.monitor, "sites": asdict(self.site_choice), "quiet": self.quiet, "as_json": self.as_json,
        }  # fmt: skip
        try:
            self._log = run_started.write_log(self.output, options)
        except OSError as error:
            self._terminal.print_line(
                f"forebay: the processes that the program starts are not recorded: {reason(error)}"
            )
            return
        run_started.reach_processes(self._log)

    def _start_stream(self, folder: Path, *, at_once: bool = False) -> None:
        """Write the state of the CPU device to a folder while the program runs."""
        from forebay.runtime.devices.current import opened_for

        notes = {"program": self.argv, "run": self.run}
        self._stream = Stream(folder / run_output.SNAPSHOT, opened_for(run_devices.CPU), notes)
        self._stream.start(at_once=at_once)

    def _note(self, event: str, text: str = "") -> None:
        """Note an event of this process in the log of the program."""
        if self._log is not None:
            process_log.append(str(self._log), event, os.getpid(), text)

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
        with nullcontext() if self._ends is None else self._ends.restarting():
            self._begin_in_child()

    def _begin_in_child(self) -> None:
        try:
            if self._stream is not None:
                self._stream.abandon()
            self._process, self._is_child, self._is_forked = os.getpid(), True, True
            self._started = time.perf_counter()
            self._note(process_log.BEGAN, process_log.FORK)
            run_devices.restart(self.entries, self.sampling)
            run_resident.begin()
            if self._endpoint is not None:
                with suppress(Exception):
                    self._endpoint.start()
            if self._ends is not None:
                self._ends.watch_signals()
            self._note(process_log.RECORDS)
            if self._stream is not None:
                self._start_stream(run_children.free_directory(self.output, os.getpid()))
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

            process, end = run_process.measure(), run_resident.measure()
            others = numpy.other_arrays()
            if self._stream is not None:
                self._stream.stop()
            numpy.uninstall()
            sys.path[:] = self._path  # as in `_finish`
            found = run_devices.snapshots({}, opened_only=True)
            process = replace(process, growth=run_resident.growth(end, found, others))
            if process.other_count or any(each.stats["allocation.all.allocated"] for each in found):
                notes = {**self._notes(time.perf_counter() - self._started), "run": self.run, "parent": os.getppid()}
                found = [replace(each, notes={**each.notes, **notes}) for each in found]
                output = self._stream.path.parent if self._stream is not None and self._stream.has_file else None
                output = output or run_children.free_directory(self.output, os.getpid())
                notes |= {"command": self._command(), "directory": output.name}
                run_report.write_child(self._with_choice(found), process, notes, self._terminal, output)
            elif self._stream is not None:
                self._stream.remove()
        self._note(process_log.ENDED)

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
        if self._stream is not None:
            self._stream.stop()
            self._stream.remove()
        if self._log is not None and not self._is_child:
            self._log.unlink(missing_ok=True)
        run_torch.discard()

    def _command(self) -> str:
        """Return the words by which a child was started; "" for one that was forked."""
        return "" if self._is_forked else " ".join(sys.orig_argv)

    def _announce(self, program: str) -> None:
        """Say that another program replaces this one."""
        if os.getpid() != self._process:
            return
        self._note(process_log.REPLACED, program)
        self._is_replaced = self._log is not None and run_started.is_python(program)
        if not self._is_child and not self.quiet and not self.as_json:
            then = "a report of its own follows if it imports NumPy" if self._is_replaced else "it is not in the report"
            self._terminal.print_line(f"forebay: another program replaces this one (os.exec*); {then}")

    def _finish_early(self) -> None:
        """Report before an end without exit handlers, such as os._exit: what the program has buffered stays so.

        Also before a signal ends the process: Note [Signals that end a program].
        """
        self._finish(early=True)

    def _finish(self, *, early: bool = False) -> None:
        with nullcontext() if self._ends is None else self._ends.reporting():
            self._finish_once(early=early)

    def _finish_once(self, *, early: bool) -> None:
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
        if self._log is not None and not self._is_replaced:
            with suppress(OSError):
                self._log.unlink()
        if self.interrupted:
            # CPython exits by SIGINT only if the last code run by exec() ended with KeyboardInterrupt. Imports use
            # exec() as well (dataclasses, named tuples), so it must be repeated here.
            with suppress(KeyboardInterrupt):
                exec("raise KeyboardInterrupt")  # noqa: S102 - see above

    def _report(self, seconds: float) -> None:
        import numpy as np

        from forebay.interop import numpy

        process, end, others = run_process.measure(), run_resident.measure(), numpy.other_arrays()
        if self._stream is not None:
            self._stream.stop()
        numpy.uninstall()  # arrays of the report must not be recorded, and the device may be full
        with np.errstate(all="ignore"):  # the program may have enabled exceptions
            own = self._stream.path if self._stream is not None and self._stream.has_file else None
            if not self.overwrite and run_output.has_report(self.output, own=own):  # another run has written one
                if self._stream is not None:
                    self._stream.remove()
                self.output = run_output.free_directory(self.wanted)
            style = "quiet" if self.quiet else "json" if self.as_json else "tables"
            notes = {**self._notes(seconds), "run": self.run}
            files = self._rehearsal.report()
            snapshots = run_devices.snapshots({**notes, **run_rehearsal.notes_of(files)})
            if not EMULATE.value():  # else the program is about another device's memory
                process = replace(process, growth=run_resident.growth(end, snapshots, others))
                snapshots = run_devices.with_growth(snapshots, process.growth)
            processes = self._other_processes()
            run_report.report(
                self._with_choice(snapshots), process, notes, self._terminal, self.output, style, files, processes
            )
            if self._stream is not None and (self.output / run_output.SUMMARY).is_file():
                self._stream.remove()  # it has been replaced, unless there are several snapshots
            if self._trace is not None and self._trace.written and style == "tables":
                self._terminal.console().print(f"{'trace':9} {self._trace.path}", soft_wrap=True, markup=False)
            if self.show_page:
                run_report.show_page(self._terminal, self.output)

    def _other_processes(self) -> Processes | None:
        """Return the processes of the program that have no report; None if there is no log of them."""
        if self._log is None:
            return None
        from forebay.commands.run_processes import find_processes

        return find_processes(self._log, [each["pid"] for each in run_children.collect(self.output, self.run)])

    def _with_choice(self, snapshots: list[Snapshot]) -> list[Snapshot]:
        return [replace(each, site_choice=self.site_choice) for each in snapshots]

    def _notes(self, seconds: float) -> dict[str, object]:
        import numpy as np

        import forebay

        python = ".".join(map(str, sys.version_info[:3]))
        versions = {"forebay": forebay.__version__, "python": python, "numpy": np.__version__}
        return {"program": self.argv, "seconds": round(seconds, 3), "platform": _platform(), **versions}


def _platform() -> str:
    """Return the system as `platform.platform` does, which starts a process."""
    try:
        system, libc = os.uname(), (os.confstr("CS_GNU_LIBC_VERSION") or "").split()
    except (OSError, ValueError):  # another C library
        import platform

        return platform.platform()
    return f"{system.sysname}-{system.release}-{system.machine}-with-{''.join(libc)}"


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
