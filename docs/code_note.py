"""Directives that show the named notes of the code: `code-note` one of them, `code-notes` all (tools/code_notes.py).

The reference of the public names leaves out the notes that are in docstrings.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from docutils import nodes
from docutils.statemachine import StringList
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "tools"))

from code_notes import Note, find_notes, read_notes  # noqa: E402 -- tools/ is no package


class _NotesOfCode(SphinxDirective):
    """Base class of both directives."""

    def show(self, note: Note, parent: nodes.Element) -> None:
        """Add the text of a note, its file and its tests."""
        self.env.note_dependency(str(ROOT / note.path))
        self.state.nested_parse(StringList(note.text.splitlines(), note.path), 0, parent)
        where = nodes.paragraph("", "", nodes.literal("", f"{note.path}:{note.line}"), nodes.Text("; tested by "))
        for number, test in enumerate(note.tests):
            where += [*([nodes.Text(", ")] if number else []), nodes.literal("", test)]
        parent += nodes.inline("", "", *where.children, classes=["code-note-place"])


class CodeNote(_NotesOfCode):
    """One note, in place of a paragraph that would repeat it."""

    required_arguments = 1
    final_argument_whitespace = True

    def run(self) -> list[nodes.Node]:
        name = self.arguments[0]
        found = [note for note in find_notes(ROOT) if note.name == name]
        if len(found) != 1:
            raise self.error(f"{len(found)} notes of the code are called {name}")
        block = nodes.admonition("", nodes.title("", f"Note: {name}"), classes=["code-note"])
        self.show(found[0], block)
        return [block]


class CodeNotes(_NotesOfCode):
    """All notes, as sections in the order of their files."""

    def run(self) -> list[nodes.Node]:
        sections: list[nodes.Node] = []
        for note in find_notes(ROOT):
            anchor = re.sub(r"[^a-z0-9]+", "-", note.name.lower()).strip("-")
            section = nodes.section("", nodes.title("", note.name), ids=[anchor], names=[anchor])
            self.show(note, section)
            sections.append(section)
        return sections


def _without_notes(_app: Sphinx, _what: str, name: str, _object: object, _options: object, lines: list[str]) -> None:
    """Remove the notes from a docstring."""
    for note in reversed(read_notes(name, "\n".join(lines))):
        del lines[note.line - 1 : note.last_line]


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the directives."""
    app.add_directive("code-note", CodeNote)
    app.add_directive("code-notes", CodeNotes)
    app.connect("autodoc-process-docstring", _without_notes, priority=100)  # before napoleon
    return {"parallel_read_safe": True, "parallel_write_safe": True}
