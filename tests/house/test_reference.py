"""The reference tells of every public name of the faces."""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Iterator
from types import ModuleType

import pytest

FACES = ("forebay.accelerator", "forebay.cuda", "forebay.mps", "forebay.mtia")
_NAMED = re.compile(r"^\.\. auto\w+:: ([\w.]+)(?:\n +(:members:)(.*))?|`{1,2}([\w.]+)`{1,2}", re.MULTILINE)


def told(page: str) -> Iterator[str]:
    """The full names on a page: documented each, as members of a module, or mentioned as code."""
    for documented, members, which, mentioned in _NAMED.findall(page):
        yield documented or mentioned
        module = sys.modules.get(documented)
        for member in which.replace(",", " ").split() or (module.__all__ if members and module else ()):
            yield f"{documented}.{member}"


def untold(face: ModuleType, pages: str) -> list[str]:
    """Its public names that are nowhere, also not as those of a module of it."""
    known = {*told(pages)}
    known |= {name.rpartition(".")[0] for name in known}  # a module of which something is told
    parts = [part for each in face.__all__ if isinstance(part := getattr(face, each, None), ModuleType)]

    def is_told(name: str) -> bool:
        homes = [part for part in parts if name in part.__all__]
        return any(f"{home.__name__}.{name}" in known for home in (face, *homes))

    return [name for name in face.__all__ if not is_told(name)]


@pytest.mark.parametrize("face", FACES)
def test_every_name_of_a_face_is_in_the_reference(face, root):
    pages = "\n".join(path.read_text() for path in sorted((root / "docs/reference").glob("*.md")))
    assert untold(importlib.import_module(face), pages) == []  # a line in docs/reference/<face>*.md is what it takes


def test_a_planted_gap_is_found():
    face, part = ModuleType("face"), ModuleType("face.part")
    face.__all__, part.__all__, face.part = ["f", "g", "h", "i", "j", "part", "whole"], ["i"], part
    page = ".. autofunction:: face.f\n.. automodule:: face\n   :members: g\n"
    page += "and ``face.h``, ``face.part.i``"
    assert untold(face, page) == ["j", "whole"]
