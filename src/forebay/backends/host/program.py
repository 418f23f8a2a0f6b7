"""Programs of recorded host work: the bytes that native/queue/program.hpp reads, and the Python functions in them."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import NamedTuple

from forebay.errors import Unsupported
from forebay.spi import Recorded

__all__ = ["Draws", "Piece", "pieces_of", "reseeded"]

_STEP = struct.Struct("=2I3Q")
_WHATS = {what: at for at, what in enumerate(("copy", "fill", "draw", "native", "set", "if", "while", "again"))}
_SEED = struct.Struct("=2Q")
_SEED_AT = _STEP.size + 16  # behind a draw's address and number of elements
_WHOLE = (1 << 64) - 1


class Draws(NamedTuple):
    """A program, and where each of its draws keeps its seed: the place, the number of the source, the offset there."""

    template: bytearray
    places: list[tuple[int, int, int]]


Piece = bytes | Draws | Callable[[], object]


def reseeded(piece: bytes | Draws, sources: Sequence[tuple[int, int]]) -> bytes:
    """The program, with the numbers of these sources."""
    if isinstance(piece, bytes):
        return piece
    for place, source, offset in piece.places:
        seed, start = sources[source]
        _SEED.pack_into(piece.template, place, seed, (start + offset) & _WHOLE)
    return bytes(piece.template)


def pieces_of(work: Sequence[Recorded]) -> list[Piece]:
    """In the order of the recording, which every dependency allows.

    Raises Unsupported where a condition's body calls a Python function.
    """
    pieces: list[Piece] = []
    program, places = bytearray(), list[tuple[int, int, int]]()
    starts: dict[int, int] = {}  # of conditions
    ends: dict[int, int] = {}  # how many bodies end behind a piece of work

    def finish() -> None:
        nonlocal program, places
        if program:
            pieces.append(Draws(program, places) if places else bytes(program))
        program, places = bytearray(), []

    for number, (what, _, details, body) in enumerate(work):
        within = [condition for condition, end in ends.items() if number < end]
        if what == "call":
            if within:
                raise Unsupported(
                    "a Python function cannot be called in the body of a condition: only what the queue itself does",
                    ability="Captures",
                )
            finish()
            pieces.append(details["function"])
            continue
        tail, a, b, c = b"", 0, 0, 0
        match what:
            case "copy":
                a, b, c = details["to"], details["source"], details["nbytes"]
            case "fill":
                a, b, c = details["to"], details["byte"], details["nbytes"]
            case "draw":
                tail = details["packed"]
                places.append((len(program) + _SEED_AT, details["source"], details["offset"]))
            case "native":
                a, b = details["function"], details["argument"]
            case "set":
                a, b = details["address"], starts[details["of"]]
            case "if" | "while":
                starts[number] = len(program) + _STEP.size
                program += _STEP.pack(_WHATS["set"], _STEP.size, details["address"], starts[number], 0)
                ends[number] = body.stop
            case "again":
                a = len(program) + _STEP.size - starts[details["of"]]
        program += _STEP.pack(_WHATS[what], _STEP.size + len(tail), a, b, c) + tail
        for condition, end in tuple(ends.items()):
            if number + 1 == end:
                del ends[condition]
                at = starts[condition]
                struct.pack_into("=Q", program, at + 16, len(program) - at - _STEP.size)
    finish()
    return pieces
