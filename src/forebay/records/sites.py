"""Allocation sites: the source line of the program that caused an allocation. Used by reports and errors."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, replace
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from forebay.records.backward_nodes import node_of, nodes_of_operator, operator_of
from forebay.records.frame_kinds import FrameKind, is_native_name, kind_of_file, short_path
from forebay.records.model import Frame, Snapshot
from forebay.records.site_labels import label_of, place_of, unique_labels

__all__ = [
    "BEFORE_RECORDING",
    "EXPRESSIONS",
    "NO_CODE",
    "NO_STACK",
    "THIN",
    "Sites",
    "find_sites",
    "heavy_sites",
    "with_split",
]

# The way from PyTorch's operators to its allocator, which all stacks without a Python frame have in common.
_ALLOCATOR_NAME = re.compile(
    r"torch::unwind\b|torch::CapturedTraceback\b|torch::\w+::\(anonymous namespace\)::gather"
    r"|c10::(?:cuda|hip|xpu|impl)::|(?:at::TensorBase )?at::(?:detail|native)::_?(?:empty|make_tensor)|at::_ops::empty"
    r"|at::\(anonymous namespace\)::(?:\(anonymous namespace\)::wrapper_\w+_empty|create_out)"
)
_RUNTIME_NAME = re.compile(  # of threads, the interpreter and unknown functions
    r"^(?:\?\?|_start|main|clone3?|start_thread|execute_native_thread_routine|__libc_start\w*|_?Py\w*|)(?:@.*)?$"
    r"|^torch::autograd::Engine::"
)
_PLUMBING = re.compile(  # functions of libraries that only call another
    r"(?:.*\.)?(?:_call_impl|_wrapped_call_impl|__call__|wrapper|wrapped|inner|decorate_context|_fn|new_func|_use_grad"
    r"|__torch_function__|maybe_fallback|profile_hook_step)$"
)
#: Expressions that must be found at the beginning of a function's name, by their names in the viewer page.
EXPRESSIONS = {"allocator_name": _ALLOCATOR_NAME, "runtime_name": _RUNTIME_NAME, "plumbing": _PLUMBING}
THIN = ("numpy/", "cupy/", "numba/")  # packages whose functions say nothing that the line of the caller does not
BEFORE_RECORDING, NO_STACK = Frame("(before recording)", "", 0), Frame("(no stack)", "", 0)
NO_CODE, _OTHER = Frame("(native code)", "", 0), Frame("(other)", "", 0)
_MOST_LINES = 3  # that may have made a node and are named
_FIRST = 2  # site that is a line
_MAX_TEXT = 1 << 12  # characters in which a chosen expression is searched


@dataclass(frozen=True, slots=True, eq=False)
class Sites:
    """Allocation sites of a snapshot, and the site of each stack."""

    frames: tuple[Frame, ...]  #: one frame for each site. Item 0 stands for "before recording", item 1 for "no stack".
    labels: tuple[str, ...]  #: the text of each site; no two are equal
    #: Index into `frames` for each row of `Snapshot.stacks`. The additional last element is for
    #: `forebay.snapshot.analysis.timeline.NEVER_SEEN`.
    of_stack: NDArray[np.int64]
    #: Row of `Snapshot.frames` of the library's function that the site calls, for each row of stacks; -1 for none.
    called: NDArray[np.int64]
    #: The same for the innermost line in a library that is more than a detour to the allocator.
    inner: NDArray[np.int64]


_found: WeakKeyDictionary[Snapshot, Sites] = WeakKeyDictionary()  # analyses of one snapshot ask again and again


def find_sites(snapshot: Snapshot) -> Sites:
    """Find the allocation site of every stack, and the site of each row of `snapshot.stacks`.

    The site is the innermost frame of the user's own code, or else of a library; see Note [Kinds of frames]. A stack
    of the backward pass without one that is further inside has its autograd node as its site, with the line of the
    forward pass if one line only made such nodes.

    Parameters
    ----------
    snapshot : Snapshot
        The snapshot.
    """
    if (known := _found.get(snapshot)) is None:
        known = _split(snapshot, _Finder(snapshot).sites(), frozenset(snapshot.site_choice.split))
        _found[snapshot] = known
    return known


def heavy_sites(snapshot: Snapshot, stack: NDArray[np.integer], nbytes: NDArray[np.integer]) -> frozenset[str]:
    """Return the label of the site that holds more than half of all bytes, if it can be split; empty if none does.

    Parameters
    ----------
    snapshot : Snapshot
        The snapshot.
    stack, nbytes : numpy.ndarray
        The stacks and sizes of the live allocations.
    """
    sites = find_sites(snapshot)
    site = sites.of_stack[stack]
    held = np.bincount(site, nbytes, len(sites.frames))
    largest = int(held.argmax())
    lines = sites.inner[stack[site == largest]]
    if largest < _FIRST or held[largest] <= held.sum() / 2 or (lines == lines[0]).all():
        return frozenset()
    return frozenset({sites.labels[largest]})


def with_split(snapshot: Snapshot, labels: frozenset[str]) -> Snapshot:
    """Return the snapshot with these sites split by their lines in libraries, in all analyses.

    Parameters
    ----------
    snapshot : Snapshot
        The snapshot.
    labels : frozenset of str
        Labels of sites; those of other snapshots are ignored.
    """
    choice = snapshot.site_choice
    if labels <= {*choice.split}:
        return snapshot
    changed = replace(snapshot, site_choice=replace(choice, split=(*sorted(labels.union(choice.split)),)))
    _found[changed] = _split(snapshot, find_sites(snapshot), labels)
    return changed


def _split(snapshot: Snapshot, sites: Sites, labels: frozenset[str]) -> Sites:
    """Return the sites, some of them split."""
    numbers = [at for at, label in enumerate(sites.labels) if at >= _FIRST and label in labels]
    if not numbers:
        return sites
    frames, texts = [*sites.frames], [*sites.labels]
    of_stack, called = sites.of_stack.copy(), sites.called.copy()
    for number in numbers:
        rows = np.flatnonzero(sites.of_stack == number)
        lines, which = np.unique(sites.inner[rows], return_inverse=True)
        places: dict[Frame | None, int] = {None: number}
        new = []
        for line in lines.tolist():
            frame = None if line < 0 else _frame_at(snapshot, line)
            if (place := places.setdefault(frame, len(frames))) == len(frames) and frame is not None:
                frames.append(sites.frames[number])
                texts.append(f"{sites.labels[number]} → {label_of(frame)}")
            new.append(place)
        of_stack[rows], called[rows] = np.array(new)[which.reshape(-1)], -1
    return Sites(tuple(frames), tuple(unique_labels(texts)), of_stack, called, sites.inner)


def _frame_at(snapshot: Snapshot, row: int) -> Frame:
    file, name, line = snapshot.frames[row].tolist()
    return Frame(snapshot.strings[file], snapshot.strings[name], line)


class _Finder:
    """The rows of the stacks of one snapshot, by kind of their frames."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot, self._choice = snapshot, snapshot.site_choice
        self._strings, self._frames, self._stacks = snapshot.strings, snapshot.frames, snapshot.stacks
        self._frame = self._stacks["frame"].astype(np.int64)  # of each row
        self._parent = self._stacks["parent"].astype(np.int64)
        if len(self._frame):
            self._frame[0] = -1

    def sites(self) -> Sites:
        if len(self._stacks) < 2:
            none = np.full(max(1, len(self._stacks)) + 1, -1)
            return Sites((BEFORE_RECORDING, NO_STACK), _labels_of([BEFORE_RECORDING, NO_STACK]),
                         np.array([1, 0]), none, none)  # fmt: skip
        kinds = self._kinds()
        if self._choice.categories:
            return self._categories()
        site = self._innermost(kinds >= FrameKind.TEXT)
        own = self._innermost(kinds >= FrameKind.OWN)
        site = np.where(own > 0, own, site)
        for kind in (FrameKind.LIBRARY, FrameKind.STANDARD):
            site = np.where(site > 0, site, self._innermost(kinds >= kind))
        node = self._innermost(self._flags(node_of, "name"))
        in_program = site.copy()
        fallback = self._innermost(self._is_named_native())
        called, inner = self._library_rows(in_program, kinds)
        chosen = self._innermost(self._matches(self._choice.pattern)) if self._choice.pattern else np.zeros_like(site)
        site = np.where(chosen > 0, chosen, np.where(site > 0, site, fallback))
        is_backward = (node > in_program) & (chosen == 0)
        columns = [self._frame_of(site)]
        columns += self._callers(in_program, kinds) if self._choice.depth > 1 else []
        columns.append(np.where(is_backward, self._frame_of(node), -1))
        return self._table(columns, in_program, called, inner)

    # Kinds of frames, one element for each row of `snapshot.frames`

    def _kinds(self) -> NDArray[np.int64]:
        kinds = self._texts(lambda file: int(kind_of_file(file)), "file")
        kinds[self._flags(is_native_name, "name")] = FrameKind.NEVER
        if self._choice.library:
            kinds[kinds >= FrameKind.STANDARD] = FrameKind.OWN
        return kinds

    def _texts(self, function: Callable[[str], int], column: str) -> NDArray[np.int64]:
        """Return the result of a function for the file or the name of each frame."""
        used, which = np.unique(self._frames[column], return_inverse=True)
        return np.array([function(self._strings[at]) for at in used.tolist()], np.int64)[which]

    def _flags(self, function: Callable[[str], object], column: str) -> NDArray[np.bool_]:
        """Return whether a function is true for the file or the name of each frame."""
        return self._texts(lambda text: bool(function(text)), column) > 0

    def _is_named_native(self) -> NDArray[np.bool_]:
        """Return whether a frame is of native code, and neither of an allocator nor of the runtime of threads."""

        def says_something(name: str) -> bool:
            return len(name) <= _MAX_TEXT and not _ALLOCATOR_NAME.match(name) and not _RUNTIME_NAME.match(name)

        files = self._flags(lambda file: not file.startswith("<"), "file")
        return self._flags(says_something, "name") & files & self._flags(is_native_name, "name")

    def _matches(self, pattern: str) -> NDArray[np.bool_]:
        search = re.compile(pattern).search
        texts = (f"{self._strings[f]}:{line} {self._strings[n]}"[:_MAX_TEXT] for f, n, line in self._frames.tolist())
        return np.array([bool(search(text)) for text in texts], np.bool_)

    # Rows, one element for each row of `snapshot.stacks`; 0 for none

    def _innermost(self, wanted: NDArray[np.bool_]) -> NDArray[np.int64]:
        """Return for each stack the row of its innermost frame that is wanted."""
        rows = np.arange(len(self._parent))
        hidden = ~wanted[self._frame[1:]]
        rows[1:][hidden] = self._parent[1:][hidden]
        return _followed(rows)

    def _library_rows(
        self, site: NDArray[np.int64], kinds: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return frames of libraries inside of the site: the one that it calls, and the innermost one."""
        is_plumbing = self._flags(_PLUMBING.match, "name")
        is_thin = self._flags(lambda file: short_path(file).startswith(THIN), "file")
        is_library = (kinds >= FrameKind.STANDARD) & ~is_plumbing & ~is_thin
        line = self._innermost(is_library)
        line[line <= site] = 0
        package = self._innermost(is_library & (kinds >= FrameKind.LIBRARY))
        package[package <= site] = 0
        outward = np.where(line > 0, line[self._parent[line]], 0)
        first = _followed(np.where(outward > site, outward, line))
        return self._frame_of(first), self._frame_of(np.where(package > 0, package, line))

    def _callers(self, site: NDArray[np.int64], kinds: NDArray[np.int64]) -> list[NDArray[np.int64]]:
        """Return the further frames of the user's own code that make a site."""
        own = self._innermost(kinds >= FrameKind.OWN)
        found = []
        for _ in range(self._choice.depth - 1):
            site = np.where(site > 0, own[self._parent[site]], 0)
            if not site.any():
                break
            found.append(self._frame_of(site))
        return found

    def _frame_of(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        return np.where(rows > 0, self._frame[rows], -1)

    # Tables

    def _categories(self) -> Sites:
        of_stack = np.zeros(len(self._parent), np.int64)
        for number, (_, pattern) in enumerate(self._choice.categories, 3):
            member = self._innermost(self._matches(pattern)) > 0
            of_stack[(of_stack == 0) & member] = number
        of_stack[of_stack == 0] = 2
        of_stack[0] = 1
        frames = [BEFORE_RECORDING, NO_STACK, _OTHER, *(Frame(name, "", 0) for name, _ in self._choice.categories)]
        none = np.full(len(of_stack) + 1, -1)
        return Sites(tuple(frames), _labels_of(frames), np.append(of_stack, 0), none, none)

    def _table(
        self, columns: list[NDArray[np.int64]], program: NDArray[np.int64], called: NDArray[np.int64],
        inner: NDArray[np.int64],
    ) -> Sites:  # fmt: skip
        """Return the sites of stacks that are equal in all columns of frames; the last column is the autograd node."""
        keys, which = np.unique(np.stack(columns, 1)[1:], axis=0, return_inverse=True)
        forward = self._forward_lines(columns[0], columns[-1], program)
        numbers: dict[tuple[Frame | str, ...], int] = {(BEFORE_RECORDING,): 0, (NO_STACK,): 1}
        frames, labels, of_key = [BEFORE_RECORDING, NO_STACK], [*_labels_of([BEFORE_RECORDING, NO_STACK])], []
        for *places, node in keys.tolist():
            key, frame, label = self._named(places, node, forward)
            if (number := numbers.setdefault(key, len(frames))) == len(frames):
                frames.append(frame)
                labels.append(label)
            of_key.append(number)
        of_stack = np.concatenate([[1], np.array(of_key)[which.reshape(-1)], [0]])
        return Sites(tuple(frames), tuple(unique_labels(labels)), of_stack.astype(np.int64), np.append(called, -1),
                     np.append(inner, -1))  # fmt: skip

    def _named(
        self, places: list[int], node: int, forward: dict[str, list[Frame]]
    ) -> tuple[tuple[Frame | str, ...], Frame, str]:
        """Return what identifies a site, its frame and its label."""
        frames = [_frame_at(self._snapshot, place) for place in places if place >= 0]
        label = ", ".join(map(label_of, frames))
        if node < 0:
            return (tuple(frames), frames[0], label) if frames else ((NO_CODE,), NO_CODE, NO_CODE.file)
        name = node_of(self._strings[self._frames["name"][node]])
        if len(made := forward[name]) == 1:
            return (made[0], name), made[0], f"{label_of(made[0])} ← {name}"
        if frames and not is_native_name(frames[0].name):
            return (*frames, name), frames[0], f"{label} → {name}"
        several = f" of {' or '.join(map(place_of, made))}" if 1 < len(made) <= _MOST_LINES else ""
        return (name,), Frame("", name, 0), f"{name}{several}"

    def _forward_lines(
        self, site: NDArray[np.int64], node: NDArray[np.int64], program: NDArray[np.int64]
    ) -> dict[str, list[Frame]]:
        """Return the lines of the forward pass that can have made the nodes, for each name of a node."""
        wanted = {node_of(self._strings[self._frames["name"][at]]) for at in {*node.tolist()} if at >= 0}
        is_call = self._flags(operator_of, "name")
        rows = np.flatnonzero((self._frame >= 0) & is_call[self._frame] & (node < 0) & (program > 0))
        names = self._frames["name"][self._frame[rows]]
        lines: dict[str, set[Frame]] = defaultdict(set)
        for name, at in {*zip(names.tolist(), site[rows].tolist(), strict=True)}:
            for made in nodes_of_operator(operator_of(self._strings[name])):
                lines[made].add(_frame_at(self._snapshot, at))
        return {name: sorted(lines.get(name.partition("Backward")[0], ())) for name in wanted}


def _labels_of(frames: list[Frame]) -> tuple[str, ...]:
    return tuple(unique_labels([label_of(frame) for frame in frames]))


def _followed(rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the end of each chain of rows."""
    while not np.array_equal(further := rows[rows], rows):  # pointer doubling: a stack of 1,000 takes ten steps
        rows = further
    return rows
