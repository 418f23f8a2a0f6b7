"""Stacks with forward frames: where autograd's anomaly mode records the forward pass that a backward pass belongs to.

# Note [Forward frames are callers]
In anomaly mode, PyTorch gives memory of the backward pass a second traceback: texts, as `traceback.format_list` makes
them, of the line of the forward pass that made the node of autograd. The thread of the backward pass has no frames of
Python, so that these texts are all that is known of the program. They become frames: the callers of the outermost
recorded frame. Sites, flame graphs and `--depth` then need no rule of their own. The texts themselves are kept beside
the stack (the note "forward_frames": its number of recorded frames, and the texts), so that a conversion back to a
pickle has both. Rejected: another column, by which each analysis would have to choose between two stacks.
Test: tests/snapshot/formats/test_forward_frames.py::test_memory_of_the_backward_pass_is_at_the_line_of_the_forward_pass
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from forebay.records.model import Frame, Snapshot
from forebay.snapshot.formats.known_notes import FORWARD_FRAMES, details_of

__all__ = [
    "LINE",
    "NO_FRAME",
    "Extended",
    "Forward",
    "Forwards",
    "forward_path",
    "forwards_of",
    "with_callers",
]

NO_FRAME = 0xFFFFFFFF
LINE = re.compile(r'\s*File "([^\n]+)", line (\d{1,9}), in ([^\n]+)')
_MAX_NAME = 1000


class Forward(NamedTuple):
    """Forward frames of one stack."""

    own: int  # the innermost frames that were recorded as frames
    texts: tuple[str, ...]  # outermost first


Forwards = dict[int, Forward]  # by row of the stack tree


def forward_path(texts: Iterable[str]) -> list[Frame]:
    """Return the frames that texts of `traceback.format_list` describe. Another text becomes the name of a frame."""
    found = []
    for text in texts:
        match = LINE.match(text)
        file, line, name = match.groups() if match else ("", "0", text.strip() or "?")
        found.append(Frame(file, name[:_MAX_NAME], int(line)))
    return found


class Extended(NamedTuple):
    """A stack tree with forward frames as callers."""

    parents: NDArray[np.intp]
    frame_of: NDArray[np.intp]
    frames: list[Frame]  # that follow those of the tree
    row_of: dict[int, int]  # the stacks that have other rows
    forwards: Forwards


def with_callers(
    parents: NDArray[np.intp], frame_of: NDArray[np.intp], frames: int, texts: dict[int, tuple[str, ...]]
) -> Extended:
    """Return a stack tree in which stacks with forward frames have these as callers.

    `frames` is the number of frames of the tree, and `texts` has the forward frames of its rows.
    """
    added: dict[tuple[int, int], int] = {}  # parent and frame
    numbers: dict[Frame, int] = {}
    row_of, forwards, more = dict[int, int](), Forwards(), list[tuple[int, int]]()

    def add(parent: int, frame: int) -> int:
        more.append((parent, frame))
        return len(parents) + len(more) - 1

    for row, lines in texts.items():
        own, at = list[int](), row
        while at and frame_of[at] != NO_FRAME:
            own.append(int(frame_of[at]))
            at = int(parents[at])
        path = [frames + numbers.setdefault(frame, len(numbers)) for frame in forward_path(lines)]
        *callers, last = [*path, *reversed(own)]
        parent = 0
        for frame in callers:
            if (known := added.get((parent, frame))) is None:
                known = added[parent, frame] = add(parent, frame)
            parent = known
        row_of[row] = add(parent, last)  # of its own, even if another stack has equal frames and other texts
        forwards[row_of[row]] = Forward(len(own), lines)
    rows = np.array(more, np.intp).reshape(-1, 2)
    return Extended(
        np.concatenate([parents, rows[:, 0]]),
        np.concatenate([frame_of, rows[:, 1]]),
        [*numbers],
        row_of,
        forwards,
    )


def forwards_of(snapshot: Snapshot) -> Forwards:
    """Return the forward frames in the notes of a snapshot."""
    found = Forwards()
    for row, noted in details_of(snapshot.notes, FORWARD_FRAMES, dict).items():
        own, texts = noted.get("own"), noted.get("texts")
        if row < len(snapshot.stacks) and type(own) is int and own >= 0 and isinstance(texts, list | tuple):
            found[row] = Forward(own, tuple(text for text in texts if type(text) is str))
    return found
