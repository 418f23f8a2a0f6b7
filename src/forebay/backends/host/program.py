"""Captured graphs as native programs, in the format of native/queue/program.hpp, and the Python calls between them."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import NamedTuple

from forebay.errors import Unsupported
from forebay.spi import CapturedNode, Queue

__all__ = ["AtLaunch", "Piece", "ProgramTemplate", "pieces_of", "reseeded", "strided_copy_step"]

_STEP = struct.Struct("=2I3Q")
_OPERATIONS = ("copy", "fill", "draw", "strided", "native", "set", "if", "while", "again")
_OPCODES = {what: at for at, what in enumerate(_OPERATIONS)}
_SEED = struct.Struct("=2Q")
_SEED_AT = _STEP.size + 16  # after the draw's address and number of elements
_UINT64_MAX = (1 << 64) - 1


class ProgramTemplate(NamedTuple):
    """A program whose draws get their seeds at launch.

    `places` has, for each draw, the offset of its seed in the program, the number of its source of random numbers and
    its offset relative to the source.
    """

    template: bytearray
    places: list[tuple[int, int, int]]


class AtLaunch(NamedTuple):
    """A function that the launch calls with its queue."""

    function: Callable[[Queue], object]


Piece = bytes | ProgramTemplate | AtLaunch | Callable[[], object]


def strided_copy_step(packed: bytes) -> bytes:
    """Return a program of one strided copy."""
    return _STEP.pack(_OPCODES["strided"], _STEP.size + len(packed), 0, 0, 0) + packed


def reseeded(piece: ProgramTemplate, sources: Sequence[tuple[int, int]]) -> bytes:
    """Return the program with the seed and offset of each source filled in."""
    for place, source, offset in piece.places:
        seed, start = sources[source]
        _SEED.pack_into(piece.template, place, seed, (start + offset) & _UINT64_MAX)
    return bytes(piece.template)


def pieces_of(work: Sequence[CapturedNode]) -> list[Piece]:
    """Return the graph as programs and Python functions, in the order of capture, which every dependency allows.

    Raises Unsupported if the body of a condition calls a Python function.
    """
    pieces: list[Piece] = []
    program, places = bytearray(), list[tuple[int, int, int]]()
    starts: dict[int, int] = {}  # by number of a condition: offset of its step
    ends: dict[int, int] = {}  # by number of an open condition: number of the node after its body

    def finish() -> None:
        nonlocal program, places
        if program:
            pieces.append(ProgramTemplate(program, places) if places else bytes(program))
        program, places = bytearray(), []

    for number, (what, _, details, body) in enumerate(work):
        conditions = [condition for condition, end in ends.items() if number < end]
        if what == "call":
            if conditions:
                raise Unsupported(
                    "the body of a condition cannot call a Python function, only work of the queue itself",
                    ability="Captures",
                )
            finish()
            pieces.append(details["function"])
            continue
        if what in {"record_event", "wait_event"}:
            finish()
            pieces.append(AtLaunch(details["function"]))
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
            case "strided":
                tail = details["packed"]
            case "native":
                a, b = details["function"], details["argument"]
            case "set":
                a, b = details["address"], starts[details["of"]]
            case "if" | "while":
                starts[number] = len(program) + _STEP.size
                program += _STEP.pack(_OPCODES["set"], _STEP.size, details["address"], starts[number], 0)
                ends[number] = body.stop
            case "again":
                a = len(program) + _STEP.size - starts[details["of"]]
        program += _STEP.pack(_OPCODES[what], _STEP.size + len(tail), a, b, c) + tail
        for condition, end in tuple(ends.items()):
            if number + 1 == end:
                del ends[condition]
                at = starts[condition]
                struct.pack_into("=Q", program, at + 16, len(program) - at - _STEP.size)
    finish()
    return pieces
