"""Verdicts: whether a program fits a device, decided from what happened in its processes.

# Note [Verdicts are decided from events]
A verdict is never found in the text of a message. Processes record events as
they happen: the peaks of each device, each refused request, each value that could not be read, and how each process
ended (`forebay.interop.torch.processes`). `judge` is the only function that makes verdicts from them, and it is pure.
An earlier version searched the error text for "out of memory", and called a program that ended with any other
exception, or whose children ran out of memory, one that fits.
Test: tests/_base/test_verdicts.py::test_processes_that_the_program_started_count
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from forebay._base.byte_sizes import format_bytes
from forebay._base.kernel_checks import KernelCheck
from forebay._base.outside_memory import NOTHING, OutsideMemory, in_use

__all__ = [
    "DECIDES_SIZE",
    "Assumption",
    "DeviceEvents",
    "Ending",
    "How",
    "Judgement",
    "ProcessEvents",
    "Verdict",
    "exit_status",
    "judge",
]

DECIDES_SIZE = ", which decides a size"  # the end of the text of such assumptions


class Verdict(StrEnum):
    """The verdict on a program: whether it fits a device, or all of its devices."""

    FITS = "fits"
    """It ended without an error, and no request ran out of memory."""

    TIGHT = "tight"
    """It fits, but the range of what is outside the allocator decides: the upper end does not fit."""

    FITS_AFTER_ERRORS = "fits after caught out-of-memory errors"
    """Requests ran out of memory; the program caught the errors and ended without one."""

    FITS_WITH_OTHER_SETTINGS = "fits with other settings"
    """It does not fit, but a replay of the whole program with other settings of the allocator does."""

    DOES_NOT_FIT = "does not fit"
    """It ended because memory ran out."""

    DID_NOT_FINISH = "did not finish"
    """It ended for another reason, or needed a value that is not computed, or a process is not counted."""

    NO_DEVICE_MEMORY = "no device memory used"
    """It ended without an error, and neither it nor a process that it started had memory of a device."""

    @property
    def fits(self) -> bool:
        """True if the program ended without an error and used the device, with the settings that it had."""
        return self in (Verdict.FITS, Verdict.TIGHT, Verdict.FITS_AFTER_ERRORS)

    @property
    def status(self) -> int:
        """The exit status of `forebay fit` for this verdict."""
        return _STATUS[self]


_STATUS = {
    Verdict.FITS: 0,
    Verdict.FITS_AFTER_ERRORS: 0,
    Verdict.TIGHT: 3,
    Verdict.FITS_WITH_OTHER_SETTINGS: 1,
    Verdict.DOES_NOT_FIT: 1,
    Verdict.DID_NOT_FINISH: 4,
    Verdict.NO_DEVICE_MEMORY: 4,
}
_BY_WEIGHT = (0, 3, 1, 4)  # statuses: of several, the last in this order


def exit_status(verdicts: Iterable[Verdict]) -> int:
    """Return the exit status for the verdicts of several cards.

    It is 4 if one did not finish or used no device memory, else 1 if one does not fit, else 3 if one is tight, else 0.
    """
    return max((each.status for each in verdicts), key=_BY_WEIGHT.index, default=4)


class How(StrEnum):
    """The kind of end of a process."""

    FINISHED = "finished"  # with status 0
    EXCEPTION = "exception"  # that nothing caught
    STATUS = "status"  # another than 0, without a known exception
    SIGNAL = "signal"
    TERMINATED = "terminated"  # by SIGTERM, as pools end their processes
    LOST = "lost"  # without a trace, as by SIGKILL
    REPLACED = "replaced"  # by another program: os.exec*
    TIME_LIMIT = "time limit"


@dataclass(frozen=True, slots=True)
class Ending:
    """The end of a process or of a thread of it."""

    how: How
    what: str = ""  # the exception with its text, the signal, or the status
    line: str = ""  # the line of the program; "" if it is not known
    raised_out_of_memory: bool = False  # the exception is an out-of-memory error, or was raised from one
    handling_out_of_memory: bool = False  # the exception was raised while an out-of-memory error was handled
    missing: str = ""  # data that the program could not read or download, which the exception is about


@dataclass(frozen=True, slots=True)
class DeviceEvents:
    """Events of one device in one process, or in several. Sizes are in bytes."""

    index: int
    capacity: int
    # allocated, reserved: peaks of the bytes in blocks, and of those in segments.
    allocated: int
    reserved: int
    ooms: int = 0  # number of requests that ran out of memory
    failed: int = 0  # size of the last one
    idle_since_oom: bool = False  # nothing was allocated after the last one
    # What processes that ran at one time could reserve if their peaks were at one time; 0 for one process.
    at_most: int = 0
    outside: OutsideMemory = NOTHING  # of all processes that ran at one time, besides what the allocators reserved
    workspaces: int = 0  # bytes that cuDNN's workspaces add at most to what was reserved: an estimate

    @property
    def needed(self) -> OutsideMemory:
        """The bytes that the device had in use at the peak, as nvidia-smi shows them: a usual value, and a range."""
        return in_use(self.reserved, self.outside, self.workspaces)

    @property
    def is_used(self) -> bool:
        """True if memory was allocated, or requested in vain."""
        return self.allocated > 0 or self.reserved > 0 or self.ooms > 0


class Assumption(NamedTuple):
    """An assumption about values that are not computed, at one line of the program."""

    line: str  #: the file, the number and the text of the line
    text: str  #: what was assumed, the first time
    times: int  #: how often it received one

    @property
    def decides_size(self) -> bool:
        """True if it decides how large a tensor is."""
        return self.text.endswith(DECIDES_SIZE)


@dataclass(frozen=True, slots=True)
class ProcessEvents:
    """Events of one process."""

    pid: int
    ending: Ending
    devices: tuple[DeviceEvents, ...] = ()  # the devices that it used
    failures: tuple[Ending, ...] = ()  # threads and exit handlers that ended with exceptions which nothing caught
    # Lines that needed a value which is not computed, also if the program caught the error.
    unread: tuple[str, ...] = ()
    assumptions: tuple[Assumption, ...] = ()  # lines that received assumed values
    kernels: tuple[KernelCheck, ...] = ()  # if they were checked
    is_main: bool = False  # it is the program's first process
    # It has emulated devices. False for one that used PyTorch without them, whose memory is not known.
    is_emulated: bool = True
    command: str = ""  # what it runs; "" if that is not known

    @property
    def uses_devices(self) -> bool:
        """True if it used a device."""
        return any(each.is_used for each in self.devices)

    @property
    def has_failed(self) -> bool:
        """True if its end means that the program, or a part of it, is not complete."""
        how = self.ending.how
        if self.is_main:
            return how is not How.FINISHED
        # A parent ends its workers with SIGTERM, and a process without device memory is lost without a consequence.
        # What replaced a process is a process of its own.
        harmless = (How.FINISHED, How.TERMINATED, How.REPLACED)
        return how not in harmless and (how is not How.LOST or self.uses_devices)

    @property
    def ran_out(self) -> bool:
        """True if it ended, or a thread of it, because memory ran out."""
        return any(self._because_of_memory(each) for each in (self.ending, *self.failures))

    def _because_of_memory(self, ending: Ending) -> bool:
        if ending.raised_out_of_memory:
            return True
        # A program that gives up after a caught error allocates no more; one that goes on, and fails later, does.
        idle = any(each.ooms and each.idle_since_oom for each in self.devices)
        return idle and (ending.how is How.STATUS or ending.handling_out_of_memory)


@dataclass(frozen=True, slots=True)
class Judgement:
    """A verdict and its reasons."""

    verdict: Verdict
    text: str  # the verdict in words, with the number of caught errors
    # Sentences: why the verdict is none of those that fit, or what else must be known about it.
    reasons: tuple[str, ...] = ()
    message: str = ""  # what ended it: the exception with its text, the signal, or the status; "" if it ended well
    line: str = ""  # the line of the program where it ended, or that needs a value; "" if none is known


def judge(processes: Sequence[ProcessEvents], devices: Sequence[DeviceEvents]) -> Judgement:
    """Return the verdict about a program from its processes and from what all of them did on each device.

    Processes that other processes started are included. Of several reasons, memory that ran out decides before another
    end, and that before the peaks.
    """
    found = _ended(processes)
    if found is not None:
        return found
    full = [each for each in devices if each.capacity and each.needed.low > each.capacity]
    if full:
        worst = max(full, key=lambda each: each.needed.low - each.capacity)
        least = f" and {format_bytes(worst.outside.low)} at least are outside of it" if worst.outside.low else ""
        reason = (
            f"The program reserves {format_bytes(worst.reserved)} in PyTorch's allocator{least}: more than the "
            f"{format_bytes(worst.capacity)} of cuda:{worst.index}."
        )
        return _plain(Verdict.DOES_NOT_FIT, reason)
    if unseen := [each for each in processes if not each.is_emulated]:
        return _not_counted(unseen)
    if not any(each.is_used for each in devices):
        return _plain(Verdict.NO_DEVICE_MEMORY)
    possible = [each for each in devices if each.capacity and each.at_most + each.outside.low > each.capacity]
    if possible:  # on a real card, the same processes have other times
        worst = max(possible, key=lambda each: each.at_most + each.outside.low - each.capacity)
        reason = (
            f"Processes that ran at one time reserve up to {format_bytes(worst.at_most)} of "
            f"{format_bytes(worst.capacity)} of cuda:{worst.index} if their peaks coincide, which they did not here."
        )
        return _plain(Verdict.TIGHT, reason)
    if ooms := sum(each.ooms for each in devices):
        return _after_errors(ooms, devices)
    tight = [each for each in devices if each.capacity and each.needed.high > each.capacity]
    if tight:  # Note [Memory outside the allocator]
        worst = max(tight, key=lambda each: each.needed.high - each.capacity)
        most = format_bytes(worst.workspaces)
        cudnn = f"cuDNN's workspaces may take up to {most} of them, and " if worst.workspaces else ""
        reason = (
            f"{format_bytes(worst.capacity - worst.reserved)} of cuda:{worst.index} were never reserved; {cudnn}"
            f"{worst.outside.text} are outside the allocator, and decide."
        )
        return _plain(Verdict.TIGHT, reason)
    return _plain(Verdict.FITS)


def _ended(processes: Sequence[ProcessEvents]) -> Judgement | None:
    """Return the judgement about a program that did not end well."""
    for each in processes:
        if each.ran_out:
            endings = [end for end in (each.ending, *each.failures) if each._because_of_memory(end)]  # noqa: SLF001 -- of this file
            return _failed(Verdict.DOES_NOT_FIT, each, endings[0])
    for each in sorted(processes, key=lambda process: not process.ending.missing):  # its parent fails because of it
        if each.has_failed:
            return _failed(Verdict.DID_NOT_FINISH, each, each.ending)
        if each.failures:
            return _failed(Verdict.DID_NOT_FINISH, each, each.failures[0])
        if each.unread:
            what = f"A value is needed{_where(each)} that is not computed with shapes only"
            reason = f"{what}, at {each.unread[0]}. The program caught the error."
            return Judgement(Verdict.DID_NOT_FINISH, str(Verdict.DID_NOT_FINISH), (reason,), what, each.unread[0])
    return None


def _failed(verdict: Verdict, process: ProcessEvents, ending: Ending) -> Judgement:
    refused = [each for each in process.devices if each.ooms]
    what = f": {ending.what}" if ending.what else ""
    at = f", at {ending.line}" if ending.line else ""
    subject = "The program" if process.is_main else f"Process {process.pid}"
    end = f"{subject} {_END_IN_WORDS[ending.how]}{what.rstrip('.')}{at}."
    reasons = [end]
    if verdict is Verdict.DOES_NOT_FIT and refused:
        last = refused[-1]
        size = f" for {format_bytes(last.failed)}" if last.failed else ""
        request = f"a request{size} of cuda:{last.index} ran out of memory"
        is_request = ending.raised_out_of_memory  # whose text is long
        reasons = [f"A{request[1:]}{_where(process)}{at}."] if is_request else [end, f"Before that, {request}."]
    message = f"{ending.what}{_where(process)}" if ending.what else f"{subject} {_END_IN_WORDS[ending.how]}"
    text = str(verdict)
    if ending.missing and verdict is Verdict.DID_NOT_FINISH:
        text += ": offline data"
        reasons = [f"Data is missing: {ending.missing}. This says nothing about the model.", *reasons]
        message = f"{ending.missing} is missing ({message.rstrip('.')})"
    return Judgement(verdict, text, tuple(reasons), message, ending.line)


def _not_counted(processes: Sequence[ProcessEvents]) -> Judgement:
    """Return the judgement about a program with processes whose memory is not known: it may be more."""
    first, *others = processes
    command = f" ({first.command})" if first.command else ""
    subject = f"process {first.pid}{command}"
    if others:
        subject += f" and {len(others):,} other process{'es' * (len(others) > 1)}"
    message = f"{subject} used PyTorch without emulated devices: {'their' if others else 'its'} memory is not counted"
    advice = "Start Python without -I, -E and -S, and with the environment of its parent."
    return Judgement(
        Verdict.DID_NOT_FINISH, str(Verdict.DID_NOT_FINISH), (f"{message[0].upper()}{message[1:]}.", advice), message
    )


_END_IN_WORDS = {
    How.FINISHED: "ended",
    How.EXCEPTION: "ended with an exception",
    How.STATUS: "failed",
    How.SIGNAL: "was ended by a signal",
    How.TERMINATED: "was ended by a signal",
    How.LOST: "was killed, or crashed",
    How.REPLACED: "was replaced by another program",
    How.TIME_LIMIT: "took too long",
}


def _where(process: ProcessEvents) -> str:
    return "" if process.is_main else f" in process {process.pid}"


def _after_errors(ooms: int, devices: Sequence[DeviceEvents]) -> Judgement:
    last = max((each for each in devices if each.ooms), key=lambda each: each.failed)
    text = f"fits after {ooms:,} caught out-of-memory error{'s' * (ooms > 1)}"
    reasons = [f"The last request that failed was for {format_bytes(last.failed)}."] if last.failed else []
    if all(each.idle_since_oom for each in devices if each.ooms):
        reasons.append("Nothing was allocated on the device after it.")
    return Judgement(Verdict.FITS_AFTER_ERRORS, text, tuple(reasons))


def _plain(verdict: Verdict, *reasons: str) -> Judgement:
    return Judgement(verdict, str(verdict), reasons)
