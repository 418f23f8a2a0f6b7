"""`forebay fit --solve`: the largest value of an argument that fits each card, or the smallest card that fits."""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Any, NamedTuple

from forebay import profiles
from forebay._base.byte_sizes import format_bytes
from forebay._base.untrusted import printable
from forebay._base.verdicts import Verdict, exit_status
from forebay.commands import CommandError

if TYPE_CHECKING:
    from forebay.interop.torch.fit.results import FitResult
    from forebay.interop.torch.fit.search import LargestValue

__all__ = [
    "CARDS",
    "Answer",
    "Case",
    "Question",
    "answer_questions",
    "arguments_with",
    "parse_prices",
    "parse_question",
    "solve",
]

_Run = Callable[[Sequence["Case"]], Sequence["FitResult"]]
_Search = tuple[str, Mapping[str, str], "LargestValue"]
CARDS = ("rtx_4090", "a100", "h100", "h200")  # by default
_ENDED = 4  # the exit status of a program that did not finish, or used no device memory
_SHOWN = 3  # cards beside the answer
_RANGE = re.compile(r"(\d+)\.\.(\d+)")
_NAME = re.compile(r"[A-Za-z_][\w-]*")


class Case(NamedTuple):
    """A run: a card, values of the program's arguments, and whether settings are searched where it does not fit."""

    card: str
    values: Mapping[str, Any] = {}
    explain: bool = True


@dataclass(frozen=True, slots=True)
class Question:
    """An argument of the program: a range of which the largest value is asked for, or values that are all tried."""

    name: str
    least: int = 0
    most: int = -1
    values: tuple[str, ...] = ()

    @property
    def is_search(self) -> bool:
        """True for a range."""
        return not self.values


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer for a card, and for one value of each argument that is listed.

    Parameters
    ----------
    card : str
        The profile.
    given : Mapping of str to str
        The values of the listed arguments.
    name : str
        The argument that was searched.
    largest : int or None
        Its largest value that fits; None if none does.
    at_largest, above : FitResult or None
        The result with that value, and the one with the smallest value that ran and does not fit.
    most : int
        The end of the range.
    values : tuple of int
        The values that ran.
    """

    card: str
    given: Mapping[str, str]
    name: str
    largest: int | None
    at_largest: FitResult | None
    above: FitResult | None
    most: int
    values: tuple[int, ...]

    @property
    def why(self) -> str:
        """The reason why a larger value is no answer."""
        if self.largest == self.most:
            return "the end of the range"
        if self.above is None:
            return self._by_the_line
        text = f"{self.above.parameters[self.name]} {self.above.text or self.above.verdict}"
        return text if self.above.parameters[self.name] <= (self.largest or 0) + 1 else self._by_the_line

    @property
    def remark(self) -> str:
        """A sentence on what would help, or what went wrong, with the larger value; "" for nothing."""
        if self.above is None:
            return ""
        value = self.above.parameters[self.name]
        if self.above.settings:
            return f"{value} fits with {self.above.settings[0]}"
        if self.above.verdict is Verdict.DID_NOT_FINISH:
            return f"{value} did not finish: {self.above.message.rstrip('.')}"
        return ""

    @property
    def _by_the_line(self) -> str:
        return f"{(self.largest or 0) + 1} does not fit, by the line through the runs"

    def as_json(self) -> dict[str, Any]:
        """Return values that `json.dumps` accepts. Sizes are in bytes."""
        found = self.at_largest
        return {
            "profile": self.card,
            "given": dict(self.given),
            "argument": self.name,
            "largest": self.largest,
            "why": self.why,
            "remark": self.remark,
            "values": list(self.values),
            "verdict": None if found is None else str(found.verdict),
            "peak_allocated": None if found is None else found.peak_allocated,
            "peak_reserved": None if found is None else found.peak_reserved,
            "in_use": None if found is None else found.in_use._asdict(),
            "capacity": None if found is None else found.capacity,
        }


def parse_question(text: str) -> Question:
    """Return the question in NAME=LEAST..MOST or NAME=VALUE,VALUE. Raises ArgumentTypeError."""
    name, equals, values = text.partition("=")
    name = name.lstrip("-")
    if text == "card":
        return Question("card", values=("card",))
    if not equals or not _NAME.fullmatch(name) or not values:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=LEAST..MOST, NAME=VALUE,VALUE or card")
    if found := _RANGE.fullmatch(values):
        least, most = map(int, found.groups())
        if least > most:
            raise argparse.ArgumentTypeError(f"{text!r}: {least} is above {most}")
        return Question(name, least, most)
    return Question(name, values=tuple(values.split(",")))


def parse_prices(text: str) -> dict[str, float]:
    """Return prices by card of CARD=PRICE,... Raises ArgumentTypeError."""
    try:
        return {card.strip(): float(price) for card, price in (each.split("=") for each in text.split(","))}
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not CARD=PRICE,CARD=PRICE") from None


def answer_questions(
    questions: Sequence[Question], cards: Sequence[str] | None, run: _Run, prices: Mapping[str, float], mode: str, *,
    as_json: bool,
) -> int:  # fmt: skip
    """Answer the questions of `--solve`, print the answers, and return the exit status.

    It is 0 if there is an answer for each card, or a card, else 1, and 4 if the program did not finish with the least
    value, or on a card.
    """
    if any(each.name == "card" for each in questions):
        if len(questions) > 1:
            raise CommandError("--solve card is a question of its own: it cannot be combined with another one")
        found = run([Case(card) for card in cards or [*(prices or profiles.names("cuda"))]])
        fitting = smallest_cards(found, prices)
        if as_json:
            shown = [each.profile for each in fitting]
            print(json.dumps({"card": next(iter(shown), None), "fitting": shown}, indent=2))
        else:
            print_cards(found, fitting, prices, mode)
        return 0 if fitting else exit_status(each.verdict for each in found)
    answers = solve(questions, cards or CARDS, run)
    if as_json:
        print(json.dumps([each.as_json() for each in answers], indent=2))
    else:
        print_answers(answers, mode)
    return max((_status(each) for each in answers), key=(0, 1, _ENDED).index)


def _status(answer: Answer) -> int:
    if answer.largest is not None:
        return 0
    return _ENDED if answer.above is not None and answer.above.verdict.status == _ENDED else 1


def arguments_with(arguments: Sequence[str], values: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the arguments of a program with some values.

    {NAME} in an argument is replaced. Without it, the value of --NAME is, and if it is not given, it is added.
    """
    found = list(arguments)
    for name, value in values.items():
        mark, option = f"{{{name}}}", f"--{name}"
        spellings = {option, option.replace("_", "-"), option.replace("-", "_")}
        if any(mark in each for each in found):
            found = [each.replace(mark, str(value)) for each in found]
        elif (at := next((at for at, each in enumerate(found) if each.partition("=")[0] in spellings), None)) is None:
            found += [option, str(value)]
        elif "=" in found[at]:
            found[at] = f"{found[at].partition('=')[0]}={value}"
        elif at + 1 < len(found):
            found[at + 1] = str(value)
        else:
            raise CommandError(f"{found[at]} has no value in the arguments of the program")
    return tuple(found)


def solve(questions: Sequence[Question], cards: Sequence[str], run: _Run) -> list[Answer]:
    """Search on each card, for each combination of the listed values: Note [Search of the largest value].

    One round runs a value of each open search. A value with which the program does not finish does not fit.
    """
    from forebay.interop.torch.fit.search import LargestValue, Probe

    searched = [each for each in questions if each.is_search]
    if len(searched) != 1:
        raise CommandError(
            f"--solve needs one argument with a range, such as batch=1..512, besides those with listed values; "
            f"{len(searched)} were given"
        )
    (question,) = searched
    listed = [each for each in questions if not each.is_search]
    combinations = [
        dict(zip([each.name for each in listed], values, strict=True))
        for values in product(*(each.values for each in listed))
    ]
    searches = [
        (card, given, LargestValue(question.least, question.most, _capacity(card)))
        for given in combinations
        for card in cards
    ]
    results: dict[int, dict[int, FitResult]] = {number: {} for number in range(len(searches))}
    while pending := _pending(searches):
        cases = [_case(*searches[number], question.name, value) for number, value in pending]
        for (number, value), found in zip(pending, run(cases), strict=True):
            results[number][value] = found
            search = searches[number][2]
            search.capacity = found.capacity
            fits = found.verdict in (Verdict.FITS, Verdict.FITS_AFTER_ERRORS)
            search.add(Probe(value, fits, found.peak_allocated + found.outside.high, found.in_use.high))
    return [_answer(question, *search, results[number]) for number, search in enumerate(searches)]


def _case(card: str, given: Mapping[str, str], search: LargestValue, name: str, value: int) -> Case:
    """Return a run of a search: what would help is of interest above a value that fits, and costs more runs."""
    return Case(card, {**given, name: value}, explain=value == (search.largest or search.least - 1) + 1)


def _pending(searches: Sequence[_Search]) -> list[tuple[int, int]]:
    """Return the searches that go on, each with the value that it runs next.

    The second value of each set of arguments runs on the largest card only, where it most likely fits: the others then
    know the slope.
    """
    going = [
        (given, number, search) for number, (_, given, search) in enumerate(searches) if search.following() is not None
    ]
    found = []
    for given, number, search in going:
        known = [each.measured_slope for _, other, each in searches if other == given and each.measured_slope]
        search.slope = known[0] if known else 0.0
        largest = max((each for other, _, each in going if other == given), key=lambda each: each.capacity)
        if (known or len(search.probes) != 1 or search is largest) and (value := search.following()) is not None:
            found.append((number, value))
    return found


def _answer(
    question: Question, card: str, given: Mapping[str, str], search: LargestValue, found: Mapping[int, FitResult]
) -> Answer:
    largest, failing = search.largest, search.failing
    return Answer(
        card, given, question.name, largest, None if largest is None else found[largest],
        None if failing is None else found[failing.value], question.most, tuple(found),
    )  # fmt: skip


def _capacity(card: str) -> int:
    return int(profiles.load(card).properties["total_memory"])


def smallest_cards(found: Sequence[FitResult], prices: Mapping[str, float]) -> list[FitResult]:
    """Return the results of the cards on which it fits: the smallest first, or the cheapest if prices are given."""
    fitting = [each for each in found if each.verdict is Verdict.FITS and (not prices or each.profile in prices)]
    return sorted(fitting, key=lambda each: (prices.get(each.profile, 0.0), each.capacity, each.profile))


def print_cards(
    found: Sequence[FitResult], fitting: Sequence[FitResult], prices: Mapping[str, float], mode: str
) -> None:
    """Print the smallest card, those that are as small or next to it, and the largest ones on which it does not fit."""
    from rich.console import Console
    from rich.text import Text

    console = Console(highlight=False)
    console.print(Text(mode))
    console.print()
    if not fitting:
        console.print(Text(f"No card of {len(found)} fits: {_names(found, prices)}."))
        return
    first, *others = fitting
    quality = "cheapest" if prices else "smallest"
    console.print(
        Text(
            f"The {quality} of {len(found)} cards on which it fits is {_names([first], prices)}: {_use(first)} of"
            f" {format_bytes(first.capacity)} in use."
        )
    )
    if others:
        console.print(Text(f"The next ones: {_names(others[:_SHOWN], prices)}."))
    before = [each for each in found if each not in fitting and each.capacity <= first.capacity]
    for each in sorted(before, key=lambda each: -each.capacity)[:_SHOWN]:
        console.print(Text(printable(f"{each.profile}, {format_bytes(each.capacity)}: {each.text or each.verdict}")))


def _names(found: Sequence[FitResult], prices: Mapping[str, float]) -> str:
    return ", ".join(f"{each.profile} ({prices[each.profile]:g})" if prices else each.profile for each in found)


def _use(found: FitResult) -> str:
    low, high = found.in_use.low, found.in_use.high
    return format_bytes(low) if low == high else f"{format_bytes(low)} to {format_bytes(high)}"


def print_answers(answers: Sequence[Answer], mode: str) -> None:
    """Print a table of answers, after the sentence about the mode."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(highlight=False)
    console.print(Text(mode))
    console.print()
    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0), collapse_padding=True)
    given = list(answers[0].given)
    for heading in ("card", *given, f"largest {answers[0].name}", "reserved", "nvidia-smi", "of"):
        table.add_column(Text(printable(heading)), justify="left" if heading == "card" else "right", no_wrap=True)
    table.add_column("a larger one", overflow="fold")
    for each in answers:
        found = each.at_largest
        sizes = (found.peak_reserved, found.in_use.value, found.capacity) if found is not None else ()
        cells = [each.card, *each.given.values(), "none" if each.largest is None else str(each.largest)]
        cells += [*map(format_bytes, sizes), *([""] * (3 - len(sizes)))]
        table.add_row(*(Text(printable(cell)) for cell in (*cells, each.why)))
    console.print(table)
    console.print()
    for remark in dict.fromkeys(each.remark for each in answers if each.remark):
        cards = dict.fromkeys(each.card for each in answers if each.remark == remark)
        console.print(Text(printable(f"{', '.join(cards)}: {remark}")))
    count = sum(len(each.values) for each in answers)
    console.print(
        Text(
            f"{count} values ran on {len({each.card for each in answers})} cards. Larger values are taken to need more"
            " memory."
        )
    )
