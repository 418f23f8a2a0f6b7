"""Results of programs: a file of one JSON object a line, which a run that was interrupted continues."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

__all__ = ["Result", "difference", "outcome", "read_results", "write_results"]


class Result(NamedTuple):
    """The outcome of both runs of a program.

    Parameters
    ----------
    name : str
        The program.
    source : str
        OWNER/NAME of the repository, "" for a program of this folder.
    commit : str
        Its commit, "" for a program of this folder.
    with_values, without_values : str
        What was wrong in each mode, "" if nothing was.
    peaks : tuple of int
        The peaks of allocated bytes with values and without, 0 of a run that did not finish.
    assumed : int
        The number of lines that received an assumed value.
    seconds : float
        The processor time of all runs, with the import of PyTorch.
    """

    name: str
    source: str
    commit: str
    with_values: str
    without_values: str
    peaks: tuple[int, int]
    assumed: int
    seconds: float

    @property
    def text(self) -> str:
        """The figures, or what was wrong."""
        wrong = [f"with values: {self.with_values}"] if self.with_values else []
        wrong += [f"without values: {self.without_values}"] if self.without_values else []
        with_values, without = self.peaks
        figures = f"peak {with_values:,} bytes" + ("" if with_values == without else f", {without:,} without values")
        assumed = f", {self.assumed} assumed lines" if self.assumed else ""
        return "; ".join(wrong) or figures + assumed


def read_results(path: Path) -> dict[str, Result]:
    """Return the results in a file by the names of their programs, none if there is no file."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    found = [Result(**json.loads(line)) for line in lines]
    return {each.name: each._replace(peaks=(each.peaks[0], each.peaks[1])) for each in found}


def write_results(path: Path, results: Iterable[Result]) -> None:
    """Replace a file of results."""
    path.write_text("".join(json.dumps(each._asdict()) + "\n" for each in results), encoding="utf-8")


def difference(with_values: int, without: int, *, assumed: bool) -> str:
    """Return what is wrong with two peaks, "" if they are equal or an assumption can make the one without larger."""
    if without == with_values or (assumed and without > with_values):
        return ""
    return f"the peak is {without:,} bytes, and with values {with_values:,}"


def outcome(found: Result, misses: str) -> tuple[str, str]:
    """Return "ok" or "FAILED", and a text, for a program that is expected to miss, or to pass if `misses` is ""."""
    is_wrong = bool(found.with_values or found.without_values)
    if not misses:
        return ("FAILED" if is_wrong else "ok"), f"{found.text}, {found.seconds:.0f} s"
    return ("ok", f"misses: {misses} ({found.text})") if is_wrong else ("FAILED", "expected to miss")
