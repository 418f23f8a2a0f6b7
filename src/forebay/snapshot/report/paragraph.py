"""Paragraphs of a report, which a terminal and a page show alike, and the wording that they share."""

from __future__ import annotations

import re
from dataclasses import dataclass

from forebay._base.byte_sizes import format_bytes
from forebay.records.site_labels import strip_common_folder, unique_labels

__all__ = ["Chart", "Paragraph", "brief_label", "change", "count", "short_labels"]

_PARAMETERS = re.compile(r"(?<!\boperator)\((?!anonymous namespace\)).*")  # of a C++ function, to the end


@dataclass(frozen=True, slots=True)
class Chart:
    """Curves of memory over a common axis, in equal parts of it."""

    curves: tuple[tuple[str, tuple[int | None, ...]], ...]  #: name and bytes of each; None where a curve has none
    start: str  #: text at the beginning of the axis
    end: str  #: text at its end

    @property
    def top(self) -> int:
        """The most bytes of all curves, at least 1."""
        return max([1, *(nbytes for _, values in self.curves for nbytes in values if nbytes is not None)])


@dataclass(frozen=True, slots=True)
class Paragraph:
    """A part of a report: a heading, sentences, and a table."""

    heading: str  #: its heading
    sentences: tuple[str, ...] = ()  #: its sentences
    columns: tuple[str, ...] = ()  #: headings of its table, which it has not if they are empty
    rows: tuple[tuple[str, ...], ...] = ()  #: rows of the table
    line: str = ""  #: a line to paste into a shell; "" if there is none
    shares: tuple[float, ...] = ()  #: a number from 0 to 1 for each row, which a page shows as a bar
    #: Columns of text, from 0; the others are numbers, which are aligned on the right.
    text_columns: tuple[int, ...] = (0,)
    chart: Chart | None = None  #: a chart below the sentences


def short_labels(labels: list[str]) -> tuple[list[str], tuple[str, ...]]:
    """Return labels of sites without their common folder and C++ parameters, and a sentence that names the folder."""
    different = [*dict.fromkeys(labels)]
    folder, short = strip_common_folder(different)
    # Functions of C++ that differ in parameters only are different sites.
    names = dict(zip(different, unique_labels([brief_label(label) for label in short]), strict=True))
    return [names[label] for label in labels], (f"Files are in {folder}.",) if folder else ()


def brief_label(label: str) -> str:
    """Return the label of a site without the parameters of a C++ function."""
    return label if label.startswith("(") else _PARAMETERS.sub("", label).replace("(anonymous namespace)::", "")


def count(number: int, noun: str, nouns: str = "") -> str:
    """Return a number with its noun: "1 segment", "2 segments"."""
    return f"{number:,} {noun if number == 1 else nouns or noun + 's'}"


def change(nbytes: int) -> str:
    """Return a difference of sizes with its sign: "+2.00 MiB"."""
    return f"{'+' if nbytes > 0 else ''}{format_bytes(nbytes)}"
