"""Live memory of a process by call stack, as numbers in tuples: the form in which processes send it to each other.

The receiver chooses the sites. The expressions of a user are not searched in the process that is watched: one that
takes long would delay its program.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from forebay.records.model import BLOCK, ENTRY, FRAME, SEGMENT, STACK, Snapshot, State
from forebay.records.site_choice import DEFAULT_CHOICE, SiteChoice

__all__ = ["LiveStacks", "live_stacks"]

_MAX_ROWS, _MAX_CHARACTERS = 50_000, 1 << 20  # of a reply


@dataclass(frozen=True, slots=True)
class LiveStacks:
    """Live memory by call stack, those with the most bytes."""

    strings: tuple[str, ...] = ()  #: names of files and functions
    frames: tuple[int, ...] = ()  #: file, function and line of each frame
    tree: tuple[int, ...] = ()  #: the caller's row, from 1, or 0 for none, and the frame of each stack
    live: tuple[int, ...] = ()  #: row in `tree`, from 1, bytes and blocks of each stack with live memory
    other_bytes: int = 0  #: bytes of further stacks
    other_blocks: int = 0  #: blocks of further stacks

    def snapshot(self, device: str, choice: SiteChoice = DEFAULT_CHOICE) -> tuple[Snapshot, NDArray[np.int64]]:
        """Return a snapshot with one block for each stack, and the rows (stack, bytes, blocks).

        Parameters
        ----------
        device : str
            The device.
        choice : SiteChoice, optional
            How sites are chosen.

        Raises
        ------
        ValueError
            If a number refers to nothing: the process that sent it may be hostile.
        """
        frames, tree, live = (
            np.array(numbers[: len(numbers) // width * width], np.int64).reshape(-1, width)
            for numbers, width in ((self.frames, 3), (self.tree, 2), (self.live, 3))
        )
        if (
            (frames[:, :2] >= len(self.strings)).any()
            or (tree[:, 0] > np.arange(len(tree))).any()
            or (tree[:, 1] >= len(frames)).any()
            or (live[:, 0] > len(tree)).any()
            or (frames[:, 2] >= 1 << 32).any()
            or float(live[:, 1].astype(float).sum()) >= 1 << 62
        ):
            raise ValueError("the stacks refer to rows that do not exist, or are too large")
        blocks = np.zeros(len(live), BLOCK)
        blocks["nbytes"] = blocks["requested"] = live[:, 1]
        blocks["stack"], blocks["state"] = live[:, 0], State.LIVE
        found = Snapshot(
            device, 0, 0, np.zeros(1, SEGMENT), blocks, np.zeros(0, ENTRY),
            np.array([(0, 0), *map(tuple, tree.tolist())], STACK), np.array([*map(tuple, frames.tolist())], FRAME),
            self.strings, site_choice=choice,
        )  # fmt: skip
        return found, live


def live_stacks(snapshot: Snapshot, most: int) -> LiveStacks:
    """Return the live memory by call stack. Blocks without a stack are left out.

    Parameters
    ----------
    snapshot : Snapshot
        The snapshot.
    most : int
        The most stacks; fewer where they are long.
    """
    blocks = snapshot.blocks[(snapshot.blocks["state"] == State.LIVE) & (snapshot.blocks["stack"] != 0)]
    rows, which, counts = np.unique(blocks["stack"], return_inverse=True, return_counts=True)
    nbytes = np.zeros(len(rows), np.int64)
    np.add.at(nbytes, which.reshape(-1), blocks["requested"].astype(np.int64))
    order = np.argsort(-nbytes, kind="stable")
    while True:
        chosen = order[:most]
        tree = _with_callers(snapshot, rows[chosen])
        frames, frame_of = np.unique(snapshot.stacks["frame"][tree], return_inverse=True)
        columns = snapshot.frames[frames]
        strings, string_of = np.unique(np.concatenate([columns["file"], columns["name"]]), return_inverse=True)
        texts = tuple(snapshot.strings[at] for at in strings.tolist())
        if len(chosen) < 2 or (len(tree) <= _MAX_ROWS and sum(map(len, texts)) <= _MAX_CHARACTERS):
            break
        most = len(chosen) // 2
    number = np.zeros(len(snapshot.stacks), np.int64)
    number[tree] = np.arange(1, len(tree) + 1)
    file, name = string_of.reshape(2, -1)
    rest = order[len(chosen) :]
    return LiveStacks(
        texts,
        _flat(file, name, columns["line"]),
        _flat(number[snapshot.stacks["parent"][tree]], frame_of),
        _flat(number[rows[chosen]], nbytes[chosen], counts[chosen]),
        int(nbytes[rest].sum()),
        int(counts[rest].sum()),
    )


def _with_callers(snapshot: Snapshot, rows: NDArray[np.integer]) -> NDArray[np.int64]:
    """Return the rows and those of their callers, in order: a caller is before what it calls."""
    wanted = np.zeros(len(snapshot.stacks), np.bool_)
    while len(rows):
        wanted[rows] = True
        rows = np.unique(snapshot.stacks["parent"][rows])
        rows = rows[~wanted[rows] & (rows != 0)]
    return np.flatnonzero(wanted)


def _flat(*columns: NDArray[np.integer]) -> tuple[int, ...]:
    table = np.stack([column.astype(np.int64).reshape(-1) for column in columns], 1)
    return tuple(table.reshape(-1).tolist())
