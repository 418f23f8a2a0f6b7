"""Directive that lists the public programs that miss, `{program-misses}`, with the reasons in public_programs.toml."""

from __future__ import annotations

import tomllib
from pathlib import Path

from docutils import nodes
from docutils.statemachine import StringList
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

PROGRAMS = Path(__file__).parents[1] / "tools/packages/public_programs.toml"


def misses() -> list[str]:
    """Return the lines of a Markdown table with one row for each program that misses."""
    rows = (
        f"| {each['name']} | {repository} | {each['misses']} |"
        for repository, entry in tomllib.loads(PROGRAMS.read_text(encoding="utf-8")).items()
        for each in entry["programs"]
        if each.get("misses")
    )
    return ["| program | repository | why |", "|---|---|---|", *rows]


class ProgramMisses(SphinxDirective):
    """The directive `program-misses`: a table of the public programs that miss."""

    def run(self) -> list[nodes.Node]:
        self.env.note_dependency(str(PROGRAMS))
        found = nodes.Element()
        self.state.nested_parse(StringList(misses(), str(PROGRAMS)), self.content_offset, found)
        return found.children


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the directive."""
    app.add_directive("program-misses", ProgramMisses)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
