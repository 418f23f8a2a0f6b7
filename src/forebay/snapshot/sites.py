"""The site of an allocation: the line that its author would call its place. One rule for reports and error texts."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from forebay.snapshot.model import Frame, Snapshot

__all__ = ["PLUMBING", "Sites", "label_of", "relative", "site_of"]

PLUMBING = ("cupy", "numba", "numpy", "forebay", "torch")  # packages that allocate for somebody else
_PLUMBING = re.compile(
    rf"[/\\](?:site-packages|dist-packages|src)[/\\](?:{'|'.join(PLUMBING)})[/\\]"
    r"|^<(?:frozen|__array_function__)\b|^(?:\?\?|)$|\.(?:c|cc|cpp|cu|cuh|h|hpp)$"  # the interpreter's own; native code
)
_UNSEEN, _STACKLESS = Frame("(before recording)", "", 0), Frame("(no stack)", "", 0)
_UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


@dataclass(frozen=True, slots=True, eq=False)
class Sites:
    """Every place that allocated, and which of them each stack belongs to."""

    frames: tuple[Frame, ...]  # [0] stands for "before recording", [1] for "no stack"
    of_stack: NDArray[np.int64]  # by row of Snapshot.stacks; the extra last element is for NEVER_SEEN


def label_of(frame: Frame) -> str:
    """The frame as people read it: `train.py:42 forward`, with nothing in it that could move a cursor."""
    text = f"{frame.file}:{frame.line} {frame.name}" if frame.line else f"{frame.file} {frame.name}".rstrip()
    return _UNPRINTABLE.sub("\N{REPLACEMENT CHARACTER}", text)


def relative(labels: list[str]) -> tuple[str, list[str]]:
    """The folder that all labels of files lie in, and the labels without it; "" if they share none."""
    folders = [re.split(r"(?<=[/\\\\])", label)[:-1] for label in labels if not label.startswith("(")]
    shared = 0
    while folders and all(shared < len(f) and f[shared] == folders[0][shared] for f in folders):
        shared += 1
    home = "".join(folders[0][:shared]) if folders else ""
    if len(home) < 2:  # to leave out "/" saves nothing
        return "", labels
    return home, [label.removeprefix(home) for label in labels]


def site_of(snapshot: Snapshot) -> Sites:
    """The site of every stack: its innermost frame outside PLUMBING, or its innermost frame if there is none."""
    stacks, frames = snapshot.stacks, snapshot.frames
    plumbing = np.array([bool(_PLUMBING.search(text)) for text in snapshot.strings] or [False])
    rows = np.arange(max(1, len(stacks)))
    site = rows.copy()
    if len(stacks) > 1:
        hidden = plumbing[frames["file"][stacks["frame"][1:]]]
        site[1:][hidden] = stacks["parent"][1:][hidden]
        while not np.array_equal(further := site[site], site):  # doubling: a stack of a thousand takes ten steps
            site = further
        site = np.where(site == 0, rows, site)
    chosen, of_stack = np.unique(stacks["frame"][site[1:]], return_inverse=True) if len(stacks) > 1 else ((), ())
    words = [
        Frame(snapshot.strings[frames["file"][row]], snapshot.strings[frames["name"][row]], int(frames["line"][row]))
        for row in chosen
    ]
    return Sites(
        frames=(_UNSEEN, _STACKLESS, *words),
        of_stack=np.concatenate([[1], np.asarray(of_stack, np.int64) + 2, [0]]).astype(np.int64),
    )
