"""Tokens of preprocessed MSL, and movements among them."""

from __future__ import annotations

import re
from dataclasses import dataclass

_TOKEN = re.compile(
    r"""
    (?P<line>^\#[^\n]*) | (?P<space>\s+)
    | (?P<number>(?: 0[xX][0-9a-fA-F'.]+(?:[pP][+-]?\d+)? | 0[bB][01']+
        | (?:\d[\d']*\.?\d*|\.\d+)(?:[eE][+-]?\d+)? )[a-zA-Z]*)
    | (?P<name>[A-Za-z_]\w*) | (?P<string>"(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*')
    | (?P<open>\[\[) | (?P<mark>::|->|[^\s\w])
    """,
    re.VERBOSE | re.MULTILINE,
)
ADDRESS_SPACES = {"device", "constant", "threadgroup", "thread", "threadgroup_imageblock", "ray_data"}


class MSLError(Exception):
    """A place where a source is no MSL; `text` has the form of a compiler's message."""


@dataclass
class Token:
    kind: str
    text: str
    line: int


def tokens_of(source: str) -> list[Token]:
    """Return the tokens of preprocessed source with the lines of the program."""
    found, line = [], 1
    for match in _TOKEN.finditer(source):
        kind, text = str(match.lastgroup), match[0]
        if kind == "line":
            marker = re.match(r"#\s*(?:line\s+)?(\d+)", text)
            if marker:
                line = int(marker[1]) - 1
        found.append(Token(kind, text, line))
        line += text.count("\n")
    return found


class Tokens:
    """The tokens of a source that the preprocessor has expanded; places count those that are no space."""

    def __init__(self, source: str) -> None:
        self.tokens = tokens_of(source)
        self.places = [i for i, token in enumerate(self.tokens) if token.kind not in {"space", "line"}]

    def token(self, place: int) -> Token:
        inside = 0 <= place < len(self.places)
        return self.tokens[self.places[place]] if inside else Token("end", "", 0)

    def text(self, place: int) -> str:
        return self.token(place).text

    def fail(self, place: int, text: str) -> None:
        raise MSLError(f"program_source:{self.token(place).line}:1: error: {text}")

    def attribute(self, place: int) -> tuple[str, int]:
        """Return the host name in an attribute, and the place after it."""
        name = ""
        while not (self.text(place) == "]" and self.text(place + 1) == "]"):
            if self.text(place) == "host_name":
                name = self.text(place + 2).strip('"')
            place += 1
            if self.token(place).kind == "end":
                self.fail(place - 1, "an attribute does not end")
        return name, place + 2

    def closing(self, place: int, left: str, right: str) -> int:
        depth = 0
        while True:
            text = self.text(place)
            depth += (text == left) - (text == right)
            if depth == 0:
                return place
            if self.token(place).kind == "end":
                self.fail(place - 1, f"expected '{right}'")
            place += 1

    def split(self, place: int) -> tuple[list[list[int]], int]:
        """Return the places of each parameter of a list, and that of the closing parenthesis."""
        end = self.closing(place, "(", ")")
        parts: list[list[int]] = [[]]
        depth = 0
        for each in range(place + 1, end):
            text = self.text(each)
            depth += (text in {"(", "<", "[", "[["}) - (text in {")", ">"}) - (text == "]")
            if text == "[[":
                depth += 1  # it ends with two brackets
            if text == "," and depth == 0:
                parts.append([])
            else:
                parts[-1].append(each)
        return [part for part in parts if part], end
