"""Runs on emulated cards, each in a Python process of its own, which any executor's worker starts and waits for."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Event
from typing import Any

from forebay import profiles
from forebay._base.assumption_checks import AssumptionCheck, Peaks, check_assumptions
from forebay._base.assumption_choices import AssumptionChoices
from forebay._base.config import ALLOCATOR_SETTINGS, EMULATE, Emulated
from forebay._base.outside_memory import OutsideMemory, outside_memory
from forebay._base.temporary_folders import temporary_folder
from forebay._base.verdicts import Assumption, DeviceEvents, How, Judgement, Verdict
from forebay.interop.torch import on_import
from forebay.interop.torch.fit.guard import guarded, kill_program
from forebay.interop.torch.fit.results import FitResult
from forebay.interop.torch.fit.template_runs import Dropped, Template
from forebay.interop.torch.fit.waiting import TooLong, Waited, wait
from forebay.interop.torch.processes import ProgramUse, program_use, read_records, recorder
from forebay.interop.torch.processes.reading import ending_by_status, live_peak, with_main, without_record
from forebay.interop.torch.processes.time_limit import ending_at
from forebay.interop.torch.processes.unseen_processes import INTERVAL, UnseenProcesses
from forebay.rehearsal import services
from forebay.rehearsal.caches import download_caches
from forebay.rehearsal.files_report import FilesReport
from forebay.rehearsal.inside import is_inside
from forebay.rehearsal.supervise import Rehearsal

__all__ = [
    "IN_WORKER",
    "Cancelled",
    "FitTask",
    "Need",
    "Shared",
    "check_task",
    "peaks_of",
    "run_shared",
    "run_task",
]

IN_WORKER = "FOREBAY_FIT_WORKER"  # set in the processes that run a task
_OPPOSITE_SECONDS, _OPPOSITE_TIMES = 60.0, 10.0  # at least, and times the duration of the run before
_UNLIMITED = 1 << 42  # bytes of the card of the second run
_Watch = Callable[[int], object]
_Found = tuple[ProgramUse, str, FilesReport | None]
_START = "from forebay.interop.torch.fit.worker import main; main()"


@dataclass(frozen=True, slots=True)
class FitTask:
    """One run: what to call, and on which card."""

    profile: str
    mode: str
    count: int = 1
    memory: int | None = None  # of each device; None: as the profile
    allocator_settings: str = ""
    reserve: int | None = None  # bytes outside the allocator; None: as recorded on such cards
    timeout: float | None = None  # seconds
    parameters: Mapping[str, Any] = field(default_factory=dict)
    payload: bytes = b""  # the pickled function and its arguments
    script: tuple[str, ...] = ()  # or a script and its arguments
    main: str = ""  # the file of the module __main__ that the pickle needs
    path: tuple[str, ...] = ()  # sys.path
    folder: str = ""  # the working directory
    assumptions: AssumptionChoices = field(default_factory=AssumptionChoices)
    check_assumptions: bool = False  # run again with the opposite ones
    explain: bool = True  # where memory runs out, find what the whole program needs, and settings with which it fits
    check_kernels: bool = False

    @property
    def outside(self) -> OutsideMemory:
        """The memory of each process outside the allocator."""
        return outside_memory(self.profile, self.memory, self.reserve)


class Cancelled(Exception):
    """The run was cancelled: its result is not needed."""


@dataclass(frozen=True, slots=True)
class Need:
    """The needs of a program on a card on which a replay of its allocations ran out of memory."""

    allocated: int  # the peak of the whole program, with unlimited memory
    settings: tuple[str, ...]  # those with which the card suffices


@dataclass(frozen=True, slots=True)
class Shared:
    """The answers of a run for other cards, by the name of the card: Note [Runs shared by cards]."""

    results: Mapping[str, FitResult]  # of those on which the program would have done the same
    needs: Mapping[str, Need]  # of those on which memory would have run out: the program is to run there


def run_task(task: FitTask, cancel: Event | None = None, watch: _Watch | None = None) -> FitResult:
    """Run a task in a new process; if it ran out of memory, again without values and with unlimited memory.

    Once `cancel` is set, the program is killed, and `Cancelled` raised. `watch` is told the peak of the bytes in
    blocks while it runs.
    """
    found, _ = run_shared(task, cancel, watch)
    return found


def run_shared(
    task: FitTask, cancel: Event | None = None, watch: _Watch | None = None, others: Sequence[str] = (),
    need: Need | None = None, template: Template | None = None,
) -> tuple[FitResult, Shared]:  # fmt: skip
    """Run a task as `run_task`. Return its result, and what it has found out about the cards `others`.

    `need` is what another run has found out about this card: then no second run is needed. `template` is what the runs
    of the same program may begin from.
    """
    started = time.monotonic()
    others = () if task.mode == "compute" else others  # with values, random numbers depend on the card
    use, output, files = _run(task, cancel, watch, others=others, template=template)
    judgement = use.judge()
    found = _result(task, use, judgement, output)
    cards = _by_card(use, others)
    base, whole, seconds = task, use, time.monotonic() - started
    if judgement.verdict is Verdict.DOES_NOT_FIT and found.ooms:
        if not task.explain:
            cards = {}
        elif need is not None:
            found = _with_settings(replace(found, needed=need.allocated), need.settings)
        else:
            # Without values also where they were computed: the host has no memory of the size that is needed.
            mode = "shapes" if task.mode == "compute" else task.mode
            base, capacity = replace(task, memory=_UNLIMITED, mode=mode), found.capacity - task.outside.low
            whole, _, _ = _run(base, cancel, watch, replay_capacity=capacity, others=others, template=template)
            if whole.judge().verdict.fits:
                found = _with_need(found, whole)
            cards = _needs_only(_by_card(whole, others))
    if task.check_assumptions:
        found = replace(found, assumption_check=_check(base, whole, seconds, cancel))
    found = replace(found, parameters=task.parameters, files=files, seconds=time.monotonic() - started)
    shared = {name: _on_card(task, name, use, output, found) for name, each in cards.items() if not _ran_out(each)}
    needs = {name: _need(each) for name, each in cards.items() if _ran_out(each)}
    return found, Shared(shared, needs)


def _by_card(use: ProgramUse, others: Sequence[str]) -> Mapping[str, Sequence[Mapping[str, Any]]]:
    """Return what each device would have done on other cards, by card; nothing of a card that needs its own run."""
    if use.cards is None:
        return dict.fromkeys(others, ())
    indices = [each.events.index for each in use.devices]
    return {name: each for name, each in use.cards.items() if [one["index"] for one in each] == indices}


def _needs_only(
    cards: Mapping[str, Sequence[Mapping[str, Any]]],
) -> Mapping[str, Sequence[Mapping[str, Any]]]:
    """Return the cards that a run with unlimited memory tells of: the program has run out of memory on its own."""
    return {name: each for name, each in cards.items() if _ran_out(each)}


def _ran_out(devices: Sequence[Mapping[str, Any]]) -> bool:
    return any(each["ran_out"] for each in devices)


def _need(devices: Sequence[Mapping[str, Any]]) -> Need:
    first, *others = ([*each["settings"]] if each["ran_out"] else None for each in devices)
    known = [each for each in (first, *others) if each is not None]
    settings = tuple(each for each in known[0] if all(each in other for other in known[1:]))
    return Need(max(each.get("needed", each["allocated"]) for each in devices), settings)


def _on_card(task: FitTask, name: str, use: ProgramUse, output: str, found: FitResult) -> FitResult:
    """Return the result on another card, on which the program does the same."""
    on_card = {each["index"]: each for each in (use.cards or {}).get(name, ())}
    other, devices = replace(task, profile=name), []
    for device in use.devices:
        known = on_card[device.events.index]
        sizes = {"capacity": known["capacity"], "allocated": known["allocated"], "reserved": known["reserved"]}
        workspaces = known["workspaces"]
        events = replace(device.events, **sizes, outside=other.outside, workspaces=workspaces)  # of the only process
        peaks = tuple(replace(each, allocated=events.allocated, reserved=events.reserved) for each in device.processes)
        details = {**device.details, "categories": known["categories"], "capacity": events.capacity}
        details |= {"peak_allocated": events.allocated, "peak_reserved": events.reserved, "workspaces": workspaces}
        devices.append(replace(device, events=events, processes=peaks, details=details))
    use = replace(use, devices=tuple(devices), cards={})
    result = _result(other, use, use.judge(), output)
    return replace(result, parameters=found.parameters, files=found.files, seconds=found.seconds)


def _check(task: FitTask, use: ProgramUse, seconds: float, cancel: Event | None) -> AssumptionCheck:
    """Find whether the peak of a program depends on assumed values."""
    judgement = use.judge()
    if judgement.verdict is Verdict.DID_NOT_FINISH:
        return AssumptionCheck(None, reason="the program did not finish")
    if judgement.verdict is Verdict.DOES_NOT_FIT:
        return AssumptionCheck(None, reason="the peak of the whole program is not known")
    return check_task(task, peaks_of(use), use.assumptions, seconds, cancel)


def check_task(
    task: FitTask, peaks: Peaks, assumptions: Sequence[Assumption], seconds: float, cancel: Event | None = None
) -> AssumptionCheck:
    """Find whether peaks of a program depend on assumed values, by runs of a task, which took some seconds once."""
    limit = task.timeout or max(_OPPOSITE_SECONDS, _OPPOSITE_TIMES * seconds)  # opposite choices may never end

    def run(choices: AssumptionChoices) -> tuple[Judgement, Peaks]:
        use, output, _ = _run(replace(task, assumptions=choices, timeout=limit), cancel, None)
        judgement = use.judge()
        return replace(judgement, message=_message(use, judgement, output)), peaks_of(use)

    return check_assumptions(peaks, assumptions, task.assumptions, run)


def peaks_of(use: ProgramUse) -> Peaks:
    """Return the peaks of the devices of a program."""
    return {each.events.index: (each.events.allocated, each.events.reserved) for each in use.devices}


def _run(
    task: FitTask, cancel: Event | None, watch: _Watch | None, replay_capacity: int | None = None,
    others: Sequence[str] = (), template: Template | None = None,
) -> _Found:  # fmt: skip
    """Run the program. Return what its processes did, the last line that it printed, and what became of its files."""
    if template is not None and template.is_ready:
        with suppress(Dropped):
            folder = template.new_folder()
            _write_options(task, folder, replay_capacity, others)
            return _start_copy(task, template, folder, cancel, watch)
    environment = _environment(task)
    with ExitStack() as stack:
        folder = stack.enter_context(temporary_folder("forebay-fit-"))
        environment[recorder.FOLDER] = str(folder)
        offered = template if template is not None and template.is_wanted and _has_private_files(task) else None
        _write_options(task, folder, replay_capacity, others, offered)
        command = [sys.executable, *task.script]
        if not task.script:
            (folder / "task").write_bytes(pickle.dumps(task))
            command = [sys.executable, "-c", _START, str(folder / "task")]
        return _start(task, command, folder, environment, cancel, watch, stack, offered)


def _write_options(
    task: FitTask, folder: Path, replay_capacity: int | None, others: Sequence[str], template: Template | None = None
) -> None:
    """Write what the processes of a run record."""
    seconds = task.timeout
    options: dict[str, Any] = (
        {} if seconds is None else {"deadline": time.monotonic() + seconds, "max_seconds": seconds}
    )
    if template is not None:
        options["template"] = template.options()
    own_memory = None if task.memory == _UNLIMITED else task.memory
    cards = [(name, own_memory, outside_memory(name, own_memory, task.reserve).low) for name in others]
    options |= {"assumptions": task.assumptions.as_options(), "check_kernels": task.check_kernels}
    on_import.write_options(folder, replay_capacity=replay_capacity, cards=cards, **options)


def _has_private_files(task: FitTask) -> bool:
    return task.mode != "compute" and not is_inside()


def _start(
    task: FitTask, command: list[str], folder: Path, environment: dict[str, str], cancel: Event | None,
    watch: _Watch | None, stack: ExitStack, template: Template | None,
) -> _Found:  # fmt: skip
    """Run the process of a task. Without values, it changes and creates no files but those in `folder`."""
    options: dict[str, Any] = {
        "cwd": task.folder or None, "stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT,
        "start_new_session": True,  # so that `kill_program` reaches what the program has started
    }  # fmt: skip
    if not _has_private_files(task):
        with subprocess.Popen(command, env=environment, **options) as process:
            return (*_use(task, process, folder, cancel, watch), None)
    services.set_environment(environment)
    caches = download_caches()
    real = [str(folder), *filter(os.path.isdir, caches)]
    rehearsal = Rehearsal(real, caches=caches, dry=True, services=services.SERVICES)
    launched = stack.enter_context(rehearsal.started(command, environment, **options))
    used = _use(task, launched.process, folder, cancel, watch)
    report = rehearsal.report(launched)
    if template is not None:
        template.take(stack, folder, lambda: rehearsal.report(launched), lambda: bool(rehearsal.changes(launched)))
    return (*used, report)


def _start_copy(task: FitTask, template: Template, folder: Path, cancel: Event | None, watch: _Watch | None) -> _Found:
    """Run a task from the template of its program. Raises Dropped where the result may not be exact."""
    with template.started(folder, str(_emulated(task))) as process:
        use, output = _use(task, process, folder, cancel, watch)
        if use.processes[0].ending.how is How.STATUS and not output:  # its last line may be from before
            raise Dropped
        return use, output, template.report()


def _use(
    task: FitTask, process: Waited, folder: Path, cancel: Event | None, watch: _Watch | None
) -> tuple[ProgramUse, str]:
    """Wait for the end of a program. Return what its processes did, and the last line that they printed."""
    unseen = UnseenProcesses(process.pid, folder)
    marker, output = f"{recorder.FOLDER}={folder}", b""

    def look() -> None:
        if cancel is not None and cancel.is_set():
            raise Cancelled
        unseen.look()
        if watch is not None:
            watch(live_peak(folder))

    try:
        with guarded(process.pid, marker, str(folder)):
            output = wait(process, task.timeout, look, INTERVAL)
            ending = ending_by_status(process.returncode or 0)
    except TooLong:
        kill_program(process.pid, marker)
        ending = ending_at(task.timeout or 0.0)
    except BaseException:
        kill_program(process.pid, marker)
        raise
    records = with_main(read_records(folder), process.pid, ending)
    use = program_use([*records, *map(without_record, unseen.found())], task.outside)
    return use, output.decode(errors="replace").strip().rpartition("\n")[2]


def _emulated(task: FitTask) -> Emulated:
    return Emulated("cuda", task.count, task.profile, memory=task.memory, reserve=task.outside.low)


def _environment(task: FitTask) -> dict[str, str]:
    """Return the environment of the program, in which PyTorch uses the emulated card."""
    ours = str(Path(__file__).parents[4])
    environment = {name: value for name, value in os.environ.items() if name not in (on_import.VARIABLE, EMULATE.name)}
    environment |= {EMULATE.name: str(_emulated(task)), IN_WORKER: "1"}
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, [ours, environment.get("PYTHONPATH", "")]))
    on_import.set_environment(task.mode, environment)
    if task.allocator_settings:
        environment[ALLOCATOR_SETTINGS[0]] = task.allocator_settings
    return environment


def _result(task: FitTask, use: ProgramUse, judgement: Judgement, output: str) -> FitResult:
    capacity = task.memory or int(profiles.load(task.profile).properties["total_memory"])
    devices = [each.events for each in use.devices]
    worst = max(devices, key=lambda each: (each.ooms > 0, each.reserved), default=DeviceEvents(0, capacity, 0, 0))
    details = next((each.details for each in use.devices if each.events is worst), {})
    return FitResult(
        profile=task.profile,
        parameters={},
        verdict=judgement.verdict,
        peak_allocated=worst.allocated,
        peak_reserved=worst.reserved,
        capacity=capacity,
        categories={each["name"]: each["nbytes"] for each in details.get("categories", ())},
        text=judgement.text,
        message=_message(use, judgement, output),
        reasons=judgement.reasons,
        line=judgement.line,
        ooms=sum(each.ooms for each in devices),
        failed=worst.failed,
        processes=sum(each.uses_devices for each in use.processes),
        assumptions=use.assumptions,
        kernels=use.kernels if task.check_kernels else None,
        choices=task.assumptions if task.mode == "shapes" else None,
        outside=worst.outside if devices else task.outside,
        note=profiles.load(task.profile).note,
        mode=task.mode,
        workspaces=worst.workspaces,
    )


def _message(use: ProgramUse, judgement: Judgement, output: str) -> str:
    """Return what ended the program; of a status alone, with the last line that the program printed."""
    ends_with_status = use.processes[0].ending.how is How.STATUS and judgement.verdict is Verdict.DID_NOT_FINISH
    return f"{judgement.message}: {output}" if ends_with_status and output else judgement.message


def _with_need(found: FitResult, whole: ProgramUse) -> FitResult:
    """Add what the whole program needs, and the settings with which it fits."""
    found = replace(found, needed=max(each.events.allocated for each in whole.devices))
    if any(len(each.processes) > 1 for each in whole.devices):  # each has a history of its own
        return found
    if all(each.details.get("suffices", True) for each in whole.devices):  # it depends on the size of the memory
        return found
    first, *others = (each.details.get("settings", ()) for each in whole.devices)
    return _with_settings(found, tuple(each for each in first if all(each in other for other in others)))


def _with_settings(found: FitResult, settings: tuple[str, ...]) -> FitResult:
    if not settings:
        return found
    verdict = Verdict.FITS_WITH_OTHER_SETTINGS
    return replace(found, verdict=verdict, text=str(verdict), settings=settings)
