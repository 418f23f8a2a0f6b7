"""Named notes in the code: what a reader must know to change it safely, stated once and referred to by name.

A note begins with a heading of its own line in a docstring or a comment, `# Note [Name]` or `// Note [Name]`. Its text
follows, and ends with a line `Test: ` that names what fails without it, `tests/a/test_b.py::test_c` or a whole file;
several are separated by commas, and go on in the next line behind a comma. Elsewhere the name is mentioned in a
sentence. `docs/code_note.py` shows the texts in the documentation, and `tests/house/test_notes.py` checks them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

__all__ = ["Note", "find_notes", "mentions", "missing_tests", "note_files", "read_notes"]

PLACEHOLDER = "Name"  # in texts about notes
_FOLDERS = ("src", "native", "tests", "tools", "docs", "examples", "benchmarks")
_SUFFIXES = frozenset({".py", ".pyi", ".pyx", ".pxd", ".pxi", ".hpp", ".cpp", ".h", ".cu", ".ts", ".toml", ".md"})
_HEADING = re.compile(r"^[ \t]*(#|//) Note \[([^\]\n]+)\][ \t]*$")
_MENTION = re.compile(r"\bNote \[([^\]]+)\]")
_BREAK = re.compile(r"\s*\n\s*(?:(?:#|//)\s*)?")  # inside a name that continues in the next line
_TEST = "Test: "


@dataclass(frozen=True)
class Note:
    """A note: its place, its text in paragraphs, and the tests that fail without it."""

    name: str
    path: str
    line: int  # of the heading
    last_line: int
    text: str
    tests: tuple[str, ...]


def note_files(root: Path) -> dict[str, str]:
    """Return the texts in which notes are searched, by path."""
    files = [path for folder in _FOLDERS for path in (root / folder).rglob("*") if path.suffix in _SUFFIXES]
    names = {path.relative_to(root).as_posix(): path for path in [*files, *root.glob("*.md")]}
    # Cython writes .cpp files beside its sources, and the test of this module has notes that are wrong.
    others = re.compile(r"docs/_build/|src/.*\.cpp$|.*/node_modules/|tests/house/test_notes\.py$")
    return {name: path.read_text("utf-8") for name, path in sorted(names.items()) if not others.match(name)}


def read_notes(path: str, text: str) -> list[Note]:
    """Return the notes of one file. One without a line for tests has none, and ends where its comment ends."""
    lines = text.splitlines()
    found: list[Note] = []
    for number, line in enumerate(lines, 1):
        if heading := _HEADING.match(line):
            body, tests, count = _body(lines[number:], heading[1])
            found.append(Note(heading[2], path, number, number + count, body, tests))
    return found


def _body(lines: list[str], marker: str) -> tuple[str, tuple[str, ...], int]:
    """Return the text, the tests and the number of lines of the note at the beginning of some lines."""
    in_comment = bool(lines) and lines[0].lstrip().startswith(marker)
    body: list[str] = []
    tests = ""
    for count, line in enumerate(lines):
        content = line.strip()
        is_end = content.startswith('"""') or (in_comment and not content.startswith(marker))
        if _HEADING.match(line) or is_end or (tests and not tests.endswith(",")):
            return "\n".join(body).strip("\n"), _names(tests), count
        content = line.lstrip().removeprefix(marker).removeprefix(" ").rstrip() if in_comment else line.rstrip()
        if tests or content.startswith(_TEST):
            tests += content.removeprefix(_TEST)
        else:
            body.append(content)
    return "\n".join(body).strip("\n"), _names(tests), len(lines)


def _names(tests: str) -> tuple[str, ...]:
    return tuple(each.strip() for each in tests.split(",") if each.strip())


@cache
def find_notes(root: Path) -> tuple[Note, ...]:
    """Return all notes of the repository."""
    return tuple(note for path, text in note_files(root).items() for note in read_notes(path, text))


def mentions(text: str, notes: list[Note]) -> list[str]:
    """Return the names that a file mentions, without those that one of its own notes has in its text."""
    found = []
    for mention in _MENTION.finditer(text):
        name, line = _on_one_line(mention[1]), text.count("\n", 0, mention.start()) + 1
        if name != PLACEHOLDER and not any(each.name == name and each.line <= line <= each.last_line for each in notes):
            found.append(name)
    return found


def _on_one_line(name: str) -> str:
    return _BREAK.sub(" ", name)


def missing_tests(note: Note, root: Path) -> list[str]:
    """Return the tests of a note that do not exist."""
    missing = []
    for test in note.tests:
        file, _, function = test.partition("::")
        path = root / file
        known = bool(re.match(r"(tests|native/tests)/", file)) and path.is_file()
        if not known or (function and not re.search(rf"\b{re.escape(function)}\b", path.read_text("utf-8"))):
            missing.append(test)
    return missing
