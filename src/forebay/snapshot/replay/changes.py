"""Changes of a program, such as smaller blocks of a site, as text and as what they name in a snapshot."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from forebay._base.suggestions import did_you_mean
from forebay.records.backward_nodes import node_of
from forebay.records.model import Action, Snapshot, State
from forebay.records.sites import Sites, find_sites

__all__ = [
    "BACKWARD",
    "ERROR",
    "Change",
    "Kind",
    "backward_stacks",
    "can_apply",
    "is_number",
    "matching_stacks",
    "parse_changes",
]

ERROR, BACKWARD = "error", "backward"  # times at which blocks can be freed
_FORM = (
    "write SITE size=0.5, SITE blocks=4 or SITE freed-before=WHEN, where WHEN is another site, an entry's number, "
    f"“{BACKWARD}” or “{ERROR}”"
)
_CHANGE = re.compile(r"(?P<site>.*?\S)\s+(?P<kind>[A-Za-z_-]+)\s*=\s*(?P<value>.*\S)", re.DOTALL)
_FACTOR = re.compile(r"(?P<number>\d{1,9}(?:\.\d{1,9})?|\.\d{1,9})(?:(?P<percent>\s*%)|\s*/\s*(?P<divisor>\d{1,9}))?")
_LARGEST_FACTOR = 1000.0
_MAX_TEXT = 1 << 12  # characters of a change
_SHOWN = 3  # sites in an error
_BACKWARD_NAME = re.compile(r"(?:^|\.)(?:backward|_engine_run_backward)$")


class Kind(StrEnum):
    """Kinds of changes."""

    SIZE = "size"  # all requests of the site are larger or smaller by a factor
    BLOCKS = "blocks"  # at most so many blocks of the site are live at once; further ones are not allocated
    FREED_BEFORE = "freed-before"  # each block of the site is freed at the latest when something else happens


@dataclass(frozen=True, slots=True)
class Change:
    """A change of what one site, or several, allocate."""

    site: str  #: text that occurs in the labels of the sites; "*" for all sites
    kind: Kind  #: what is changed
    number: float = 0.0  #: the factor or the number of blocks
    when: str = ""  #: before what the blocks are freed

    def __str__(self) -> str:
        value = self.when if self.kind == Kind.FREED_BEFORE else f"{self.number:.10g}"
        return f"{self.site} {self.kind}={value}"


def parse_changes(text: str) -> tuple[Change, ...]:
    """Parse one or several changes, which ";" separates.

    Parameters
    ----------
    text : str
        The changes, such as ``train.py:31 size=0.5; train.py:40 freed-before=backward``.

    Raises
    ------
    ValueError
        If the text does not have this form.

    Examples
    --------
    >>> [*map(str, parse_changes("train.py:31 size=50%; model.py:8 forward blocks = 4"))]
    ['train.py:31 size=0.5', 'model.py:8 forward blocks=4']
    """
    if len(text) > _MAX_TEXT:
        raise ValueError(f"a change of {len(text):,} characters is too long: the limit is {_MAX_TEXT:,}")
    return tuple(_parse(part.strip()) for part in text.split(";") if part.strip()) or (_parse(""),)


def _parse(text: str) -> Change:
    found = _CHANGE.fullmatch(text)
    if found is None:
        raise ValueError(f"{text!r} is no change: {_FORM}")
    name, value = found["kind"].lower().replace("_", "-"), found["value"]
    if name not in [*Kind]:
        raise ValueError(f"{name!r} is no change{did_you_mean(name, [each.value for each in Kind])}: {_FORM}")
    kind = Kind(name)
    if kind == Kind.FREED_BEFORE:
        return Change(found["site"], kind, when=value)
    if kind == Kind.BLOCKS:
        if not value.isascii() or not value.isdecimal() or len(value) > 9:
            raise ValueError(f"blocks={value} is no number of blocks: write an integer, such as blocks=4")
        return Change(found["site"], kind, int(value))
    return Change(found["site"], kind, _factor(value))


def _factor(text: str) -> float:
    found = _FACTOR.fullmatch(text)
    divisor = int(found["divisor"] or 1) if found is not None else 0
    if found is None or not divisor:
        raise ValueError(f"size={text} is no factor: write a number, a share or a fraction, such as 0.5, 50% or 1/2")
    factor = float(found["number"]) / divisor / (100 if found["percent"] else 1)
    if factor > _LARGEST_FACTOR:
        raise ValueError(f"size={text} is too large: a factor is at most {_LARGEST_FACTOR:,.0f}")
    return factor


def matching_stacks(snapshot: Snapshot, sites: Sites, text: str, order: Sequence[str]) -> NDArray[np.bool_]:
    """Return which stacks a text names, with an additional last element for blocks that are older than the history.

    It names the site with this label, or else the sites whose labels contain it, at the ends of words: "train.py:31" is
    not in "train.py:310 main". Where it names none, it names the stacks with such a frame: what the function called.

    Parameters
    ----------
    snapshot : Snapshot
        The snapshot.
    sites : Sites
        Its sites.
    text : str
        The text; "*" names all.
    order : sequence of str
        Labels for an error, the most important first.

    Raises
    ------
    ValueError
        If it names nothing.
    """
    if text == "*":
        return np.ones(len(sites.of_stack), np.bool_)
    used = _used(snapshot, len(sites.of_stack))
    if text in sites.labels:
        exact: NDArray[np.bool_] = used & (sites.of_stack == sites.labels.index(text))
        if exact.any():
            return exact
    for part in dict.fromkeys((text, text.partition(" → ")[0])):  # a table shows the line of a library after the site
        contains = _search(part)
        named: NDArray[np.bool_] = used & np.array([*map(contains, sites.labels)], np.bool_)[sites.of_stack]
        if named.any():
            return named
    contains = _search(text)
    frames = np.array(
        [contains(f"{snapshot.strings[file]}:{line} {snapshot.strings[name]}"[:_MAX_TEXT]) for file, name, line in
         snapshot.frames.tolist()], np.bool_,
    )  # fmt: skip
    named = used & _with_frame(snapshot, frames, len(sites.of_stack))
    if not named.any():
        shown = ", ".join(f"“{label}”" for label in order[:_SHOWN]) or "none"
        raise ValueError(f"no site of {snapshot.device} matches {text!r}; those with the most memory: {shown}")
    return named


def can_apply(snapshot: Snapshot, changes: Sequence[Change]) -> bool:
    """Return True if all changes name something on this device, of those in a file.

    Parameters
    ----------
    snapshot : Snapshot
        The snapshot of the device.
    changes : sequence of Change
        The changes.
    """
    sites, failed = find_sites(snapshot), bool((snapshot.trace["action"] == Action.OOM).any())
    for each in changes:
        if each.when == ERROR and not failed:
            return False
        places = {each.site, each.when} - {"", ERROR, BACKWARD}
        for text in places - {text for text in places if text == each.when and is_number(text)}:
            try:
                matching_stacks(snapshot, sites, text, ())
            except ValueError:
                return False
    return True


def is_number(text: str) -> bool:
    """Return True for the number of an entry, such as "1,234"."""
    return text.isascii() and text.replace(",", "").isdecimal()


def backward_stacks(snapshot: Snapshot, count: int) -> NDArray[np.bool_]:
    """Return which stacks are of the backward pass, with as many elements as `Sites.of_stack` has."""
    names, which = np.unique(snapshot.frames["name"], return_inverse=True)
    texts = [snapshot.strings[name] for name in names.tolist()]
    flags = [bool(node_of(text) or (len(text) <= _MAX_TEXT and _BACKWARD_NAME.search(text))) for text in texts]
    return _with_frame(snapshot, np.array(flags, np.bool_)[which], count)


def _used(snapshot: Snapshot, count: int) -> NDArray[np.bool_]:
    """Return which stacks allocate: the others are only parts of them, whose sites are in no table."""
    used = np.zeros(count, np.bool_)
    used[snapshot.trace["stack"][np.isin(snapshot.trace["action"], (Action.ALLOC, Action.OOM))]] = True
    used[snapshot.blocks["stack"][snapshot.blocks["state"] != State.FREE]] = True
    used[-1] = True
    return used


def _search(text: str) -> Callable[[str], bool]:
    """Return a function that searches for a text at the ends of words."""
    before = r"(?<!\w)" if re.match(r"\w", text) else ""
    after = r"(?!\w)" if re.search(r"\w$", text) else ""
    search = re.compile(before + re.escape(text) + after).search
    return lambda label: search(label) is not None


def _with_frame(snapshot: Snapshot, wanted: NDArray[np.bool_], count: int) -> NDArray[np.bool_]:
    """Return which stacks have a wanted frame."""
    found = np.zeros(count, np.bool_)
    if len(snapshot.stacks) < 2:
        return found
    has = np.append(False, wanted[snapshot.stacks["frame"][1:]])
    outer = snapshot.stacks["parent"].astype(np.int64)
    while outer.any():  # pointer doubling: a stack of 1,000 frames takes ten steps
        has |= has[outer]
        outer = outer[outer]
    found[: len(has)] = has
    found[0] = False
    return found
