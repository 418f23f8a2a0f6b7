"""Directives of programs that were run: `{program-results}`, a table of all, and `{program-counts}`, how many passed.

`dev.py packages --results tools/packages/results.jsonl` writes the figures.
"""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

from docutils import nodes
from docutils.statemachine import StringList
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

FOLDER = Path(__file__).parents[1] / "tools/packages"
RESULTS, PUBLIC = FOLDER / "results.jsonl", FOLDER / "public_programs.toml"


def reasons() -> dict[str, str]:
    """Return by public program why it misses."""
    entries = tomllib.loads(PUBLIC.read_text(encoding="utf-8")).values()
    return {each["name"]: each["misses"] for entry in entries for each in entry["programs"] if each.get("misses")}


def results() -> list[dict[str, Any]]:
    """Return the results, in the order in which the programs ran."""
    return [json.loads(line) for line in RESULTS.read_text(encoding="utf-8").splitlines()]


def counts(found: list[dict[str, Any]]) -> str:
    """Return a sentence with the number of programs that pass in each mode."""
    with_values, without = (sum(not each[mode] for each in found) for mode in ("with_values", "without_values"))
    return f"Of {len(found)} programs, {with_values} pass with values and {without} without."


def table(found: list[dict[str, Any]], why: dict[str, str]) -> list[str]:
    """Return the lines of a Markdown table with one row for each program."""
    rows = [
        "| program | commit | peak with values | peak without values | assumed lines | miss |",
        "|---|---|--:|--:|--:|---|",
    ]
    for each in found:
        wrong = [f"{mode.partition('_')[0]}: {each[mode]}" for mode in ("with_values", "without_values") if each[mode]]
        miss = f"{why[each['name']]} ({'; '.join(wrong)})" if wrong and each["name"] in why else "; ".join(wrong)
        commit = f"[{each['commit'][:8]}](https://github.com/{each['source']}/tree/{each['commit']})"
        figures = (f"{peak:,}" if peak else "" for peak in each["peaks"])
        cells = [each["name"], commit if each["source"] else "", *figures, f"{each['assumed'] or ''}", miss]
        rows.append(f"| {' | '.join(cell.replace('|', chr(92) + '|').replace(chr(10), ' ') for cell in cells)} |")
    return rows


class ProgramResults(SphinxDirective):
    """The directive `program-results`: a table of the programs and their results."""

    def run(self) -> list[nodes.Node]:
        return _parsed(self, table(results(), reasons()))


class ProgramCounts(SphinxDirective):
    """The directive `program-counts`: how many programs pass."""

    def run(self) -> list[nodes.Node]:
        return _parsed(self, [counts(results())])


def _parsed(directive: SphinxDirective, lines: list[str]) -> list[nodes.Node]:
    directive.env.note_dependency(str(RESULTS))
    directive.env.note_dependency(str(PUBLIC))
    found = nodes.Element()
    directive.state.nested_parse(StringList(lines, str(RESULTS)), directive.content_offset, found)
    return found.children


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the directives."""
    app.add_directive("program-results", ProgramResults)
    app.add_directive("program-counts", ProgramCounts)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
