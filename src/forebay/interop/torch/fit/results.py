"""Results of runs on emulated cards, as a table."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, overload

from forebay._base.assumption_checks import AssumptionCheck
from forebay._base.assumption_choices import AssumptionChoices
from forebay._base.byte_sizes import format_bytes
from forebay._base.html_repr import Html, box, table
from forebay._base.kernel_checks import KernelCheck
from forebay._base.outside_memory import NOTHING, OutsideMemory, in_use, workspaces_of_cudnn
from forebay._base.verdicts import Assumption, Verdict
from forebay.rehearsal.files_report import FilesReport

__all__ = ["Column", "FitResult", "FitTable"]

_LARGEST = 2  # categories in a row


@dataclass(frozen=True, slots=True)
class FitResult:
    """The result of one run on one emulated card. Sizes are in bytes.

    Parameters
    ----------
    profile : str
        Name of the card's profile.
    parameters : Mapping of str to object
        The arguments of the run in a sweep.
    verdict : Verdict
        Whether it fits.
    peak_allocated, peak_reserved : int
        Peaks of the allocator: of the bytes in blocks, and of the bytes in segments, of all processes of the program
        together. Of several devices, those of the device that reserved most. Where memory ran out or the program did
        not finish, the peaks until then.
    capacity : int
        Memory of the card.
    categories : Mapping of str to int
        What held the peak, by category.
    text : str
        The verdict in words, with the number of caught errors.
    message : str
        What ended the program: the text of the out-of-memory error, another exception, a signal or a status; "" if it
        ended well.
    reasons : tuple of str
        Sentences about the verdict.
    line : str
        The line of the program where it ended, or that needs a value; "" if none is known.
    ooms, failed : int
        Number of requests that ran out of memory, and the size of the last one.
    processes : int
        Number of processes that used a device.
    needed : int or None
        Where memory ran out, the peak of the bytes in blocks of the whole program, from a run without values on a card
        of the same profile with unlimited memory; None if it did not end well there, either.
    settings : tuple of str
        Where memory ran out, the allocator settings with which the whole program fits, as replays of its allocations
        prove; the first one reserves least.
    seconds : float
        Duration of the run.
    assumptions : tuple of Assumption
        The lines of the program that received assumed values, in the mode "shapes": the result is as good as these.
    choices : AssumptionChoices or None
        The choices among assumed values; None in the other modes.
    assumption_check : AssumptionCheck or None
        Whether the peak depends on the assumed values; None if that was not asked for.
    mode : str
        What was computed: "shapes", "strict" or "compute".
    files : FilesReport or None
        The files that the program wrote only in its overlay; None if it wrote its files as always, with values.
    outside : OutsideMemory
        What is outside the allocator: a usual value, a range, and its source. `in_use` has it added to the peak.
    note : str
        What must be known about results for this card, such as that its rules are not verified; "" if nothing.
    workspaces : int
        The bytes that cuDNN's workspaces for convolutions add at most to the peak of reserved bytes, which has none of
        them: an estimate. The upper end of `in_use` includes them.
    kernels : tuple of KernelCheck or None
        The kernels of Triton that the program compiled, those with findings first; None if they were not checked.
    """

    profile: str
    parameters: Mapping[str, Any]
    verdict: Verdict
    peak_allocated: int
    peak_reserved: int
    capacity: int
    categories: Mapping[str, int]
    text: str = ""
    message: str = ""
    reasons: tuple[str, ...] = ()
    line: str = ""
    ooms: int = 0
    failed: int = 0
    processes: int = 1
    needed: int | None = None
    settings: tuple[str, ...] = ()
    seconds: float = 0.0
    assumptions: tuple[Assumption, ...] = ()
    choices: AssumptionChoices | None = None
    assumption_check: AssumptionCheck | None = None
    mode: str = ""
    files: FilesReport | None = None
    outside: OutsideMemory = NOTHING
    note: str = ""
    workspaces: int = 0
    kernels: tuple[KernelCheck, ...] | None = None

    @property
    def in_use(self) -> OutsideMemory:
        """The bytes of the card in use at the peak, as nvidia-smi shows them: a usual value, and a range."""
        return in_use(self.peak_reserved, self.outside, self.workspaces)

    @property
    def fits(self) -> bool:
        """True if the program ended without an error and used the card, with the settings that it had."""
        return self.verdict.fits

    @property
    def largest(self) -> tuple[tuple[str, int], ...]:
        """The categories that held most, with their bytes."""
        return tuple(sorted(self.categories.items(), key=lambda each: -each[1])[:_LARGEST])


@dataclass(frozen=True, slots=True)
class Column:
    """A column of the table. In a narrow terminal, those of the highest rank are left out first; 0: never."""

    heading: str
    cell: Callable[[FitResult], str]
    rank: int = 0
    is_number: bool = False
    widest: int = 60  # characters; longer texts wrap
    sentence: Callable[[FitResult], str] | None = None  # what is printed below the table if it was left out

    def below(self, result: FitResult) -> str:
        """Return what is printed below the table if the column was left out; "" for nothing."""
        if self.sentence is not None:
            return self.sentence(result)
        text = self.cell(result)
        return text and f"{self.heading} {text}"


@dataclass(frozen=True)
class FitTable(Sequence[FitResult]):
    """The results of several runs, in the order in which they were asked for.

    Parameters
    ----------
    results : tuple of FitResult
        The results.
    names : tuple of str, optional
        The parameters of the sweep, in the order of the columns.
    """

    results: tuple[FitResult, ...]
    names: tuple[str, ...] = ()

    @overload
    def __getitem__(self, at: int) -> FitResult: ...
    @overload
    def __getitem__(self, at: slice) -> FitTable: ...
    def __getitem__(self, at: int | slice) -> FitResult | FitTable:
        return FitTable(self.results[at], self.names) if isinstance(at, slice) else self.results[at]

    def __len__(self) -> int:
        return len(self.results)

    def __iter__(self) -> Iterator[FitResult]:
        return iter(self.results)

    def largest(self, name: str) -> dict[str, Any]:
        """Return the largest value of a parameter with which each card fits, by profile; None if it fits with none.

        Parameters
        ----------
        name : str
            The parameter of the sweep.
        """
        found: dict[str, Any] = {each.profile: None for each in self.results}
        for each in self.results:
            value = each.parameters[name]
            if each.fits and (found[each.profile] is None or value > found[each.profile]):
                found[each.profile] = value
        return found

    def as_json(self) -> list[dict[str, Any]]:
        """Return the fields of each result, `in_use` and `fits`, as values that `json.dumps` accepts."""
        return [
            {
                **asdict(each),
                "assumptions": [line._asdict() for line in each.assumptions],
                **({} if each.kernels is None else {"kernels": [kernel.as_json() for kernel in each.kernels]}),
                "choices": None if each.choices is None else each.choices.as_json(),
                "outside": each.outside._asdict(),
                "in_use": each.in_use._asdict(),
                "workspaces": workspaces_of_cudnn(each.workspaces)._asdict(),
                "fits": each.fits,
            }
            for each in self.results
        ]

    def columns(self) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
        """Return the headings and the rows of the table as texts."""
        columns = self.shown_columns()
        return tuple(each.heading for each in columns), [
            tuple(each.cell(result) for each in columns) for result in self.results
        ]

    def shown_columns(self) -> tuple[Column, ...]:
        """Return the columns, with those of the parameters."""
        first, *others = _COLUMNS
        return (first, *(Column(name, _parameter(name)) for name in self.names), *others)

    def __repr__(self) -> str:
        headings, rows = self.columns()
        widths = [max(map(len, column)) for column in zip(headings, *rows, strict=True)]
        lines = ["  ".join(map(str.ljust, cells, widths)).rstrip() for cells in (headings, *rows)]
        return "\n".join(lines)

    def _repr_html_(self) -> Html:
        headings, rows = self.columns()
        return box("Will it fit?", table(headings, rows))


def _held(result: FitResult) -> str:
    return ", ".join(f"{name} {nbytes / max(result.peak_allocated, 1):.0%}" for name, nbytes in result.largest)


def _needs(result: FitResult) -> str:
    """Return what the program needs where it does not fit, or what must be known about its figures."""
    if result.verdict is Verdict.FITS_AFTER_ERRORS:
        return f"{format_bytes(result.failed)} failed last"
    if result.fits:
        return ""
    if result.verdict is Verdict.DID_NOT_FINISH:
        return "more: this is the peak so far"
    if result.settings:
        return result.settings[0]
    if result.needed is not None:
        pieces = ", in one piece" if result.needed + result.outside.low <= result.capacity else ""
        return f"{format_bytes(result.needed)} allocated{pieces}"
    return f"more than {format_bytes(result.peak_allocated)} allocated" if result.ooms else ""


def _need_sentence(result: FitResult) -> str:
    if result.verdict is Verdict.FITS_AFTER_ERRORS:
        return f"the last request that failed was for {format_bytes(result.failed)}"
    is_printed = result.settings or result.verdict is Verdict.DID_NOT_FINISH  # by another line
    text = "" if is_printed else _needs(result)
    return text and f"needs {text}"


def _parameter(name: str) -> Callable[[FitResult], str]:
    return lambda result: str(result.parameters.get(name, ""))


_COLUMNS = (
    Column("card", lambda result: result.profile),
    Column("", lambda result: result.text or result.verdict, widest=24),
    Column("allocated", lambda result: format_bytes(result.peak_allocated), is_number=True),
    Column("reserved", lambda result: format_bytes(result.peak_reserved), is_number=True),
    Column("nvidia-smi", lambda result: format_bytes(result.in_use.value), rank=1, is_number=True),
    Column("of", lambda result: format_bytes(result.capacity), is_number=True),
    Column("held most by", _held, rank=3),
    Column("needs", _needs, rank=2, sentence=_need_sentence),
)
