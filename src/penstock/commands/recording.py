"""Watches NumPy's memory while a program runs, and tells the story after all else: after its threads and exit handlers."""

from __future__ import annotations

import atexit
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from penstock.commands import Failure
from penstock.commands.terminal import Terminal

if TYPE_CHECKING:
    from rich.console import Console

    from penstock.snapshot.model import Snapshot

DEVICE = "host:0"
SNAPSHOT, REPORT = "snapshot.penstock", "report.html"


@dataclass
class Recording:
    """From `start` until the process leaves; a forked child tells nothing."""

    output: Path  # absolute: the program may go elsewhere
    argv: list[str]
    memory: int | None = None
    entries: int | None = None  # of history; None is without
    show_page: bool = False
    _terminal: Terminal = field(default_factory=Terminal)
    _process: int = field(default_factory=os.getpid)
    _started: float = 0.0

    def prepare(self) -> None:
        """Make sure, before the program starts, that the report can be written; raises Failure."""
        probe = self.output / f".writable-{os.getpid()}"
        try:
            self.output.mkdir(parents=True, exist_ok=True)
            probe.touch(exist_ok=False)
            probe.unlink()
        except FileExistsError as error:
            raise Failure(f"cannot write the report to {str(self.output)!r}: it is not a directory") from error
        except (OSError, ValueError) as error:
            raise Failure(f"cannot write the report to {str(self.output)!r}: {_reason(error)}") from error
        for name in (SNAPSHOT, REPORT):
            if (self.output / name).is_dir():
                raise Failure(f"cannot write {str(self.output / name)!r}: it is a directory")

    def start(self) -> None:
        """The first exit handler runs last, so this comes before anything the program does."""
        from penstock import memory
        from penstock.errors import PenstockError
        from penstock.interop import numpy

        atexit.register(self._finish)
        try:
            if self.memory is not None:
                memory.set_capacity(self.memory, DEVICE)
            numpy.install(DEVICE)
            if self.entries is not None:
                memory.record_history(self.entries, device=DEVICE)
        except (PenstockError, ValueError, MemoryError) as error:
            self.cancel()
            raise Failure(str(error)) from error
        self._started = time.perf_counter()

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
                self._tell(seconds)
        except KeyboardInterrupt:
            self._terminal.say("penstock: interrupted before the report was finished")
        except Exception as error:  # noqa: BLE001 - the program's outcome stands, whatever happens here
            self._terminal.say(f"penstock: error: the report failed: {type(error).__name__}: {_reason(error)}")

    def _tell(self, seconds: float) -> None:
        import numpy as np

        from penstock import memory
        from penstock.interop import numpy
        from penstock.snapshot import text

        numpy.uninstall()  # the report's own arrays are no part of the story, and there may be no room for them
        snapshot = memory.snapshot(DEVICE, notes=self._notes(seconds))
        console = self._terminal.console()
        with np.errstate(all="ignore"):  # the program may have asked for exceptions
            console.print()
            console.print(text.report(snapshot))
            self._write(snapshot, console)

    def _write(self, snapshot: Snapshot, console: Console) -> None:
        from rich.progress import Progress

        from penstock.snapshot import codec, html

        def write_snapshot(path: Path) -> None:
            codec.write(snapshot, path, lambda done, total: show(done / max(1, total)))

        def write_page(path: Path) -> None:
            with in_place_of(path) as part, part.open("x", encoding="utf-8") as out:
                html.write(snapshot, out)

        # No thread redraws the bar: none can be started while the interpreter leaves.
        with Progress(console=console, transient=True, auto_refresh=False, disable=not console.is_terminal) as progress:
            task = progress.add_task("writing the snapshot", total=2)

            def show(share: float) -> None:
                progress.update(task, completed=share)
                progress.refresh()

            written = [self._attempt(write_snapshot, SNAPSHOT)]
            progress.update(task, description="writing the report", completed=1)
            progress.refresh()
            written.append(self._attempt(write_page, REPORT))
        console.print()
        for what, path in zip(("snapshot", "report"), written, strict=True):
            if path is not None:
                console.print(f"{what:9} {path}", soft_wrap=True, markup=False)
        if self.show_page and (page := written[-1]) is not None and not _opened(page):
            console.print("no browser could be started: open the report yourself")

    def _attempt(self, write: Callable[[Path], None], name: str) -> Path | None:
        path = self.output / name
        try:
            path.parent.mkdir(parents=True, exist_ok=True)  # the program may have removed it
            write(path)
        except Exception as error:  # noqa: BLE001 - the other file may still go well
            self._terminal.say(f"penstock: error: cannot write {str(path)!r}: {_reason(error)}")
            return None
        return path

    def _notes(self, seconds: float) -> dict[str, object]:
        import platform

        import numpy as np

        import penstock

        versions = {"penstock": penstock.__version__, "python": platform.python_version(), "numpy": np.__version__}
        return {"program": self.argv, "seconds": round(seconds, 3), "platform": platform.platform(), **versions}


@contextmanager
def in_place_of(path: Path) -> Iterator[Path]:
    """A name beside `path` to write to; it becomes `path` when that went well, and goes when it did not."""
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    part.unlink(missing_ok=True)  # of an earlier process with our number
    try:
        yield part
        part.replace(path)
    except BaseException:  # Ctrl-C, too
        part.unlink(missing_ok=True)
        raise


@contextmanager
def _interruptible_once() -> Iterator[None]:
    """Ctrl-C raises KeyboardInterrupt the first time; after that, and when we are done, it simply kills."""

    def interrupt(number: int, frame: FrameType | None) -> None:
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


def _opened(page: Path) -> bool:
    import webbrowser

    try:
        return webbrowser.open(page.as_uri())
    except (OSError, RuntimeError, webbrowser.Error):  # newer Pythons start no process this late
        return False


def _reason(error: BaseException) -> str:
    """An error in one line."""
    words = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return " ".join(words.split()) or type(error).__name__
