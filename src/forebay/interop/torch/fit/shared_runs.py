"""Runs of programs on several cards, one for each set of answers: Note [Runs shared by cards]."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, ThreadPoolExecutor, wait
from threading import Event
from typing import Protocol

from forebay import profiles
from forebay.interop.torch.fit.results import FitResult
from forebay.interop.torch.fit.tasks import FitTask, Need, Shared, run_shared
from forebay.interop.torch.fit.template_runs import Template

__all__ = ["Progress", "SharedRuns"]


class Progress(Protocol):
    """The observer of runs while they last."""

    count: int
    done: int

    def begin(self, card: str) -> None:
        """Note that a run begins."""

    def reached(self, card: str, peak: int) -> None:
        """Note the peak of the bytes in blocks so far."""

    def end(self, card: str) -> None:
        """Note that a run has ended."""


class _Program:
    """The tasks that differ in their cards only, of which one run may answer several."""

    def __init__(self, tasks: Sequence[tuple[int, FitTask]]) -> None:
        # The largest card first: memory that suffices is what the others can share.
        self.waiting = sorted(tasks, key=lambda each: -_memory(each[1]))
        self.needs: dict[str, Need] = {}
        self.template = Template()

    def others(self) -> list[str]:
        """Return the cards that a run may answer, too."""
        return [*dict.fromkeys(task.profile for _, task in self.waiting if task.profile not in self.needs)]


class SharedRuns:
    """The runs that answer some tasks.

    A program runs on its largest card first. Then it runs, at a time, on each card on which memory would have run out,
    and on the largest of those that need another run.
    """

    def __init__(self, tasks: Sequence[FitTask], progress: Progress | None = None) -> None:
        self._results: dict[int, FitResult] = {}
        self._count = len(tasks)
        self._progress = progress
        self._cancel = Event()
        self._running: dict[Future[tuple[FitResult, Shared]], tuple[_Program, int, FitTask, bool]] = {}
        found: dict[object, list[tuple[int, FitTask]]] = {}
        for number, task in enumerate(tasks):
            found.setdefault((task.payload, task.script), []).append((number, task))
        self._programs = [_Program(each) for each in found.values()]
        if progress is not None:
            progress.count = len(tasks)

    def run(self, executor: Executor) -> tuple[FitResult, ...]:
        """Run all tasks with an executor, and return their results in order.

        Ctrl-C reaches neither threads of this process nor the programs, which are in sessions of their own: it cancels
        them. Other executors cancel what has not begun.
        """
        local = isinstance(executor, ThreadPoolExecutor)
        try:
            for each in self._programs:
                self._begin(each, executor, local=local)
            while self._running:
                done, _ = wait(self._running, return_when=FIRST_COMPLETED)
                for future in done:
                    program, number, task, leads = self._running.pop(future)
                    result, shared = future.result()
                    self._take(program, number, task, result, shared)
                    if leads or not any(each is program for each, *_ in self._running.values()):
                        self._begin(program, executor, local=local)
        except BaseException:
            self._cancel.set()
            for future in self._running:
                future.cancel()
            raise
        finally:
            for program in self._programs:
                program.template.close()
        return tuple(self._results[number] for number in range(self._count))

    def _begin(self, program: _Program, executor: Executor, *, local: bool) -> None:
        """Begin the runs that are known to be needed: one that leads, and those on cards whose memory runs out."""
        own = [each for each in program.waiting if each[1].profile in program.needs]
        lead = next((each for each in program.waiting if each[1].profile not in program.needs), None)
        for number, task in own:
            program.waiting.remove((number, task))
            self._submit(program, number, task, executor, [], local=local)
        if lead is not None and not any(leads for each, _, _, leads in self._running.values() if each is program):
            program.waiting.remove(lead)
            self._submit(program, *lead, executor, program.others(), local=local, leads=True)

    def _submit(
        self, program: _Program, number: int, task: FitTask, executor: Executor, others: Sequence[str], *, local: bool,
        leads: bool = False,
    ) -> None:  # fmt: skip
        need = program.needs.get(task.profile)
        if local:
            template = program.template if others or program.template.is_ready else None
            future = executor.submit(self._run, task, others, need, template)
        else:
            future = executor.submit(run_shared, task, None, None, others, need)
        self._running[future] = program, number, task, leads

    def _run(
        self, task: FitTask, others: Sequence[str], need: Need | None, template: Template | None
    ) -> tuple[FitResult, Shared]:
        if self._progress is None:
            return run_shared(task, self._cancel, None, others, need, template)
        self._progress.begin(task.profile)
        try:
            return run_shared(task, self._cancel, self._watch(self._progress, task.profile), others, need, template)
        finally:
            self._progress.end(task.profile)

    def _watch(self, progress: Progress, card: str) -> Callable[[int], None]:
        return lambda peak: progress.reached(card, peak)

    def _take(self, program: _Program, number: int, task: FitTask, result: FitResult, shared: Shared) -> None:
        """Keep a result, and those of other cards."""
        self._results[number] = result
        program.needs |= shared.needs
        for waiting in [*program.waiting]:
            other = waiting[1].profile
            if other == task.profile or other in shared.results:
                self._results[waiting[0]] = shared.results.get(other, result)
                program.waiting.remove(waiting)
        if self._progress is not None:
            self._progress.done = len(self._results)


def _memory(task: FitTask) -> int:
    return task.memory or int(profiles.load(task.profile).properties["total_memory"])
