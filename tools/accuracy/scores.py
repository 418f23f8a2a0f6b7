"""Errors of predictions: constants fitted on rows that are not scored with them, medians, wrong verdicts."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from accuracy.measurements import Measurement, order
from accuracy.predictions import ENOUGH, NEAR, Prediction, Run, key_of

__all__ = ["Score", "Summary", "score_rows", "summary"]

MIB = 1 << 20


class Score(NamedTuple):
    """A prediction beside its measurement.

    Parameters
    ----------
    row : Measurement
        The measurement.
    low, value, high : float
        The predicted bytes: without workspaces, with the usual ones, and with the most.
    verdict : str
        "fits", "does not fit" or "tight".
    """

    row: Measurement
    low: float
    value: float
    high: float
    verdict: str

    @property
    def error(self) -> float:
        """The value's relative error, negative if it is too low."""
        return self.value / self.row.recorded - 1

    @property
    def is_wrong(self) -> bool:
        """The verdict is the opposite of what happened."""
        return self.verdict == ("fits" if self.row.ran_out else "does not fit")

    @property
    def fails_under_answer(self) -> bool:
        """A card with no more than the upper end would not have been enough, in whole hundredths of its memory.

        xMem's runs under an answer have this resolution.
        """
        limit = round(self.high / self.row.capacity, 2) * self.row.capacity
        return not self.row.ran_out and self.row.recorded > limit


class Summary(NamedTuple):
    """Figures of one tool on some rows.

    Parameters
    ----------
    rows : int
        The number of rows with an error: those that did not run out of memory.
    median, tenth, worst : float
        The median of the absolute relative errors, their 90th percentile, and the largest.
    failing : float
        The share of all rows whose verdict is wrong, or whose run would fail under the answer.
    """

    rows: int
    median: float
    tenth: float
    worst: float
    failing: float


def summary(errors: Iterable[float], failing: Sequence[bool]) -> Summary | None:
    """Return the figures of errors and failures; None if there are no errors."""
    found = sorted(map(abs, errors))
    if not found:
        return None
    tenth = statistics.quantiles(found, n=10, method="inclusive")[-1] if len(found) > 1 else found[0]
    return Summary(len(found), statistics.median(found), tenth, found[-1], sum(failing) / len(failing))


def score_rows(rows: Mapping[str, Sequence[Measurement]], known: Mapping[str, Prediction]) -> dict[str, list[Score]]:
    """Return the scores of all rows that have a prediction, by table."""
    found = {}
    for table, of_table in rows.items():
        scores = (score(each, known, outside(basis(each, rows), known)) for each in of_table)
        found[table] = [each for each in scores if each is not None]
    return found


def basis(row: Measurement, rows: Mapping[str, Sequence[Measurement]]) -> list[Measurement]:
    """Return the rows of which the constant outside the allocator of a row is the median: never the row itself.

    Of xMem's table, those of the same family in the other half; on GPUMemNet's A100, those of the only network with a
    public script whose convolutions need no workspace.
    """
    if row.table == "xmem":
        return [
            each
            for each in rows["xmem"]
            if each.family == row.family and half(each) != half(row) and not (each.varies or each.ran_out)
        ]
    return [each for each in rows["gpumemnet_cnn18"] if each.model == "mobilenet" and each.name != row.name]


def half(row: Measurement) -> int:
    """Return 0 or 1: the half of the table to which a row belongs. Rows of one program are in one half."""
    return order(f"{row.model} {row.optimizer} {row.batch}")[0] % 2


def outside(rows: Iterable[Measurement], known: Mapping[str, Prediction]) -> float | None:
    """Return the median of what rows have besides the predicted bytes; None if none was predicted."""
    found = [row.recorded - each[1] for row in rows if (each := predicted_bytes(row, known)) is not None]
    return statistics.median(found) if found else None


def predicted_bytes(row: Measurement, known: Mapping[str, Prediction]) -> tuple[float, float, float] | None:
    """Return the reserved bytes without workspaces, with the usual and the most ones; None without a prediction."""
    if (own := own_run(row, known)) is not None and own.verdict in ("fits", "tight"):
        low, value, high = three_sizes(own)
        return low, min(value, row.capacity), min(high, row.capacity)
    found = {batch: known.get(key_of(Run(row.card, ENOUGH, command))) for batch, command in row.commands.items()}
    ends = {batch: each for batch, each in found.items() if each is not None and each.reserved}
    if len(ends) < len(found):
        return None
    sizes = {batch: three_sizes(each) for batch, each in ends.items()}
    if row.batch in sizes:
        return sizes[row.batch]
    (first, at_first), (second, at_second) = sizes.items()
    share = (row.batch - first) / (second - first)
    low, value, high = (a + share * (b - a) for a, b in zip(at_first, at_second, strict=True))
    return low, value, high


def own_run(row: Measurement, known: Mapping[str, Prediction]) -> Prediction | None:
    """Return the run with the memory of the card, which there is where that is nearly full."""
    (command, *others) = row.commands.values()
    return None if others else known.get(key_of(Run(row.card, str(row.capacity), command)))


def three_sizes(found: Prediction) -> tuple[float, float, float]:
    """Return the reserved bytes without workspaces, with the usual and with the most ones."""
    _, usual, most = found.workspaces
    return found.reserved, found.reserved + usual, found.reserved + most


def score(row: Measurement, known: Mapping[str, Prediction], constant: float | None) -> Score | None:
    """Return the score of a row; None if it has no prediction."""
    found = predicted_bytes(row, known)
    if found is None or constant is None:
        return None
    low, value, high = (each + constant for each in found)
    return Score(row, low, value, high, verdict(row, known, found[2] + constant))


def verdict(row: Measurement, known: Mapping[str, Prediction], most: float) -> str:
    """Return the verdict of the run with the card's own memory, where that decides."""
    if (own := own_run(row, known)) is not None:
        return own.verdict if own.verdict in ("fits", "tight") else "does not fit"
    return "fits" if most <= row.capacity else "tight" if NEAR * most <= row.capacity else "does not fit"
