"""Reads the records of the processes of a program."""

from __future__ import annotations

import json
import signal
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from forebay._base.kernel_checks import KernelCheck
from forebay._base.verdicts import Assumption, DeviceEvents, Ending, How, ProcessEvents
from forebay.interop.torch.processes.live_record import (
    CHANGES,
    DEVICE_WORDS,
    DEVICES,
    HEADER,
    NO_STATUS,
    SUFFIX,
    Word,
    WordOfDevice,
)

__all__ = ["ProcessRecord", "ending_by_status", "live_peak", "read_records", "with_main", "without_record"]


@dataclass(frozen=True, slots=True)
class ProcessRecord:
    """Record of one process."""

    events: ProcessEvents  # its peaks and its end
    started: int  # nanoseconds of the monotonic clock
    ended: int | None  # the same; None if it ended without Python's exit
    changes: NDArray[np.int64]  # times, devices, and bytes reserved from then on, one row each
    details: Mapping[int, Mapping[str, Any]]  # what held the peak of each device, as `PeakUse.as_json` returns it
    cards: Mapping[str, Any] | None = None  # what other cards would have done; None: it has not imported PyTorch


def read_records(folder: Path) -> list[ProcessRecord]:
    """Return the records in a folder, in the order in which they began."""
    found = []
    for path in sorted(folder.glob(f"*{SUFFIX}")):
        with suppress(OSError):
            words = np.fromfile(path, np.int64)
            if len(words) >= HEADER + DEVICES * DEVICE_WORDS and words[Word.VERSION] == 1:
                found.append(_record(words, _text(path.with_suffix(".json"))))
    return found


def live_peak(folder: Path) -> int:
    """Return the largest peak of the bytes in blocks of any process and device until now, while they run."""
    peak = 0
    for path in folder.glob(f"*{SUFFIX}"):
        with suppress(OSError):
            words = np.fromfile(path, np.int64, HEADER + DEVICES * DEVICE_WORDS)
            if len(words) == HEADER + DEVICES * DEVICE_WORDS:
                peak = max(peak, int(words[HEADER:].reshape(DEVICES, DEVICE_WORDS)[:, WordOfDevice.ALLOCATED].max()))
    return peak


def with_main(records: list[ProcessRecord], pid: int, ending: Ending | None) -> list[ProcessRecord]:
    """Mark the program's first process, whose end its parent knows; the last record of it, if it replaced itself."""
    last = max((at for at, each in enumerate(records) if each.events.pid == pid), default=None)
    if last is None:
        events = ProcessEvents(pid, ending or Ending(How.FINISHED), is_main=True)
        return [without_record(events), *records]
    events = records[last].events
    known = events.ending
    # What ended the process, as it has recorded itself, says more than its status; and a limit that it has survived
    # by finishing in the last moment does not count.
    says_more = known.how in (How.EXCEPTION, How.TIME_LIMIT)
    if ending is not None and not (says_more and ending.how is not How.FINISHED):
        known = ending
    main = replace(records[last], events=replace(events, ending=known, is_main=True))
    return [main, *records[:last], *records[last + 1 :]]


def without_record(events: ProcessEvents) -> ProcessRecord:
    """Return the record of a process that has written none."""
    return ProcessRecord(events, 0, None, np.empty((0, 3), np.int64), {})


def ending_by_status(status: int) -> Ending:
    """Return the end of a process with the status that `subprocess` reports."""
    if status == 0:
        return Ending(How.FINISHED)
    if status > 0:
        return Ending(How.STATUS, f"exit status {status}")
    return Ending(How.SIGNAL, _name_of(-status))


def _record(words: NDArray[np.int64], text: Mapping[str, Any]) -> ProcessRecord:
    devices = words[HEADER : HEADER + DEVICES * DEVICE_WORDS].reshape(DEVICES, DEVICE_WORDS)
    events = [_device(index, row) for index, row in enumerate(devices) if row[WordOfDevice.IS_KNOWN]]
    return ProcessRecord(
        ProcessEvents(
            int(words[Word.PID]),
            _ending(words, text),
            tuple(events),
            tuple(map(_ending_of, text.get("failures", ()))),
            tuple(text.get("unread", ())),
            tuple(Assumption(*each) for each in text.get("assumed", ())),
            tuple(_kernel(*each) for each in text.get("kernels", ())),
        ),
        int(words[Word.STARTED]),
        int(words[Word.ENDED]) or None,
        _changes(words, devices),
        {each["index"]: each for each in text.get("devices", ())},
        text.get("cards"),
    )


def _device(index: int, row: NDArray[np.int64]) -> DeviceEvents:
    names = WordOfDevice
    return DeviceEvents(
        index, int(row[names.CAPACITY]), int(row[names.ALLOCATED]), int(row[names.RESERVED]), int(row[names.OOMS]),
        int(row[names.FAILED]), bool(row[names.IDLE]),
    )  # fmt: skip


def _changes(words: NDArray[np.int64], devices: NDArray[np.int64]) -> NDArray[np.int64]:
    count, start = int(words[Word.CHANGES]), HEADER + DEVICES * DEVICE_WORDS
    rows = words[start : start + 3 * min(count, CHANGES)].reshape(-1, 3)
    if count <= CHANGES or not len(rows):
        return rows
    # The file is full: from then on, each device is taken to have its peak.
    used = np.flatnonzero(devices[:, WordOfDevice.IS_KNOWN])
    peaks = [(rows[-1, 0], index, devices[index, WordOfDevice.RESERVED]) for index in used]
    return np.concatenate([rows, np.array(peaks, np.int64)])


def _ending(words: NDArray[np.int64], text: Mapping[str, Any]) -> Ending:
    status = int(words[Word.STATUS])
    if words[Word.REPLACED]:
        return Ending(How.REPLACED)
    known = text.get("ending")
    if status == NO_STATUS and text.get("finished") and not text.get("tells_status") and not known:
        status = 0
    if status == 0:
        return Ending(How.FINISHED)
    if status == -signal.SIGTERM:
        return Ending(How.TERMINATED, "SIGTERM")
    if known:
        return _ending_of(known)
    return Ending(How.LOST) if status == NO_STATUS else ending_by_status(status)


def _ending_of(fields: Mapping[str, Any]) -> Ending:
    return Ending(**{**fields, "how": How(fields["how"])})


def _text(path: Path) -> Mapping[str, Any]:
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _name_of(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _kernel(*fields: Any) -> KernelCheck:
    found = KernelCheck(*fields)
    return found._replace(outside=tuple(found.outside))
