"""Named notes of the code: each name has one definition and a reference, and a test fails without it."""

from __future__ import annotations

import importlib
from collections import Counter

import pytest

HERE = "tests/house/test_notes.py"


@pytest.fixture(scope="module")
def code_notes(root):
    """Return tools/code_notes.py."""
    with pytest.MonkeyPatch.context() as patched:
        patched.syspath_prepend(root / "tools")
        yield importlib.import_module("code_notes")


@pytest.fixture(scope="module")
def files(code_notes, root):
    return code_notes.note_files(root)


def problems(code_notes, files, root):
    """Return what is wrong with the notes of some files."""
    notes = [note for path, text in files.items() for note in code_notes.read_notes(path, text)]
    names = Counter(note.name for note in notes)
    mentions = Counter(
        (name, path)
        for path, text in files.items()
        for name in code_notes.mentions(text, [note for note in notes if note.path == path])
    )
    mentioned = {name for name, _ in mentions}
    return [
        *(f"{path} names Note [{name}], which does not exist" for name, path in mentions if name not in names),
        *(f"Note [{name}] is written {count} times" for name, count in names.items() if count > 1),
        *(f"nothing names Note [{name}]" for name in names if name not in mentioned),
        *(f"Note [{note.name}] has no text" for note in notes if not note.text.strip()),
        *(f"Note [{note.name}] names no test" for note in notes if not note.tests),
        *(
            f"{test} of Note [{note.name}] is missing"
            for note in notes
            for test in code_notes.missing_tests(note, root)
        ),
    ]


def test_notes_are_defined_once_named_elsewhere_and_tested(code_notes, files, root):
    assert problems(code_notes, files, root) == []


def test_notes_of_the_code_are_found(code_notes, root):
    """A note in a docstring, in a comment, in a stub, in Cython's code and in C++."""
    found = {note.path.rpartition(".")[2] for note in code_notes.find_notes(root)}
    assert found >= {"py", "pyi", "pxd"}


COMMENT = f"""\
# Note [A]
# A reason,
# in two lines.
#
# * And a list.
# Test: {HERE}::test_planted_notes_are_read
x = 1
"""
DOCSTRING = f'''\
"""A module.

# Note [A]
A reason.
Test: {HERE}::COMMENT,
  {HERE}

More about the module: see Note [A].
"""
'''
CPP = f"""\
    // Note [A]
    // A reason.
    // Test: {HERE}
    int x;  // Note [A
    // b]
"""


def test_planted_notes_are_read(code_notes):
    (note,) = code_notes.read_notes("a.py", COMMENT)
    assert (note.name, note.text) == ("A", "A reason,\nin two lines.\n\n* And a list.")
    assert (note.line, note.last_line, note.tests) == (1, 6, (f"{HERE}::test_planted_notes_are_read",))
    (note,) = code_notes.read_notes("a.py", DOCSTRING)
    assert (note.text, note.line, note.last_line) == ("A reason.", 3, 6)
    assert note.tests == (f"{HERE}::COMMENT", HERE)
    assert code_notes.mentions(DOCSTRING, [note]) == ["A"]
    (note,) = code_notes.read_notes("a.cpp", CPP)
    assert (note.text, note.tests) == ("A reason.", (HERE,))
    assert code_notes.mentions(CPP, [note]) == ["A b"]


ABSENT = "no" + "where"  # not a word of this file
NAMED = "# See Note [A].\n"


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"a.py": COMMENT, "b.py": NAMED}, []),
        ({"a.py": COMMENT + NAMED}, []),
        ({"b.py": NAMED}, ["b.py names Note [A], which does not exist"]),
        ({"a.py": COMMENT}, ["nothing names Note [A]"]),
        ({"a.py": COMMENT.replace("two", "two [Note [A]]")}, ["nothing names Note [A]"]),
        ({"a.py": COMMENT, "b.py": NAMED + COMMENT}, ["Note [A] is written 2 times"]),
        ({"a.py": NAMED + "# Note [A]\n# Why.\nx = 1\n"}, ["Note [A] names no test"]),
        ({"a.py": NAMED + f"# Note [A]\n# Test: {HERE}\n"}, ["Note [A] has no text"]),
        (
            {"a.py": NAMED + f"# Note [A]\n# Why.\n# Test: {HERE}::{ABSENT}\n"},
            [f"{HERE}::{ABSENT} of Note [A] is missing"],
        ),
        ({"a.py": NAMED + "# Note [A]\n# Why.\n# Test: tests/none.py\n"}, ["tests/none.py of Note [A] is missing"]),
        ({"a.py": NAMED + "# Note [A]\n# Why.\n# Test: src\n"}, ["src of Note [A] is missing"]),
    ],
)
def test_planted_violations_are_found(code_notes, root, files, expected):
    assert problems(code_notes, files, root) == expected
