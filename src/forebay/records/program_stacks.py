"""Stacks of a snapshot as the program has them: without forebay's own frames, and equal ones once."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from forebay.records.frame_kinds import is_of_forebay
from forebay.records.model import STACK, Snapshot

__all__ = ["ProgramStacks", "program_stacks"]


@dataclass(frozen=True, slots=True, eq=False)
class ProgramStacks:
    """A tree of stacks, like `Snapshot.stacks`, and the row in it of each row there."""

    stacks: NDArray[np.void]  #: rows of dtype `STACK`; row 0 is the empty stack
    #: Row of `stacks` for each row of `Snapshot.stacks`. The additional last element, -1, is for
    #: `forebay.snapshot.analysis.timeline.NEVER_SEEN`.
    of_stack: NDArray[np.int64]


def program_stacks(snapshot: Snapshot) -> ProgramStacks:
    """Return the stacks of a snapshot without frames of forebay and of what started it, and equal stacks as one.

    Parameters
    ----------
    snapshot : Snapshot
        The snapshot.
    """
    strings = snapshot.strings
    hidden = [is_of_forebay(text) for text in strings]
    starts = [text in ("<frozen runpy>", "runpy.py") or text.endswith(("/runpy.py", "\\runpy.py")) for text in strings]
    numbers: dict[tuple[str, str, int], int] = {}  # of equal frames; files of others may have one several times
    frames = [
        (numbers.setdefault((strings[file], strings[name], line), row), hidden[file], starts[file])
        for row, (file, name, line) in enumerate(snapshot.frames.tolist())
    ]
    rows: dict[tuple[int, int], int] = {}
    of_stack, is_before = [0] * max(1, len(snapshot.stacks)), [True] * max(1, len(snapshot.stacks))
    for row, (parent, frame) in enumerate(snapshot.stacks[1:].tolist(), 1):  # parents come before their children
        number, is_hidden, is_start = frames[frame]
        is_before[row] = is_before[parent] and (is_hidden or is_start)  # nothing of the program has been called yet
        caller = of_stack[parent]
        is_shown = not (is_hidden or is_before[row])
        of_stack[row] = rows.setdefault((caller, number), len(rows) + 1) if is_shown else caller
    stacks = np.array([(0, 0), *rows], STACK)
    return ProgramStacks(stacks, np.array([*of_stack, -1], np.int64))
