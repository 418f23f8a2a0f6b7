"""Comments, docstrings and documents avoid words that personify code or are vague: caller, thread, process instead."""

from __future__ import annotations

import io
import re
import tokenize

import pytest

# By the word: what a text of the field has in its place.
WORDS = {
    "nobody": "no caller, no thread, no other user",
    "somebody": "a caller, another thread",
    "anybody": "any caller, any user",
    "whoever": "the caller, the thread that",
    "meanwhile": "while ..., during ...",
}
_FOUND = re.compile(rf"\b({'|'.join(WORDS)})\b", re.IGNORECASE)


def prose_of(source: str) -> list[str]:
    """Return the comments and texts of a Python source."""
    kinds = {tokenize.COMMENT, tokenize.STRING}
    return [each.string for each in tokenize.generate_tokens(io.StringIO(source).readline) if each.type in kinds]


def words_in(text: str) -> list[str]:
    return [found.lower() for found in _FOUND.findall(text)]


def test_sources_and_documents_are_plain(root):
    problems = {}
    for pattern in ("src/forebay/**/*.py*", "native/*/*.?pp", "docs/**/*.md", "changelog.d/*.md", "*.md"):
        for path in root.glob(pattern):
            if path.suffix in {".pyc", ".so"} or "_build" in path.parts or path.name == "CHANGELOG.md":
                continue
            source = path.read_text()
            text = "\n".join(prose_of(source)) if path.suffix == ".py" else source
            if found := words_in(text):
                problems[str(path.relative_to(root))] = {each: WORDS[each] for each in found}
    assert problems == {}


def test_docstrings_begin_with_a_noun_or_a_verb(root):
    opening = re.compile(r'^ *"""(?:What|Whether|Who|How|Where)\b.*', re.MULTILINE)
    folders = ("src/forebay", "tools", "tests", "benchmarks", "examples")
    found = {
        str(path.relative_to(root)): opening.findall(path.read_text())
        for folder in folders
        for path in (root / folder).rglob("*.py*")
        if path.suffix in {".py", ".pyi", ".pyx"}
    }
    assert {path: lines for path, lines in found.items() if lines} == {}


@pytest.mark.parametrize("source", ["# nobody waits", '"""Somebody asks."""', "x = 1  # changed meanwhile"])
def test_planted_word_is_found(source):
    assert words_in("\n".join(prose_of(source)))


def test_names_of_variables_are_not_prose():
    assert prose_of("meanwhile = 1") == []
