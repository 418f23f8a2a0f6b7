"""The reference tells of every public name of the faces."""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator
from types import ModuleType

import pytest

FACES = ("penstock.cuda",)
_NAMED = re.compile(r"^\.\. auto\w+:: ([\w.]+)(?:\n +:members:(.*))?|``([\w.]+)``", re.MULTILINE)


def told(page: str) -> Iterator[str]:
    """The full names on a page: documented each, as members of a module, or mentioned as code."""
    for documented, members, mentioned in _NAMED.findall(page):
        yield documented or mentioned
        for member in members.replace(",", " ").split():
            yield f"{documented}.{member}"


def untold(face: ModuleType, pages: str) -> list[str]:
    known = {*told(pages)}
    return [name for each in face.__all__ if (name := f"{face.__name__}.{each}") not in known]


@pytest.mark.parametrize("face", FACES)
def test_every_name_of_a_face_is_in_the_reference(face, root):
    pages = "\n".join(path.read_text() for path in sorted((root / "docs/reference").glob("*.md")))
    assert untold(importlib.import_module(face), pages) == []  # a line in docs/reference/cuda*.md is what it takes


def test_a_planted_gap_is_found():
    face = ModuleType("face")
    face.__all__ = ["f", "g", "h", "i"]
    page = ".. autofunction:: face.f\n.. automodule:: face\n   :members: g\n\nand ``face.h``"
    assert untold(face, page) == ["face.i"]
