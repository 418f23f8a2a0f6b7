"""PyTorch under `forebay run --emulate cuda`: it uses the emulated devices, and the report says what held the peak."""

from __future__ import annotations

import os
import shutil
import sys
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from forebay import profiles
from forebay._base.outside_memory import NOTHING, OutsideMemory, workspaces_of_cudnn
from forebay.commands import CommandError, run_rehearsal
from forebay.commands.assumption_list import print_assumptions
from forebay.commands.kernel_list import print_kernels
from forebay.commands.programs import mode_sentence
from forebay.commands.terminal import Terminal

if TYPE_CHECKING:
    from rich.console import Console

    from forebay._base.assumption_choices import AssumptionChoices
    from forebay._base.kernel_checks import KernelCheck
    from forebay._base.verdicts import Assumption, Judgement
    from forebay.interop.torch.attribution.results import PeakUse
    from forebay.interop.torch.processes import ProgramDevice, ProgramUse
    from forebay.interop.torch.processes.unseen_processes import Watch
    from forebay.interop.torch.program_versions import Versions
    from forebay.records.model import Snapshot
    from forebay.snapshot.replay.remedies import Remedies
    from forebay.snapshot.report.paragraph import Paragraph

_MOST_ENTRIES = 400_000  # of a history that is replayed with other settings, which takes about ten seconds
_SESSION = "forebay.interop.torch.session"
_RECORDER = "forebay.interop.torch.processes.recorder"


class _Program:
    """State of the program of this process."""

    watch: Watch | None = None  # of the processes that it starts
    outside: OutsideMemory = NOTHING  # what each process has outside the allocator of a device
    folder: Path | None = None  # of the program's file
    profile: str = ""  # of the devices; "" if it is not known
    mode: str = ""  # the first line of the result
    check_kernels: bool = False


@dataclass(frozen=True, slots=True)
class DeviceResult:
    """The result of one device: its verdict, what held its peak, and replays of its history with other settings."""

    judgement: Judgement
    device: ProgramDevice
    use: PeakUse | None  # of the process that reserved most, if it could tell
    remedies: Remedies | None
    has_sites: bool  # the report of the device has the lines already

    @property
    def name(self) -> str:
        return "emulated" if self.use is None else self.use.name

    def as_json(self) -> dict[str, Any]:
        from forebay.interop.torch.attribution.text import for_pytorch

        helpful = () if self.remedies is None else self.remedies.helpful
        settings = [
            {"environment": for_pytorch(each.environment), "peak_reserved": each.outcome.peak_reserved}
            for each in helpful
        ]
        events = self.device.events
        return {
            **({} if self.use is None else self.use.as_json()),
            "index": events.index,
            "verdict": self.judgement.verdict,
            "text": self.judgement.text,
            "reasons": self.judgement.reasons,
            "capacity": events.capacity,
            "peak_allocated": events.allocated,
            "peak_reserved": events.reserved,
            "outside": events.outside._asdict(),
            "in_use": events.needed._asdict(),
            "workspaces": workspaces_of_cudnn(events.workspaces)._asdict(),
            "spare": events.capacity - events.reserved,
            "ooms": events.ooms,
            "failed": events.failed,
            "is_exact": self.device.is_exact,
            "processes": [
                {"pid": each.pid, "peak_allocated": each.allocated, "peak_reserved": each.reserved}
                for each in self.device.processes
            ],
            "helpful_settings": settings,
        }


@dataclass(frozen=True, slots=True)
class TorchResult:
    """The result of a program: the verdict about all devices, and that of each one that PyTorch used."""

    judgement: Judgement
    devices: tuple[DeviceResult, ...]
    main: int  # number of the program's first process
    assumptions: tuple[Assumption, ...] = ()
    choices: AssumptionChoices | None = None  # None: nothing is assumed in this mode
    versions: Versions | None = None
    mode: str = ""  # what was computed, as a sentence
    kernels: tuple[KernelCheck, ...] | None = None  # None: they were not checked

    def as_json(self) -> dict[str, Any]:
        found = self.judgement
        return {
            "mode": self.mode,
            "verdict": found.verdict,
            "verdict_text": found.text,
            "verdict_reasons": found.reasons,
            "ended_by": found.message,
            "ended_at": found.line,
            "assumptions": [each._asdict() for each in self.assumptions],
            "choices": None if self.choices is None else self.choices.as_json(),
            **({} if self.kernels is None else {"kernels": [each.as_json() for each in self.kernels]}),
            "versions": None if self.versions is None else asdict(self.versions),
            "torch": [each.as_json() for each in self.devices],
        }

    def with_notes(self, snapshots: list[Snapshot]) -> list[Snapshot]:
        """Return the snapshots with the verdict about their device as a note, which the page shows."""
        from forebay.interop.torch.attribution.text import verdict_heading
        from forebay.snapshot.formats.known_notes import ASSUMPTIONS, VERDICT

        by_device = {f"cuda:{each.device.events.index}": self._verdict(each) for each in self.devices}
        whole = Note(verdict_heading(self.judgement), self.judgement)
        noted = {ASSUMPTIONS: [each._asdict() for each in self.assumptions]} if self.assumptions else {}
        return [
            replace(each, notes={**each.notes, **noted, VERDICT: by_device.get(each.device, whole).as_json()})
            if each.device.startswith("cuda")
            else each
            for each in snapshots
        ]

    def _verdict(self, found: DeviceResult) -> Note:
        from forebay.interop.torch.attribution.text import kept_sentences

        paragraph = _verdict_paragraph(found)
        kept = () if found.use is None else kept_sentences(found.use)
        sentences = (*paragraph.sentences, *filter(None, [paragraph.line]), *kept)
        return Note(paragraph.heading, found.judgement, sentences)


@dataclass(frozen=True, slots=True)
class Note:
    """A verdict as the note of a snapshot."""

    heading: str
    judgement: Judgement
    sentences: tuple[str, ...] = ()

    def as_json(self) -> dict[str, Any]:
        text = " ".join(self.sentences or self.judgement.reasons)
        return {"verdict": str(self.judgement.verdict), "heading": self.heading, "text": text}


def install(
    mode: str,
    choices: AssumptionChoices,
    max_seconds: float | None,
    outside: OutsideMemory = NOTHING,
    folder: Path | None = None,
    profile: str = "",
    *,
    is_default: bool,
    check_kernels: bool = False,
) -> None:
    """Let PyTorch use the emulated devices once the program or a process that it starts imports it.

    Each process has `outside` besides what it reserves; `folder` is that of the program's file.
    """
    from forebay._base.temporary_folders import LockedFolder
    from forebay.interop.torch import on_import
    from forebay.interop.torch.processes import assumed_values, recorder, unseen_processes

    assumed_values.choose(choices)  # which the report names also if only other processes import PyTorch
    try:
        os.environ[recorder.FOLDER] = run_rehearsal.real_records() or str(LockedFolder("forebay-run-").path)
        limit = {}
        if max_seconds is not None:
            limit = {"deadline": time.monotonic() + max_seconds, "max_seconds": max_seconds}
        options = {"assumptions": choices.as_options(), "check_kernels": check_kernels, **limit}
        on_import.write_options(Path(os.environ[recorder.FOLDER]), **options)
        recorder.start(is_main=True)
        if max_seconds is not None:
            _limit_time(max_seconds)
    except OSError as error:
        discard()
        raise CommandError(f"cannot write the records of the program's processes: {error}") from error
    _Program.mode = mode_sentence(mode, is_default=is_default)
    _Program.check_kernels = check_kernels
    on_import.set_environment(mode)
    on_import.install()
    on_import.silence_services()
    found = recorder.running()
    watch = None if found is None else unseen_processes.Watch(Path(found.folder))
    _Program.watch, _Program.outside = watch, outside
    _Program.folder, _Program.profile = None if folder is None else folder.absolute(), profile
    on_import.reach_processes(None if watch is None else watch.begin)


def _limit_time(seconds: float) -> None:
    """End the program after some seconds, as an exception that it does not catch: the report is written."""
    from forebay.interop.torch.fit.guard import kill_others
    from forebay.interop.torch.processes import recorder, time_limit

    found = recorder.running()
    if found is None:
        return

    def note(line: str) -> None:
        found.end_by_limit(time_limit.ending_at(seconds, line))
        kill_others(f"{recorder.FOLDER}={found.folder}")
        at = f", at {line}" if line else ""
        Terminal().print_line(f"forebay: the program has run for {seconds:g} s, and is ended{at}")

    time_limit.watch(time.monotonic() + seconds, note, ends_program=True)


def discard() -> None:
    """Delete the records, as there is no report."""
    from forebay.interop.torch.processes import recorder

    if folder := os.environ.pop(recorder.FOLDER, ""):
        shutil.rmtree(folder, ignore_errors=True)


def note_end(error: BaseException) -> None:
    """Note the exception that ended the program."""
    recorder = sys.modules.get(_RECORDER)
    if recorder is not None and (found := recorder.running()) is not None:
        from forebay.interop.torch.processes.endings import ending_of

        if found.ending is None:  # else the time of the program is over
            found.ending = ending_of(error)


def is_running() -> bool:
    """Return True if the program has imported PyTorch."""
    session = sys.modules.get(_SESSION)
    return session is not None and session.running() is not None


def results(snapshots: list[Snapshot]) -> TorchResult | None:
    """Return the result of the program; None if neither it nor a process that it started has imported PyTorch."""
    use = _program_use()
    if use is None or not (is_running() or len(use.processes) > 1):
        return None
    from forebay.interop.torch.attribution.results import peak_use_of

    by_device = {each.device: each for each in snapshots}
    found = []
    for device in use.devices:
        index = device.events.index
        snapshot = by_device.get(f"cuda:{index}") if [each.pid for each in device.processes] == [os.getpid()] else None
        peak = peak_use_of(device.details) if device.details else None
        has_sites = snapshot is not None and len(snapshot.trace) > 0
        found.append(DeviceResult(use.judge(index), device, peak, _remedies(snapshot), has_sites))
    kernels = use.kernels if _Program.check_kernels else None
    about = (use.assumptions, _choices(), _versions(), _Program.mode, kernels)
    return TorchResult(use.judge(), tuple(found), os.getpid(), *about)


def _choices() -> AssumptionChoices | None:
    from forebay.interop.torch import on_import
    from forebay.interop.torch.processes import assumed_values

    return assumed_values.choices() if os.environ.get(on_import.VARIABLE) == "shapes" else None


def _versions() -> Versions | None:
    from forebay.interop.torch.program_versions import find_versions

    if _Program.folder is None:
        return None
    found = find_versions(_Program.folder)
    note = profiles.load(_Program.profile).note if _Program.profile else ""
    return replace(found, warnings=(f"{_Program.profile}: {note}.", *found.warnings)) if note else found


def _program_use() -> ProgramUse | None:
    """Return what the processes of the program did, and delete their records."""
    recorder = sys.modules.get(_RECORDER)
    if recorder is None or (found := recorder.running()) is None:
        return None
    from forebay.interop.torch.processes import program_use, read_records
    from forebay.interop.torch.processes.reading import with_main, without_record

    found.finish()
    folder = Path(found.folder)
    try:
        unseen = [] if _Program.watch is None else _Program.watch.found()
        records = with_main(read_records(folder), os.getpid(), found.ending_of_main())
        return program_use([*records, *map(without_record, unseen)], _Program.outside)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _remedies(snapshot: Snapshot | None) -> Remedies | None:
    from forebay.errors import Unsupported
    from forebay.snapshot.replay.remedies import find_remedies

    if snapshot is None or snapshot.lost or not 0 < len(snapshot.trace) <= _MOST_ENTRIES:
        return None
    try:
        return find_remedies(snapshot)
    except Unsupported:
        return None


def _verdict_paragraph(found: DeviceResult) -> Paragraph:
    from forebay.interop.torch.attribution.text import verdict_paragraph

    return verdict_paragraph(found.judgement, found.device, found.name, found.remedies)


def print_results(console: Console, result: TorchResult | None) -> None:
    """Print the result, one device below the other."""
    if result is None:
        return
    from forebay.interop.torch.attribution.text import (
        memory_paragraph,
        peak_paragraphs,
        process_paragraph,
        verdict_heading,
    )
    from forebay.snapshot.report.paragraph import Paragraph
    from forebay.snapshot.report.paragraph_rich import print_paragraphs

    console.print(result.mode)
    console.print()
    for each in result.devices:
        parts = [_verdict_paragraph(each), *memory_paragraph(each.device), *process_paragraph(each.device, result.main)]
        if each.use is not None:
            parts += peak_paragraphs(each.use, lines=not each.has_sites)
        print_paragraphs(console, parts, alarm=not each.judgement.verdict.fits)
    if not result.devices:
        found = result.judgement
        print_paragraphs(console, [Paragraph(verdict_heading(found), found.reasons)], alarm=True)
    if result.versions is not None and result.versions.text:
        console.print("\n".join([result.versions.text, *result.versions.warnings]), markup=False, highlight=False)
        console.print()
    if result.kernels is not None:
        print_kernels(console, result.kernels)
        console.print()
    if result.assumptions:
        print_assumptions(
            console, result.assumptions, "What the program prints or writes may contain them.", choices=result.choices
        )
        console.print()


def write_pickle(snapshots: list[Snapshot], path: Path) -> None:
    """Write the snapshots of the CUDA devices in PyTorch's format, for its viewer."""
    from forebay.snapshot.formats import torch_writer

    torch_writer.write([each for each in snapshots if each.device.startswith("cuda")], path)
