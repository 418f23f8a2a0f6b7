"""Checks of assumed values: comparisons of a peak with those of runs with the opposite values."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from forebay._base.assumption_choices import AssumptionChoices
from forebay._base.byte_sizes import format_bytes
from forebay._base.verdicts import Assumption, Judgement, Verdict

__all__ = ["MOST_LINES", "AssumptionCheck", "OppositeRun", "Peaks", "check_assumptions"]

MOST_LINES = 8  # that are run one by one
Peaks = Mapping[int, tuple[int, int]]  # by index of the device: bytes in blocks, and bytes in segments
_Outcome = Literal["same", "differs", "did not finish"]
_FINISHED = (Verdict.FITS, Verdict.TIGHT, Verdict.FITS_AFTER_ERRORS, Verdict.NO_DEVICE_MEMORY)


@dataclass(frozen=True, slots=True)
class OppositeRun:
    """A run with the opposite of what is assumed.

    Parameters
    ----------
    line : str
        The only line that got opposite values; "" if all did.
    outcome : {"same", "differs", "did not finish"}
        Whether the peak is that of the run without opposite values.
    peak_allocated, peak_reserved : int
        Its peaks, in bytes, of the device that reserved most; so far, if it did not finish.
    message : str
        Why it did not finish, or does not fit.
    """

    line: str
    outcome: _Outcome
    peak_allocated: int
    peak_reserved: int
    message: str = ""


@dataclass(frozen=True, slots=True)
class AssumptionCheck:
    """The result of a check: whether a peak depends on assumed values, see Note [Opposite choices].

    Parameters
    ----------
    depends : bool or None
        True if it does; False if the runs with opposite values have the same peak; None if that cannot be told.
    opposite : OppositeRun or None
        The run in which all lines got opposite values; None if there was none.
    lines : tuple of OppositeRun
        Runs in which one line did.
    untried : int
        Number of lines without such a run.
    reason : str
        Why nothing was checked; "" if something was.
    """

    depends: bool | None
    opposite: OppositeRun | None = None
    lines: tuple[OppositeRun, ...] = ()
    untried: int = 0
    reason: str = ""

    def as_json(self) -> dict[str, Any]:
        """Return the fields as values that `json.dumps` accepts."""
        return asdict(self)

    def sentences(self) -> Iterator[str]:
        """Yield what was found, in words."""
        if self.reason:
            yield f"Not checked: {self.reason}."
            return
        if self.opposite is None:
            yield "No line received an assumed value."
            return
        peak = f"{format_bytes(self.opposite.peak_allocated)} allocated"
        peak += f" and {format_bytes(self.opposite.peak_reserved)} reserved"
        if self.opposite.outcome == "same":
            yield f"The peak does not depend on them: with the opposite choices, it is the same, {peak}."
            return
        if self.opposite.outcome == "differs":
            message = f" ({self.opposite.message})" if self.opposite.message else ""
            yield f"The peak depends on them: with the opposite choices, it is {peak}{message}."
        else:
            end = (
                f"The run with the opposite choices did not finish: {self.opposite.message}. Its peak so far is {peak}."
            )
            yield f"{_DEPENDENCE[self.depends]} {end}"
        for each in self.lines:
            yield _of_line(each)
        if self.depends and self.lines and not self.untried and all(each.outcome == "same" for each in self.lines):
            yield "No line decides it alone."
        if self.untried:
            yield f"{self.untried:,} lines were not tried alone."


_DEPENDENCE = {
    True: "The peak depends on them.",
    False: "The peak does not depend on any of the lines alone.",
    None: "Whether the peak depends on them is not known.",
}


def _of_line(run: OppositeRun) -> str:
    if run.outcome == "same":
        return f"{run.line}: no difference"
    peak = f"{format_bytes(run.peak_allocated)} allocated, {format_bytes(run.peak_reserved)} reserved"
    if run.outcome == "differs":
        return f"{run.line}: the peak is {peak}" + (f" ({run.message})" if run.message else "")
    return f"{run.line}: did not finish: {run.message}; so far {peak}"


def check_assumptions(
    peaks: Peaks,
    assumptions: Sequence[Assumption],
    choices: AssumptionChoices,
    run: Callable[[AssumptionChoices], tuple[Judgement, Peaks]],
) -> AssumptionCheck:
    """Find whether the peaks of a program that has finished depend on assumed values.

    Parameters
    ----------
    peaks : mapping of int to tuple of int
        The peaks.
    assumptions : sequence of Assumption
        The lines that received assumed values.
    choices : AssumptionChoices
        The choices of the program.
    run : callable
        Runs the program with other choices, and returns the verdict and the peaks.
    """
    if not assumptions:
        return AssumptionCheck(False)

    def opposite(*lines: str) -> OppositeRun:
        fields = choices.as_options() | {"opposite": True, "lines": lines}
        judgement, found = run(AssumptionChoices.from_options(fields))
        return _compared(lines[0] if lines else "", judgement, found, peaks)

    whole = opposite()
    if whole.outcome == "same" or len(assumptions) == 1:
        return AssumptionCheck(_OF_OUTCOME[whole.outcome], whole)
    ordered = sorted(assumptions, key=lambda each: not each.decides_size)
    tried = tuple(opposite(each.line) for each in ordered[:MOST_LINES])
    depends = _OF_OUTCOME[whole.outcome]
    untried = len(ordered) - len(tried)
    if depends is None:
        outcomes = {each.outcome for each in tried}
        depends = True if "differs" in outcomes else False if outcomes == {"same"} and not untried else None
    return AssumptionCheck(depends, whole, tried, untried)


_OF_OUTCOME: dict[str, bool | None] = {"same": False, "differs": True, "did not finish": None}


def _compared(line: str, judgement: Judgement, found: Peaks, peaks: Peaks) -> OppositeRun:
    allocated, reserved = max(found.values(), key=lambda each: each[1], default=(0, 0))
    message = "; ".join(filter(None, [judgement.message, judgement.line and f"at {judgement.line}"]))
    outcome: _Outcome
    if judgement.verdict in _FINISHED:
        return OppositeRun(line, "same" if found == peaks else "differs", allocated, reserved)
    exceeds = any(
        one > other for index, pair in found.items() for one, other in zip(pair, peaks.get(index, (0, 0)), strict=True)
    )
    outcome = "differs" if exceeds or judgement.verdict is Verdict.DOES_NOT_FIT else "did not finish"
    return OppositeRun(line, outcome, allocated, reserved, message)
