"""Watches NumPy's memory while a program runs, and tells of it after the program's threads and exit handlers."""

from __future__ import annotations

import atexit
import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from forebay.commands import Failure, run_report
from forebay.commands.run_report import reason
from forebay.commands.terminal import Terminal

if TYPE_CHECKING:
    from forebay.observe import Trace

DEVICE = "host:0"


@dataclass
class Recording:
    """From `start` until the process leaves; a forked child tells nothing."""

    output: Path  # absolute: the program may go elsewhere
    argv: list[str]
    memory: int | None = None
    entries: int | None = None  # of history; None is without
    show_page: bool = False
    interrupted: bool = False  # the program died of Ctrl-C
    _terminal: Terminal = field(default_factory=Terminal)
    _process: int = field(default_factory=os.getpid)
    _path: list[str] = field(default_factory=lambda: sys.path[not sys.flags.safe_path :])
    _started: float = 0.0
    _trace: Trace | None = None

    def prepare(self) -> None:
        """Make sure, before the program starts, that it can be watched and the report written; raises Failure."""
        try:
            from forebay import memory  # noqa: F401 - raises the reason where the compiled core does not load
        except ImportError as error:
            raise Failure(str(error)) from error
        probe = self.output / f".writable-{os.getpid()}"
        try:
            self.output.mkdir(parents=True, exist_ok=True)
            probe.touch(exist_ok=False)
            probe.unlink()
        except FileExistsError as error:
            raise Failure(f"cannot write the report to {str(self.output)!r}: it is not a directory") from error
        except (OSError, ValueError) as error:
            raise Failure(f"cannot write the report to {str(self.output)!r}: {reason(error)}") from error
        for name in (run_report.SNAPSHOT, run_report.REPORT):
            if (self.output / name).is_dir():
                raise Failure(f"cannot write {str(self.output / name)!r}: it is a directory")

    def start(self) -> None:
        """The first exit handler runs last, so this comes before anything the program does."""
        from forebay import memory
        from forebay.errors import ForebayError
        from forebay.interop import numpy

        atexit.register(self._finish)
        try:
            if self.memory is not None:
                memory.set_capacity(self.memory, DEVICE)
            numpy.install(DEVICE)
            if self.entries is not None:
                memory.record_history(self.entries, device=DEVICE)
        except (ForebayError, ValueError, MemoryError) as error:
            self.cancel()
            notes = getattr(error, "__notes__", ())  # which environment variable says so
            raise Failure("; ".join([str(error), *notes])) from error
        self._started = time.perf_counter()

    def start_trace(self, path: Path) -> None:
        """Trace the program, too; raises Failure. It ends, and is written, before the report."""
        from forebay.observe import Trace

        self._trace = Trace(path)
        try:
            self._trace.start()
        except (OSError, ValueError, ImportError) as error:
            self.cancel()
            raise Failure(f"cannot write a trace to {str(path)!r}: {reason(error)}") from error

    def cancel(self) -> None:
        """There was no program after all."""
        atexit.unregister(self._finish)

    def _finish(self) -> None:
        if os.getpid() != self._process:
            return
        try:
            with _interruptible_once():
                seconds = time.perf_counter() - self._started
                sys.setrecursionlimit(max(sys.getrecursionlimit(), 1000))  # the program may have left us too little
                with suppress(Exception):  # closed, broken, or the program's own; Python says so when it leaves
                    sys.stdout.flush()
                sys.path[:] = self._path  # what is imported from here on is not to come from the program's folder
                self._tell(seconds)
        except KeyboardInterrupt:
            self._terminal.say("forebay: interrupted before the report was finished")
        except Exception as error:  # noqa: BLE001 - the program's outcome stands, whatever happens here
            self._terminal.say(f"forebay: error: the report failed: {type(error).__name__}: {reason(error)}")
        if self.interrupted:
            # CPython dies of the signal if a KeyboardInterrupt was the last thing that ended code given as text, and
            # imports run code as text (dataclasses, named tuples): so this must be the last one again.
            with suppress(KeyboardInterrupt):
                exec("raise KeyboardInterrupt")  # noqa: S102 - see above

    def _tell(self, seconds: float) -> None:
        import numpy as np

        from forebay import memory
        from forebay.interop import numpy

        numpy.uninstall()  # the report's own arrays are no part of the story, and there may be no room for them
        with np.errstate(all="ignore"):  # the program may have asked for exceptions
            run_report.tell(memory.snapshot(DEVICE, notes=self._notes(seconds)), self._terminal, self.output)
            if self._trace is not None and self._trace.written:
                self._terminal.console().print(f"{'trace':9} {self._trace.path}", soft_wrap=True, markup=False)
            if self.show_page:
                run_report.show_page(self._terminal, self.output)

    def _notes(self, seconds: float) -> dict[str, object]:
        import platform

        import numpy as np

        import forebay

        versions = {"forebay": forebay.__version__, "python": platform.python_version(), "numpy": np.__version__}
        return {"program": self.argv, "seconds": round(seconds, 3), "platform": platform.platform(), **versions}


@contextmanager
def _interruptible_once() -> Iterator[None]:
    """Ctrl-C raises KeyboardInterrupt the first time; after that, and when we are done, it simply kills."""

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # what follows is short and cleans up
        raise KeyboardInterrupt

    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # the program's wish
        yield
        return
    signal.signal(signal.SIGINT, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
