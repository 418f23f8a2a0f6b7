"""Allocation sites: the source line of the program that caused an allocation. Used by reports and errors."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from forebay._base.untrusted import printable, shortened
from forebay.records.model import Frame, Snapshot

__all__ = ["LIBRARY_PACKAGES", "Sites", "find_sites", "label_of", "strip_common_folder"]

LIBRARY_PACKAGES = ("cupy", "numba", "numpy", "forebay", "torch")  # packages that allocate on behalf of their caller
_LIBRARY_FILE = re.compile(
    rf"[/\\](?:site-packages|dist-packages|src)[/\\](?:{'|'.join(LIBRARY_PACKAGES)})[/\\]"
    r"|^<(?:frozen|__array_function__)\b|^(?:\?\?|)$|\.(?:c|cc|cpp|cu|cuh|h|hpp)$"  # interpreter internals; native code
)
# The way from PyTorch's operators to its allocator, which all stacks without a Python frame have in common.
_ALLOCATOR_NAME = re.compile(
    r"torch::unwind\b|torch::CapturedTraceback\b|torch::\w+::\(anonymous namespace\)::gather"
    r"|c10::(?:cuda|hip|xpu|impl)::|(?:at::TensorBase )?at::(?:detail|native)::_?(?:empty|make_tensor)|at::_ops::empty"
    r"|at::\(anonymous namespace\)::(?:\(anonymous namespace\)::wrapper_\w+_empty|create_out)"
)
_BEFORE_RECORDING, _NO_STACK = Frame("(before recording)", "", 0), Frame("(no stack)", "", 0)
_FOLDER_END = re.compile(r"(?<=[/\\])(?!(?<=\\)(?:x[0-9a-f]{2}|u[0-9a-f]{4}))")  # not in an escape of `printable`
_MAX_FILE, _MAX_NAME = 300, 200  # characters of a label
_MAX_PATH = 1 << 13  # of a library's file; a longer text is no path, and files of others may hold any


@dataclass(frozen=True, slots=True, eq=False)
class Sites:
    """Allocation sites of a snapshot, and the site of each stack."""

    frames: tuple[Frame, ...]  #: one frame for each site. Item 0 stands for "before recording", item 1 for "no stack".
    #: Index into `frames` for each row of `Snapshot.stacks`. The additional last element is for
    #: `forebay.snapshot.analysis.timeline.NEVER_SEEN`.
    of_stack: NDArray[np.int64]


def label_of(frame: Frame) -> str:
    """Return a frame as printable text, such as `train.py:42 forward`.

    Parameters
    ----------
    frame : Frame
        The frame.

    Returns
    -------
    str
        The label. Control characters, bidirectional marks and surrogates are replaced by escape sequences. The middle
        of a long name is left out.

    Examples
    --------
    >>> label_of(Frame("train.py", "forward", 42))
    'train.py:42 forward'
    """
    file, name = shortened(frame.file, _MAX_FILE), shortened(frame.name, _MAX_NAME)
    return printable(f"{file}:{frame.line} {name}" if frame.line else f"{file} {name}".rstrip())


def strip_common_folder(labels: list[str]) -> tuple[str, list[str]]:
    """Split labels into the folder that they share and the remaining labels.

    Parameters
    ----------
    labels : list of str
        Labels from `label_of`. Those that begin with "(" name no file and are ignored.

    Returns
    -------
    folder : str
        The common folder with its trailing separator; "" if the labels share none.
    labels : list of str
        The labels without the folder, in the same order.

    Examples
    --------
    >>> strip_common_folder(["/home/ada/a.py:1 f", "/home/ada/b/c.py:2 g"])
    ('/home/ada/', ['a.py:1 f', 'b/c.py:2 g'])
    """
    folders = [_FOLDER_END.split(label)[:-1] for label in labels if not label.startswith("(")]
    shared = 0
    while folders and all(shared < len(f) and f[shared] == folders[0][shared] for f in folders):
        shared += 1
    folder = "".join(folders[0][:shared]) if folders else ""
    if len(folder) < 2:  # removing "/" alone saves nothing
        return "", labels
    return folder, [label.removeprefix(folder) for label in labels]


def find_sites(snapshot: Snapshot) -> Sites:
    """Find the allocation site of every stack, and the site of each row of `snapshot.stacks`.

    The site is the innermost frame outside `LIBRARY_PACKAGES`. If there is no such frame, it is the innermost frame
    that is not part of PyTorch's allocator, or else the innermost frame.

    Parameters
    ----------
    snapshot : Snapshot
        The snapshot.
    """
    stacks, frames = snapshot.stacks, snapshot.frames
    in_library, in_allocator = (
        np.array([len(text) <= _MAX_PATH and bool(pattern(text)) for text in snapshot.strings] or [False])
        for pattern in (_LIBRARY_FILE.search, _ALLOCATOR_NAME.match)
    )
    site = np.arange(max(1, len(stacks)))
    if len(stacks) > 1:
        frame = frames[stacks["frame"][1:]]
        program = _innermost_outside(stacks, in_library[frame["file"]])
        operator = _innermost_outside(stacks, in_allocator[frame["name"]])
        site = np.where(program > 0, program, np.where(operator > 0, operator, site))
    chosen, of_stack = np.unique(stacks["frame"][site[1:]], return_inverse=True) if len(stacks) > 1 else ((), ())
    site_frames = [
        Frame(snapshot.strings[frames["file"][row]], snapshot.strings[frames["name"][row]], int(frames["line"][row]))
        for row in chosen
    ]
    return Sites(
        frames=(_BEFORE_RECORDING, _NO_STACK, *site_frames),
        of_stack=np.concatenate([[1], np.asarray(of_stack, np.int64) + 2, [0]]).astype(np.int64),
    )


def _innermost_outside(stacks: NDArray[np.void], hidden: NDArray[np.bool_]) -> NDArray[np.intp]:
    """Return for each stack the row of its innermost frame that is not hidden; 0 if all are. Row 0 has no flag."""
    site = np.arange(len(stacks))
    site[1:][hidden] = stacks["parent"][1:][hidden]
    while not np.array_equal(further := site[site], site):  # pointer doubling: a stack of 1,000 takes ten steps
        site = further
    return site
