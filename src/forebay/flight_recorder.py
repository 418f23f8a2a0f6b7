"""Flight recorder: writes a snapshot and its explanation when memory runs out, at exit, or on a signal."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self

from forebay._base.device_spec import Device
from forebay._base.incident_triggers import REASONS, IncidentTriggers, check_reasons
from forebay.records.model import Snapshot
from forebay.runtime.allocator import statistics
from forebay.runtime.devices import open_device
from forebay.runtime.devices.open_device import OpenDevice
from forebay.runtime.history import recording
from forebay.runtime.memory.device_snapshot import take_snapshot
from forebay.snapshot.formats import native
from forebay.snapshot.report.incident_files import IncidentFiles

__all__ = ["FlightRecorder"]


class FlightRecorder:
    """A recorder of the memory history of all devices, which writes it when it is needed.

    Each snapshot has an explanation beside it: why memory ran out, or what made the peak, and which allocator settings
    would have helped. Files are replaced atomically. Use it as a context manager, or with `start` and `stop`.

    A thread of its own writes after a signal, as the signal handler may run while the main thread holds a lock. The
    handler that SIGUSR1 had runs, too. Python runs signal handlers in the main thread between two instructions, so
    that a main thread in a long C call delays the files. A forked child writes for "oom" only.

    Parameters
    ----------
    folder : str or os.PathLike
        The folder of the files, which is created. With torchrun, the names begin with the rank.
    entries : int, default 100_000
        Entries of the history of each device, 48 bytes each; the newest are kept. A recording that the program has
        started itself is left as it is.
    on : collection of str, optional
        When to write, by default all of them: "oom", before OutOfMemory is raised, the device that ran out; "exit",
        when the interpreter exits, and "signal", on SIGUSR1, all open devices.
    limit : int, default 8
        Number of snapshots to write in all.
    replay : bool, default True
        Replay the history to find settings that would have helped. 100,000 entries take about two seconds.

    Raises
    ------
    ValueError
        If `on` has another word, `entries` is not positive, or `limit` is negative.
    OSError
        If no file can be created in the folder.

    Examples
    --------
    >>> import tempfile
    >>> import forebay
    >>> from forebay.flight_recorder import FlightRecorder
    >>> with tempfile.TemporaryDirectory() as folder, FlightRecorder(folder, on=["oom"]) as recorder:
    ...     with forebay.emulate("cuda", memory="1GiB"):
    ...         try:
    ...             forebay.empty(2 << 30, dtype=forebay.uint8, device="cuda")
    ...         except forebay.OutOfMemory:
    ...             print([path.suffix for path in recorder.written])
    ['.forebay']
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        entries: int = 100_000,
        on: Collection[str] = REASONS,
        limit: int = 8,
        replay: bool = True,
    ) -> None:
        if entries < 1:
            raise ValueError(f"entries must be at least 1, not {entries}")
        self._on = check_reasons(on)
        self._files = IncidentFiles(folder, ".forebay", limit, replay)
        self._entries = entries
        self._triggers = IncidentTriggers(self.write, self._on)
        self._observers: dict[Device, Callable[..., None]] = {}

    @property
    def written(self) -> tuple[Path, ...]:
        """The snapshots that were written; the explanation of each has the suffix .txt."""
        return tuple(self._files.written)

    @property
    def suppressed(self) -> int:
        """The number of snapshots that `limit` prevented."""
        return self._files.suppressed

    def start(self) -> None:
        """Begin to record on all open devices, and on each device when it is opened.

        Raises
        ------
        RuntimeError
            If the recorder was started already.
        ValueError
            If "signal" is in `on` and this is not the main thread.
        """
        self._triggers.start()
        open_device.WHEN_OPENED.append(self._record)
        for opened in open_device.open_devices().devices:
            self._record(opened)

    def stop(self) -> None:
        """Write no more. The histories continue to be recorded. A second call has no effect."""
        if not self._triggers.started:
            return
        self._triggers.stop()
        open_device.WHEN_OPENED.remove(self._record)
        for opened in open_device.open_devices().devices:
            if (observer := self._observers.get(opened.device)) in opened.allocator.oom_observers:
                opened.allocator.oom_observers.remove(observer)
        self._observers.clear()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    def write(self, reason: str = "request") -> list[Path]:
        """Write a snapshot and its explanation for each open device that has allocated, or for each one.

        Parameters
        ----------
        reason : str, default "request"
            First word of the names of the files.
        """
        opened = open_device.open_devices().devices
        used = [each for each in opened if statistics.flat_stats(each.allocator)["allocation.all.allocated"]]
        return [path for each in used or opened if (path := self._write(each, reason)) is not None]

    def _write(self, opened: OpenDevice, reason: str) -> Path | None:
        def write(path: Path) -> Snapshot:
            snapshot = take_snapshot(opened, for_program=True)
            native.write(snapshot, path)
            return snapshot

        return self._files.write(reason, str(opened.device), write)

    def _record(self, opened: OpenDevice) -> None:
        """Record the history of a device, and observe it."""
        if not opened.allocator.recording:
            recording.start(opened.allocator, context="alloc", stacks="python", max_entries=self._entries)
        if "oom" in self._on:
            observer = partial(self._on_oom, opened.device)  # not the allocator, which refers to its observers
            opened.allocator.oom_observers.append(observer)
            self._observers[opened.device] = observer

    def _on_oom(self, device: Device, *sizes: int) -> None:  # noqa: ARG002 -- the arguments of an observer
        for opened in open_device.open_devices().devices:
            if opened.device == device:
                self._write(opened, "oom")
