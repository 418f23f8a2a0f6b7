"""Other cards for which a run of a program answers, too.

# Note [Runs shared by cards]
Nothing but the properties of its card can make a program, whose values are not computed, do something else on another
card. So a run notes each question about the card and compares the answer with those of the other cards: questions of
the program (`torch.cuda.get_device_capability()`, the free memory) and of kernels (which attention, how many buffers).
A card with another answer needs a run of its own. Only scratch memory, which a kernel frees before the program goes on,
may have another size: it is noted for each card. For the cards that remain, the allocations of the run are replayed
with their memory, and where one of these would run out of it, too, that card needs a run of its own, as programs catch
such errors. Rejected: one run for each compute capability, as programs and kernels ask for more, and mostly for less.
Test: tests/interop/torch/attribution/test_shared_results.py::test_shared_results_are_those_of_own_runs
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from forebay import profiles
from forebay.cuda._kind import CUDA
from forebay.runtime.devices.open_device import OpenDevice

__all__ = [
    "CardBytes",
    "OtherCard",
    "answer",
    "ask",
    "begin",
    "card_bytes",
    "differ",
    "differing",
    "read_statistics",
    "same_cards",
    "statistics_were_read",
]

_T = TypeVar("_T")
_MOST_KEPT = 10_000  # answers to repeated questions


class CardBytes(int):
    """A number of bytes that depends on the card."""

    others: Mapping[str, int]  # that of each other card, by name


@dataclass
class OtherCard:
    """A card that may share the run."""

    name: str
    capacity: int
    reserve: int  # bytes outside the allocator, which it cannot get
    properties: Mapping[str, Any]
    differs: bool = False  # an answer was another one


class _State:
    """State of the run of this process: the other cards, and the answers so far."""

    others: Sequence[OtherCard] = ()
    has_read_statistics = False
    noted: Callable[[], object] | None = None  # called when a card begins to differ
    kept: dict[Hashable, Any] = {}  # noqa: RUF012 -- replaced by `begin`
    groups: dict[tuple[str, ...], dict[tuple[Any, ...], list[OtherCard]]] = {}  # noqa: RUF012 -- as above


def begin(cards: Iterable[tuple[str, int | None, int]], noted: Callable[[], object] | None = None) -> None:
    """Begin to compare: with cards that have the memory of their profile, or another one. `noted` tells of changes.

    Each card is its name, its memory if it is another one, and what is outside the allocator.
    """
    others = []
    for name, memory, reserve in cards:
        properties = dict(profiles.load(name).at(0))
        properties["total_memory"] = memory or properties["total_memory"]
        others.append(OtherCard(name, properties["total_memory"], reserve, properties))
    _State.others, _State.noted, _State.has_read_statistics = others, noted, False
    _State.kept, _State.groups = {}, {}


def same_cards() -> list[OtherCard]:
    """Return the cards for which all answers were the same until now."""
    return [each for each in _State.others if not each.differs]


def differing() -> list[str]:
    """Return the names of the cards that need runs of their own."""
    return [each.name for each in _State.others if each.differs]


def statistics_were_read() -> bool:
    """Return True if the program has read what the allocator has, which depends on where its segments are."""
    return _State.has_read_statistics


def read_statistics() -> None:
    """Note that the program reads what the allocator has."""
    _State.has_read_statistics = True


def differ(cards: Iterable[OtherCard] | None = None) -> None:
    """Note that cards need runs of their own: by default all."""
    changed = [each for each in (_State.others if cards is None else cards) if not each.differs]
    for each in changed:
        each.differs = True
    if changed:
        _State.groups = {}
        if _State.noted is not None:
            _State.noted()


def answer(
    opened: OpenDevice, names: tuple[str, ...], rule: Callable[..., _T], key: Hashable | None = None
) -> _T:  # fmt: skip
    """Return what a rule derives from properties of a device, and note for which other cards it is another answer.

    The rule is called with the values of the properties. With a `key`, which identifies the rule and all else that it
    depends on, the answer is kept.
    """
    if not _State.others:
        return rule(*_values(opened.port.props.details, names))
    if key is not None and (key, names) in _State.kept:
        kept: _T = _State.kept[key, names]
        return kept
    try:
        found = rule(*_values(opened.port.props.details, names))
    except BaseException:
        differ()
        raise
    differ([card for values, cards in _groups(names).items() if not _is(rule, values, found) for card in cards])
    _keep(key, names, found)
    return found


def ask(names: tuple[str, ...], rule: Callable[..., object] = lambda *values: values) -> None:
    """Note that the program asks for what a rule derives from properties of a device, which need not be open."""
    if _State.others:
        own = _values(CUDA.describe(0).details, names)
        found = rule(*own)
        differ([card for values, cards in _groups(names).items() if not _is(rule, values, found) for card in cards])


def card_bytes(
    opened: OpenDevice, names: tuple[str, ...], rule: Callable[..., int], key: Hashable | None = None
) -> int:  # fmt: skip
    """Return the size of scratch memory that a rule derives from properties of a device, with that on other cards.

    Cards on which nothing is allocated, or something only there, need runs of their own.
    """
    if not _State.others:
        return rule(*_values(opened.port.props.details, names))
    if key is not None and (key, names) in _State.kept:
        kept: int = _State.kept[key, names]
        return kept
    found = CardBytes(rule(*_values(opened.port.props.details, names)))
    others: dict[str, int] = {}
    for values, cards in list(_groups(names).items()):
        nbytes = rule(*values)
        if bool(nbytes) != bool(found):
            differ(cards)
        elif nbytes != found:
            others |= dict.fromkeys((each.name for each in cards), nbytes)
    found.others = others
    _keep(key, names, found)
    return found


def _is(rule: Callable[..., Any], values: tuple[Any, ...], found: Any) -> bool:
    try:
        return bool(rule(*values) == found)
    except Exception:  # noqa: BLE001 -- on that card, the program gets this error
        return False


def _groups(names: tuple[str, ...]) -> dict[tuple[Any, ...], list[OtherCard]]:
    """Return the cards that have not differed yet, by the values of some properties."""
    found = _State.groups.get(names)
    if found is None:
        found = _State.groups[names] = {}
        for each in same_cards():
            found.setdefault(_values(each.properties, names), []).append(each)
    return found


def _values(properties: Mapping[str, Any], names: tuple[str, ...]) -> tuple[Any, ...]:
    return tuple(properties.get(name, 0) for name in names)


def _keep(key: Hashable | None, names: tuple[str, ...], found: object) -> None:
    if key is not None and len(_State.kept) < _MOST_KEPT:
        _State.kept[key, names] = found
