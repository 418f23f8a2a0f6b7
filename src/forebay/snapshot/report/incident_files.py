"""Files that describe the memory of a program at one moment: a snapshot, and a text that explains it."""

from __future__ import annotations

import itertools
import logging
import os
import threading
from collections.abc import Callable
from contextlib import suppress
from io import StringIO
from pathlib import Path

from forebay._base.atomic_write import atomic_write, check_writable
from forebay._base.trusted_folders import make_folder
from forebay.errors import warn_unraisable
from forebay.records.model import Snapshot

__all__ = ["IncidentFiles"]

_WIDTH = 100  # characters of a line of the text
_log = logging.getLogger("forebay")


class IncidentFiles:
    """A folder of snapshots and explanations, of which a process writes a limited number.

    The folder is created; OSError is raised if no file can be created in it. `suffix` is that of the snapshots, such as
    ".forebay". Snapshots beyond `limit`, which ValueError refuses if it is negative, are only counted: a program that
    tries until memory suffices can run out of memory a thousand times. With `replay`, settings that would have helped
    are found by replays of the history.
    """

    def __init__(self, folder: str | os.PathLike[str], suffix: str, limit: int, replay: bool) -> None:
        if limit < 0:
            raise ValueError(f"limit must be a number of snapshots, not {limit}")
        self.folder: Path = Path(folder).absolute()  # the program may change its working directory
        make_folder(self.folder)
        check_writable(self.folder / f"probe{suffix}", "a snapshot")
        self.suffix: str = suffix
        self.limit: int = limit
        self.replay: bool = replay
        self.written: list[Path] = []  # snapshots, in the order of their completion
        self.suppressed: int = 0  # snapshots that the limit prevented
        self._numbers = itertools.count(1)
        self._thread = threading.local()

    def write(self, reason: str, device: str, write: Callable[[Path], Snapshot]) -> Path | None:
        """Write a snapshot and its explanation. Never raises an Exception: an error is a warning.

        The names of the files have the reason, which is "oom", "exit" or "signal", and the device. `write` writes the
        snapshot to a path, atomically, and returns it. The result is None if the limit is reached, after an error, or
        if this thread is writing already: writing can itself run out of memory.
        """
        if getattr(self._thread, "writing", False):
            return None
        number = next(self._numbers)
        if number > self.limit:
            self.suppressed += 1
            return None
        rank = os.environ.get("RANK", "")  # as torchrun sets it
        names = [f"rank{rank}"] if rank.isdecimal() else []
        names += [reason, str(os.getpid()), str(number), device.replace(":", "-")]
        path = self.folder / ("-".join(names) + self.suffix)
        self._thread.writing = True
        try:
            snapshot = write(path)
            self.written.append(path)
            text = path.with_suffix(".txt")
            self._write_text(snapshot, text)
        except Exception as error:  # noqa: BLE001 -- the program's own error must be the one that it sees
            warn_unraisable(f"the snapshot {str(path)!r} was not written completely: {type(error).__name__}: {error}")
            return None
        finally:
            self._thread.writing = False
        with suppress(Exception):  # a handler of the program
            _log.warning("memory of %s (%s): wrote %s and %s", device, reason, path, text.name)
        return path

    def _write_text(self, snapshot: Snapshot, path: Path) -> None:
        from rich.console import Console

        from forebay.errors import Unsupported
        from forebay.snapshot.report.explanation import explanation
        from forebay.snapshot.report.explanation_text import paragraphs
        from forebay.snapshot.report.paragraph_rich import print_paragraphs

        text = StringIO()
        console = Console(file=text, width=_WIDTH, highlight=False, no_color=True, force_terminal=False)
        try:
            print_paragraphs(console, paragraphs(explanation(snapshot, replay=self.replay)))
        except Unsupported as error:
            console.print(f"The memory cannot be explained: {error}", markup=False)
        with atomic_write(path) as file:
            file.write("".join(f"{line.rstrip()}\n" for line in text.getvalue().splitlines()).encode())
