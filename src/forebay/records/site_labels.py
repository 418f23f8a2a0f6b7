"""Texts that name sites: unique in a table, without what all of them share, and fitted to a width at the path's end."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from forebay._base.untrusted import printable, shortened
from forebay.records.frame_kinds import is_native_name, short_path
from forebay.records.model import Frame

__all__ = ["EXPRESSIONS", "fit_labels", "label_of", "place_of", "strip_common_folder", "unique_labels", "with_library"]

_FOLDER_END = re.compile(r"(?<=[/\\])(?!(?<=\\)(?:x[0-9a-f]{2}|u[0-9a-f]{4}))")  # not in an escape of `printable`
_FILE = re.compile(r"^(?P<file>.*?):\d+(?= |$)")  # the path and line of a label
_ARROW = re.compile(r"((?:^| )[→←] )")  # to a line of a library, from an autograd node
_ABSOLUTE = re.compile(r"[/\\]|[A-Za-z]:[/\\]")
#: By their names in the viewer page.
EXPRESSIONS = {"folder_end": _FOLDER_END, "label_file": _FILE, "absolute": _ABSOLUTE}
_MAX_FILE, _MAX_NAME = 300, 200  # characters of a label
_LEAST = 16  # characters of a path that show more than its last name


def label_of(frame: Frame) -> str:
    """Return a frame as printable text, such as `train.py:42 forward`.

    Parameters
    ----------
    frame : Frame
        The frame.

    Returns
    -------
    str
        The label. Files of packages begin with the package. Control characters, bidirectional marks and surrogates are
        replaced by escape sequences. The middle of a long name is left out. Native code has its name only, as the
        file is a shared object and the line an address.

    Examples
    --------
    >>> label_of(Frame("train.py", "forward", 42))
    'train.py:42 forward'
    """
    name = shortened(frame.name, _MAX_NAME)
    if is_native_name(frame.name) and frame.name != "??":
        return printable(name)
    place = place_of(frame)
    if place.startswith("cell ") and name.startswith("<"):  # the cell itself, or a comprehension
        return place
    return printable(f"{place} {name}".rstrip())


def place_of(frame: Frame) -> str:
    """Return the file and line of a frame, such as `pandas/core/frame.py:3912`."""
    file = shortened(short_path(frame.file), _MAX_FILE)
    return printable(f"{file}:{frame.line}" if frame.line else file)


def with_library(label: str, library: str) -> str:
    """Return the label of a site with the line of a library that it calls, if there is one."""
    return f"{label} → {library}" if library else label


def unique_labels(labels: Sequence[str]) -> list[str]:
    """Return labels of different sites, numbered where two are equal: " (2)" after the second.

    Examples
    --------
    >>> unique_labels(["a.py:1", "a.py:1", "b.py:2"])
    ['a.py:1', 'a.py:1 (2)', 'b.py:2']
    """
    seen: dict[str, int] = {}
    taken = set(labels)
    found = []
    for label in labels:
        text, number = label, seen.get(label, 0) + 1
        while number > 1 and (text := f"{label} ({number})") in taken:
            number += 1
        seen[label] = number
        taken.add(text)
        found.append(text)
    return found


def strip_common_folder(labels: list[str]) -> tuple[str, list[str]]:
    """Split labels into the folder that they share and the remaining labels.

    Parameters
    ----------
    labels : list of str
        Labels from `label_of`. Those that begin with "(" name no file and are ignored; so are those without an
        absolute path, such as files of packages, if others have one.

    Returns
    -------
    folder : str
        The common folder with its trailing separator; "" if the labels share none.
    labels : list of str
        The labels without the folder, in the same order.

    Examples
    --------
    >>> strip_common_folder(["/home/ada/a.py:1 f", "/home/ada/b/c.py:2 g", "pandas/core/frame.py:9 take"])
    ('/home/ada/', ['a.py:1 f', 'b/c.py:2 g', 'pandas/core/frame.py:9 take'])
    """
    absolute = [label for label in labels if _ABSOLUTE.match(label)]
    files = [_path_of(label) for label in absolute or labels if not label.startswith("(")]
    folders = [_FOLDER_END.split(file)[:-1] for file in files]
    shared = 0
    while folders and all(shared < len(f) and f[shared] == folders[0][shared] for f in folders):
        shared += 1
    folder = "".join(folders[0][:shared]) if folders else ""
    if len(folder) < 2:  # removing "/" alone saves nothing
        return "", labels
    return folder, [label.removeprefix(folder).replace(f" {folder}", " ") for label in labels]


def _path_of(label: str) -> str:
    found = _FILE.match(label)
    return found["file"] if found else label


def fit_labels(labels: Sequence[str], width: int) -> list[str]:
    """Return labels of different sites with at most `width` characters, all different.

    Parameters
    ----------
    labels : sequence of str
        Labels of sites.
    width : int
        Characters, at least 8.

    Returns
    -------
    list of str
        The labels. One that is too long loses the names of functions, as long as its paths keep their place, and then
        the beginning of its paths: "…/model.py:88". If different ones become equal, they end with their number.

    Examples
    --------
    >>> fit_labels(["/srv/jobs/nightly/train/model.py:88 forward"], 20)
    ['…/train/model.py:88']
    >>> fit_labels(["train.py:9 main → transformers/models/gpt2.py:7 GPT2.forward"], 30)
    ['train.py:9 → …/gpt2.py:7']
    """
    width = max(width, 8)
    fitted = [_fitted(label, width) for label in labels]
    for at in _ambiguous(labels, fitted):
        first, *rest = _ARROW.split(labels[at], maxsplit=1)
        if rest and fitted[at] != labels[at]:
            fitted[at] = _with_end(first, rest[0], rest[1], width)
    for at in _ambiguous(labels, fitted):
        mark = f" #{at + 1}"
        fitted[at] = _fitted(labels[at], width - len(mark)) + mark
    return fitted


def _ambiguous(labels: Sequence[str], fitted: Sequence[str]) -> list[int]:
    """Return the places of fitted texts that several labels have."""
    places: dict[str, list[int]] = {}
    for at, text in enumerate(fitted):
        places.setdefault(text, []).append(at)
    return [at for same in places.values() if len({labels[each] for each in same}) > 1 for at in same]


def _fitted(label: str, width: int) -> str:
    """Return the first of ever shorter texts that fits."""
    first, *rest = _ARROW.split(label, maxsplit=1)
    if rest:
        arrow, second = rest
        for text in _shorter(first, arrow, second):
            if len(text) <= width:
                return text
        return _fitted(first, width) if first else arrow + _fitted(second, width - len(arrow))  # the user's own line
    if len(label) <= width:
        return label
    found = _FILE.match(label)
    if found is None or len(found.group()) + 2 < width:  # a letter of the name at least
        return f"{label[: width - 1]}…"
    return found.group() if len(found.group()) <= width else _cut(found.group(), width)


def _shorter(first: str, arrow: str, second: str) -> Iterator[str]:
    """Yield texts of two lines: without names, with short paths."""
    place, inner = (found.group() if (found := _FILE.match(text)) else text for text in (first, second))
    yield f"{first}{arrow}{second}"
    yield f"{first}{arrow}{inner}"
    yield f"{place}{arrow}{inner}"
    yield f"{place}{arrow}{_end(inner)}"
    yield f"{_end(place)}{arrow}{_end(inner)}"


def _with_end(first: str, arrow: str, second: str, width: int) -> str:
    """Return a text that shows more of the second line than of the first one."""
    place, inner = (found.group() if (found := _FILE.match(text)) else text for text in (first, second))
    head = f"{_end(place)}{arrow}"
    room = width - len(head)
    if room >= min(len(inner), _LEAST):
        return head + (inner if len(inner) <= room else _cut(inner, room))
    return _fitted(arrow.lstrip() + second, width)


def _end(place: str) -> str:
    """Return a path without its folders."""
    *folders, name = re.split(r"[/\\]", place)
    return f"…/{name}" if folders and len(name) + 2 < len(place) else place


def _cut(place: str, width: int) -> str:
    """Return the end of a path, from the beginning of a folder if that is not much shorter."""
    end = place[len(place) - width + 1 :]
    slash = re.search(r"[/\\]", end)
    return "…" + (end[slash.start() :] if slash and len(end) - slash.start() >= width // 2 else end)
