"""Address spaces of MSL, checked by libclang, whose "C++ for OpenCL" has them under other names.

The compiler of translate.py removes them. Here `device`, `constant`, `threadgroup` and `thread` become `__global`,
`__constant`, `__local` and `__private`, so that a pointer to device memory in the place of one to thread memory, or a
write to constant memory, is an error, also in templates. It needs the package libclang.
"""

from __future__ import annotations

import re
from pathlib import Path

from .compiler import preprocess
from .tokens import Tokens

_SPACES = {"device": "__global", "constant": "__constant", "threadgroup": "__local", "thread": "__private"}
_HEADER = Path(__file__).parent / "include/address_spaces.h"
_NAME = "program_source.cl"
_ARGUMENTS = (
    *("-x", "cl", "-cl-std=clc++2021", "-cl-no-stdinc", "-nostdinc", "-cl-single-precision-constant"),
    *("-Wno-unknown-attributes", "-Wno-ignored-attributes", "-ferror-limit=0", "-include", str(_HEADER)),
)
_SCALARS = ("bool", "char", "uchar", "short", "ushort", "int", "uint", "long", "ulong", "half", "float")
_VECTORS = {f"{scalar}{count}" for scalar in _SCALARS for count in (2, 3, 4)}
# Metal copies structures from constant memory, and OpenCL does not.
_COPY = "cannot bind reference in address space '__constant' to object in address space '__generic'"
_ERROR = 3  # severities of libclang from here on


class _Rewriter(Tokens):
    """MSL with the address spaces of OpenCL."""

    def run(self) -> str:
        self._texts = [token.text for token in self.tokens]
        for place in range(len(self.places)):
            token = self.token(place)
            if token.text == "[[":
                self._erase_attribute(place)
            if token.kind != "name":
                continue
            if token.text == "threadgroup" and self._is_variable(place):
                self._variable(place)
            elif token.text in _SPACES and self._texts[self.places[place]]:
                self._put(place, _SPACES[token.text])
            elif token.text == "kernel":
                self._put(place, "")
            elif token.text in _VECTORS and self.text(place + 1) == "(" and self.text(place - 1) != "operator":
                self._put(place, f"metal::make_{token.text}")
        return "".join(self._texts)

    def _put(self, place: int, text: str) -> None:
        self._texts[self.places[place]] = text

    def _erase_attribute(self, place: int) -> None:
        for each in range(place, self.attribute(place)[1]):
            self._put(each, "")

    def _is_variable(self, place: int) -> bool:
        if self.text(place - 1) not in {"{", "}", ";"}:
            return False
        while self.text(place) not in {";", "[", "", "{", "="}:
            if self.text(place) in {"*", "&", ","}:
                return False
            place += 1
        return True

    def _variable(self, place: int) -> None:
        """Make a reference of a variable that the threads of a group share: OpenCL allows those in kernels only."""
        end = place
        while self.text(end) not in {"[", ";"}:
            end += 1
        name = end - 1
        stop = end
        while self.text(stop) != ";":
            stop += 1
        kind = " ".join(self.text(each) for each in range(place + 1, name))
        lengths = "".join(self.text(each) for each in range(end, stop))
        for each in range(place, stop):
            self._put(each, "")
        self._put(place, f"__local {kind} (&{self.text(name)}){lengths} = *(__local {kind} (*){lengths})0")


def lines_of(text: str) -> list[int]:
    """Return the line of the program for each line of its preprocessed text."""
    found, line = [], 0
    for each in text.split("\n"):
        marker = re.match(r"#\s*(?:line\s+)?(\d+)", each)
        line = int(marker[1]) - 1 if marker else line + 1
        found.append(line)
    return found


def problems(source: str, macros: dict[str, str] | None = None, standard: int = 310) -> list[str]:
    """Return the errors of a source in the form of a compiler's messages."""
    from clang.cindex import Index

    text = _Rewriter(preprocess(source, macros or {}, standard)).run()
    unit = Index.create().parse(_NAME, args=[*_ARGUMENTS], unsaved_files=[(_NAME, text)])
    lines = lines_of(text)
    found = []
    for each in unit.diagnostics:
        if each.severity >= _ERROR:
            line = lines[each.location.line - 1] if each.location.line else 0
            notes = "".join(f"; {note.spelling}" for note in each.children)
            if _COPY in notes and "constructor for initialization" in each.spelling:
                continue
            found.append(f"program_source:{line}:{each.location.column}: error: {each.spelling}{notes}")
    return found
