"""Changes of a program with which its memory suffices, or with which it needs less, each proved by a replay."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from forebay.records.model import Action, Snapshot
from forebay.snapshot.analysis.growth import Growth
from forebay.snapshot.analysis.timeline import Timeline, reconstruct
from forebay.snapshot.replay.changed_history import Program
from forebay.snapshot.replay.changes import BACKWARD, ERROR, Change, Kind
from forebay.snapshot.replay.engine import History, Outcome
from forebay.snapshot.replay.remedies import Remedies

__all__ = ["BUDGET", "Advice", "WhatIf", "advise"]

#: Entries that all replays of the search for suggestions may repeat. A number of seconds would make the result depend
#: on the machine, and on what else runs on it.
BUDGET = 2_000_000
_MOST = 3  # suggestions
_CANDIDATES = 6  # sites with the most memory, whose changes are tried
_SHARES = tuple(share / 20 for share in range(19, 4, -1))  # 0.95 to 0.25: less is no useful advice
_UNIFORM = 0.9  # of the bytes of a site, those in blocks of one size
_FEW_BLOCKS = 4  # of fewer blocks none can be left out without a large change
_NOTABLE = 0.01  # of the live bytes, those of a site that is worth a change
_OF_MODULES = ("forward", "_call_impl", "_wrapped_call_impl")  # functions that allocate activations


@dataclass(frozen=True, slots=True)
class WhatIf:
    """The outcome of a replay of a changed program. Sizes are in bytes."""

    changes: tuple[Change, ...]  #: the changes, which apply together
    label: str  #: the site that is changed, where it is one
    blocks: int  #: live blocks of the changed sites at the explained moment
    nbytes: int  #: their requested bytes
    blocks_left: int  #: those of them that are live with the changes
    bytes_left: int  #: their requested bytes with the changes
    request: int | None  #: size of the failed request with the changes; None if they do not concern it
    kept: int  #: blocks that are older than the history and were not made larger
    outcome: Outcome  #: the outcome, up to the explained request if there is one
    #: True if the explained request succeeds and no other one fails that had not failed in the recording; None if there
    #: is no such request.
    fits: bool | None
    saved: int  #: bytes by which the peak of reserved memory is lower than in the replay of the unchanged program
    #: True if the replay of the unchanged program reproduces the errors of the recording, and its own error cannot
    #: explain the result: the request also succeeds with less memory by twice that error, or more than that is saved.
    proved: bool

    @property
    def text(self) -> str:
        """The changes as `parse_changes` reads them."""
        return "; ".join(map(str, self.changes))


@dataclass(frozen=True, slots=True)
class Advice:
    """Changed programs that were replayed."""

    memory: int | None  #: bytes that the replays could reserve; None if unlimited
    baseline: Outcome  #: the outcome of the unchanged program
    asked: tuple[WhatIf, ...]  #: what the user asked for
    suggested: tuple[WhatIf, ...]  #: changes with which memory suffices, the smallest first
    #: Sites, the smallest first, without whose blocks memory suffices, and that another device has room for.
    movable: tuple[WhatIf, ...]
    replays: int  #: replays of the search for suggestions
    cut: bool  #: true if the search ended at its limit, `BUDGET`


def advise(
    snapshot: Snapshot,
    remedies: Remedies,
    moment: int,
    failed: int | None,
    *,
    asked: Sequence[Sequence[Change]] = (),
    growth: Growth | None = None,
    timeline: Timeline | None = None,
    room: int = 0,
    budget: int = BUDGET,
) -> Advice:
    """Replay a program with the changes that are asked for, and search for some with which its memory suffices.

    See Note [Changed programs] for what such a replay repeats.

    Parameters
    ----------
    snapshot : Snapshot
        The snapshot.
    remedies : Remedies
        The replays of the unchanged program.
    moment : int
        The explained moment.
    failed : int or None
        The entry of the failed request that is explained; None if memory did not run out, then nothing is suggested.
    asked : sequence of sequence of Change, default ()
        What is asked for.
    growth : Growth, optional
        The growth from step to step, whose leak candidates are tried first.
    timeline : Timeline, optional
        The result of `reconstruct(snapshot)`, if already known.
    room : int, default 0
        Bytes that another device of the program has unused: sites with less, that could be moved there, are tried, too.
    budget : int, optional
        Most entries that the search may replay.

    Raises
    ------
    ValueError
        If a change names nothing in the snapshot.
    """
    history = History(snapshot)
    program = Program(snapshot, history, timeline or reconstruct(snapshot), moment, failed)
    replays = _Replays(program, remedies)
    answers = tuple(replays.run(changes, "") for changes in asked)
    suggested: list[WhatIf] = []
    movable: list[WhatIf] = []
    replays.left, replays.count = budget, 0
    cut = False
    if failed is not None and remedies.proved:
        search = _Search(program, replays, growth)
        try:
            for found in search.suggestions():  # not extend(): what was found before the limit counts
                suggested.append(found)  # noqa: PERF402 - as above
            for found in search.movable(room):
                movable.append(found)  # noqa: PERF402 - as above
        except _BudgetSpent:
            cut = True
    return Advice(
        remedies.memory, remedies.baseline, answers, tuple(_best(suggested)), tuple(movable), replays.count, cut
    )


class _BudgetSpent(Exception):
    """The end of a search at its limit."""


class _Replays:
    """Replays of changed programs, counted."""

    def __init__(self, program: Program, remedies: Remedies) -> None:
        self._program, self._remedies = program, remedies
        error = remedies.fidelity.error if remedies.proved else 0
        self._margin = 2 * error
        memory = remedies.memory
        self._memory = None if memory is None else max(memory - self._margin, 1)
        self.left: int | None = None  # entries; None for no limit
        self.count = 0

    def run(self, changes: Sequence[Change], label: str) -> WhatIf:
        program, remedies = self._program, self._remedies
        changed = program.changed(changes)
        entries = len(changed.history.columns[0])
        if self.left is not None:
            if entries > self.left:
                raise _BudgetSpent
            self.left -= entries
        self.count += 1
        failed = program.failed
        outcome = changed.history.run(None, self._memory if failed is not None else remedies.memory)
        if failed is None:
            fits = None
        else:  # a request of an impossible size is not replayed
            fits = failed in changed.history.columns[0] and not outcome.stopped and failed not in outcome.refused
        saved = remedies.baseline.peak_reserved - outcome.peak_reserved
        worthwhile = fits if failed is not None else not outcome.refused and saved > self._margin
        return WhatIf(
            tuple(changes), label, changed.blocks, changed.nbytes, changed.blocks_left, changed.bytes_left,
            changed.request, changed.kept, outcome, fits, saved, bool(remedies.proved and worthwhile),
        )  # fmt: skip

    def fits(self, change: Change, label: str) -> WhatIf | None:
        """Return the outcome if the failed request succeeds."""
        found = self.run((change,), label)
        return found if found.proved else None


class _Search:
    """The search for changes with which a failed request succeeds."""

    def __init__(self, program: Program, replays: _Replays, growth: Growth | None) -> None:
        self._program, self._replays, self._growth = program, replays, growth
        held, live = program.held, program.live
        self._live_bytes = np.bincount(program.site[live], held.nbytes[live], len(program.sites.frames)).astype(
            np.int64
        )
        notable = max(_NOTABLE * int(self._live_bytes.sum()), 1)
        labels = program.sites.labels
        self._sites = [
            site for site in program.ranked if self._live_bytes[site] >= notable and not labels[site].startswith("(")
        ][:_CANDIDATES]
        entry = program.snapshot.trace[program.failed or 0]
        self._request = int(program.sites.of_stack[entry["stack"]])  # the site of the failed request

    def suggestions(self) -> Iterator[WhatIf]:
        """Yield changes with which the request succeeds."""
        yield from self._leaks()
        for site in self._sites:
            if (found := self._fewer_or_smaller(site)) is not None:
                yield found
            if (found := self._freed(site)) is not None:
                yield found
        others = () if self._request in self._sites or self._label(self._request).startswith("(") else (self._request,)
        yield from filter(None, map(self._smaller, others))

    def movable(self, room: int) -> Iterator[WhatIf]:
        """Yield the sites without whose blocks the request succeeds, of those that are not larger than `room`."""
        sites = [site for site in self._sites if self._live_bytes[site] <= room and site != self._request]
        for site in sorted(sites, key=lambda site: int(self._live_bytes[site])):
            label = self._label(site)
            if (found := self._try(Change(label, Kind.SIZE, 0), label)) is not None:
                yield found

    def _label(self, site: int) -> str:
        return self._program.sites.labels[site]

    def _leaks(self) -> Iterator[WhatIf]:
        """Yield what helps if the sites that grow in each step would free a block before they allocate the next one."""
        growth, program = self._growth, self._program
        for leak in growth.leaks[:_MOST] if growth is not None and growth.steady else ():
            if leak.label not in program.sites.labels or leak.label.startswith("("):
                continue
            site = program.sites.labels.index(leak.label)
            if growth is not None and self._may_be_leak(site, growth):
                change = Change(leak.label, Kind.FREED_BEFORE, when=leak.label)
                if (found := self._replays.fits(change, leak.label)) is not None:
                    yield found

    def _may_be_leak(self, site: int, growth: Growth) -> bool:
        """Return True unless the steps seem to be layers, whose memory is kept for the backward pass."""
        program, steps = self._program, growth.steps
        allocated = program.snapshot.trace["action"] == Action.ALLOC
        backward = np.flatnonzero(allocated & program.is_backward[program.snapshot.trace["stack"]])
        if len(backward):
            return bool((backward < steps.moments[-1]).any())
        return not self._is_of_modules(program.live[program.site[program.live] == site])

    def _fewer_or_smaller(self, site: int) -> WhatIf | None:
        program = self._program
        live = program.live[program.site[program.live] == site]
        sizes, counts = np.unique(program.held.nbytes[live], return_counts=True)
        uniform = int((sizes * counts).max()) >= _UNIFORM * int(self._live_bytes[site])
        if len(live) < _FEW_BLOCKS or not uniform or site == self._request:
            return self._smaller(site)
        label = self._label(site)
        numbers = range(len(live) - 1, len(live) // 4, -1)
        return _first_that_fits(numbers, lambda number: self._try(Change(label, Kind.BLOCKS, number), label))

    def _smaller(self, site: int) -> WhatIf | None:
        label = self._label(site)
        return _first_that_fits(_SHARES, lambda share: self._try(Change(label, Kind.SIZE, share), label))

    def _try(self, change: Change, label: str) -> WhatIf | None:
        return self._replays.fits(change, label)

    def _freed(self, site: int) -> WhatIf | None:
        """Return what helps if a site's blocks were freed earlier, where it seems to allocate temporary memory."""
        program = self._program
        if site == self._request or not self._is_temporary(site):
            return None
        failed, label = program.failed or 0, self._label(site)
        newest = int(program.held.start[program.live[program.site[program.live] == site]].max())
        between = program.snapshot.trace[newest:failed]
        backward = ((between["action"] == Action.ALLOC) & program.is_backward[between["stack"]]).any()
        return self._try(Change(label, Kind.FREED_BEFORE, when=BACKWARD if backward else ERROR), label)

    def _is_temporary(self, site: int) -> bool:
        """Return True if the program freed blocks of the site before, or a module's call allocated all of them."""
        program = self._program
        own = program.site == site
        live = program.live[own[program.live]]
        if (program.held.start[live] == 0).any():
            return False
        steps = self._growth.steps if self._growth is not None else None
        if steps is not None and int(program.held.start[live].min()) <= int(steps.moments[0]):
            return False  # kept since the first step
        if (own & (program.held.end < program.moment)).any():
            return True
        return self._is_of_modules(live)

    def _is_of_modules(self, rows: NDArray[np.intp]) -> bool:
        """Return True if calls of modules made all of these allocations."""
        snapshot = self._program.snapshot
        names = {number for number, text in enumerate(snapshot.strings) if text.rpartition(".")[2] in _OF_MODULES}
        stacks = np.unique(self._program.held.stack[rows]).tolist()
        return bool(names) and all(_has_name(snapshot, stack, names) for stack in stacks)


def _has_name(snapshot: Snapshot, row: int, names: set[int]) -> bool:
    while row > 0:
        parent, frame = snapshot.stacks[row].tolist()
        if snapshot.frames["name"][frame] in names:
            return True
        row = parent
    return False


def _first_that_fits(values: Sequence[float], attempt: Callable[[float], WhatIf | None]) -> WhatIf | None:
    """Return the outcome for the first of the values, from the smallest change to the largest, that fits.

    The steps double until one fits, and then halve. That larger changes fit, too, is usual, but not certain: only what
    was replayed is returned.
    """
    low, step, best = -1, 1, None
    high = len(values)
    while best is None:
        at = min(low + step, len(values) - 1)
        if at <= low:
            return None
        if (best := attempt(values[at])) is None:
            low, step = at, 2 * step
        else:
            high = at
    while high - low > 1:
        middle = (low + high) // 2
        if (found := attempt(values[middle])) is None:
            low = middle
        else:
            best, high = found, middle
    return best


def _best(found: Iterable[WhatIf]) -> list[WhatIf]:
    """Return the best suggestions: an end of a leak, an earlier free, and the smallest changes of sizes or numbers."""
    chosen = [*found]
    leaks = [
        each for each in chosen if each.changes[0].kind == Kind.FREED_BEFORE and each.changes[0].when == each.label
    ]
    freed = [each for each in chosen if each.changes[0].kind == Kind.FREED_BEFORE and each not in leaks]
    others = [each for each in chosen if each.changes[0].kind != Kind.FREED_BEFORE]
    freed.sort(key=lambda each: each.nbytes - each.bytes_left)
    others.sort(key=lambda each: each.nbytes - each.bytes_left)
    best = [*leaks[:1], *freed[:1]]
    taken = {each.label for each in best}
    others = [each for each in others if each.label not in taken] or others  # another site is worth more than a variant
    return [*others[: _MOST - len(best)], *best]
