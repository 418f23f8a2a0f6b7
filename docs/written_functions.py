"""Directive that documents the functions of a table of tools/names/: `.. written-functions:: <table> <column>`.

A new row of the table is in the reference without a line in a page.
"""

from __future__ import annotations

import sys
from pathlib import Path

from docutils import nodes
from docutils.statemachine import StringList
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "tools"))

from write_names import documented_names  # noqa: E402 -- tools/ is no package


class WrittenFunctions(SphinxDirective):
    """The documentation of the public functions that a table describes for one of its modules, in the table's order."""

    required_arguments = 2

    def run(self) -> list[nodes.Node]:
        table, column = self.arguments
        self.env.note_dependency(str(ROOT / f"tools/names/{table}.toml"))
        names = documented_names(table, column)
        if not names:
            raise self.error(f"tools/names/{table}.toml has no public function of {column}")
        found = nodes.Element()
        lines = [f".. autofunction:: {name}" for name in names]
        self.state.nested_parse(StringList(lines, f"tools/names/{table}.toml"), self.content_offset, found)
        return found.children


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the directive."""
    app.add_directive("written-functions", WrittenFunctions)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
